"""Settings: the config file as plain, frozen, typed models.

`load_settings` reads, overlays, interpolates and checks; everything else in the core receives the result. A name is imported
when it is first used: shell completion reads the document alone, and has no time for the models.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .document import ConfigError, Document, Finding, Origin, PathProblem, load_layers
    from .lanes import LaneSettings
    from .loader import Loaded, check_document, load_settings
    from .plugins import NO_PLUGINS, Plugins
    from .schema import Settings, to_plain_options
    from .tables import EntrySettings, TableSettings
else:
    MODULES = {
        "document": ("ConfigError", "Document", "Finding", "Origin", "PathProblem", "load_layers"),
        "lanes": ("LaneSettings",),
        "loader": ("Loaded", "check_document", "load_settings"),
        "plugins": ("NO_PLUGINS", "Plugins"),
        "schema": ("Settings", "to_plain_options"),
        "tables": ("EntrySettings", "TableSettings"),
    }

    def __getattr__(name: str) -> Any:
        for module, names in MODULES.items():
            if name in names:
                return getattr(import_module(f".{module}", __name__), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
