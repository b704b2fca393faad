"""Settings for this installation: the file, and the names of the adapters that are installed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from replicator.settings import Loaded, Plugins, load

from .plugins import names


def installed() -> Plugins:
    """What the installed packages offer."""
    return Plugins(
        transports=frozenset(names("replicator.sources")),
        formats=frozenset(names("replicator.decoders")),
        sinks=frozenset(names("replicator.sinks")),
    )


def read(path: Path, env: str | None, overrides: Iterable[str]) -> Loaded:
    """The settings of one run; ConfigError with every finding when they cannot be used."""
    return load(path, env, overrides, plugins=installed())
