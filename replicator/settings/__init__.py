"""Settings: the config file as plain, frozen, typed models.

`load_settings` reads, overlays, interpolates and checks; everything else in the core receives the result.
"""

from .document import Document
from .findings import ConfigError, Finding, Origin, PathProblem
from .lanes import LaneSettings
from .loader import Loaded, check_document, load_layers, load_settings
from .plugins import NO_PLUGINS, Plugins
from .schema import Settings, to_plain_options
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
    "PathProblem",
    "Plugins",
    "Settings",
    "TableSettings",
    "check_document",
    "load_layers",
    "load_settings",
    "to_plain_options",
]
