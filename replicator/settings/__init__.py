"""Settings: the config file as plain, frozen, typed models.

`load` reads, overlays, interpolates and checks; everything else in the core receives the result.
"""

from .findings import ConfigError, Finding
from .lanes import LaneSettings
from .load import Loaded, load
from .plugins import NO_PLUGINS, Plugins
from .schema import Settings, plain_options
from .tables import EntrySettings, TableSettings

__all__ = [
    "NO_PLUGINS",
    "ConfigError",
    "EntrySettings",
    "Finding",
    "LaneSettings",
    "Loaded",
    "Plugins",
    "Settings",
    "TableSettings",
    "load",
    "plain_options",
]
