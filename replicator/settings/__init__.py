"""Settings: the config file as plain, frozen, typed models.

`load` reads, overlays, interpolates and checks; everything else in the core receives the result.
"""

from .document import Document
from .findings import ConfigError, Finding, Origin, Problem
from .lanes import LaneSettings
from .load import Loaded, checked, layered, load
from .plugins import NO_PLUGINS, Plugins
from .schema import Settings, plain_options
from .tables import EntrySettings, TableSettings

__all__ = [
    "NO_PLUGINS",
    "ConfigError",
    "Document",
    "EntrySettings",
    "Finding",
    "LaneSettings",
    "Loaded",
    "Origin",
    "Plugins",
    "Problem",
    "Settings",
    "TableSettings",
    "checked",
    "layered",
    "load",
    "plain_options",
]
