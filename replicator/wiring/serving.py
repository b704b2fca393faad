"""What answers programs elsewhere, as a configuration says."""

from __future__ import annotations

from replicator.ports.server import Server
from replicator.settings import Loaded

from .adapters import options
from .plugins import load

ITS_OWN = ("address", "token", "max_rows")


def server(loaded: Loaded) -> Server:
    """What takes events and shows rows over HTTP."""
    said = options(loaded.settings.serve)
    given = {name: said[name] for name in ITS_OWN if name in said}
    made: Server = load("replicator.servers", "http")({**given, "message_bytes": loaded.settings.limits.message_bytes})
    return made
