"""Builds the HTTP server of a configuration."""

from __future__ import annotations

from replicator.ports.server import Server
from replicator.settings import Loaded

from .adapters import list_options
from .plugins import load_adapter

SERVER_KEYS = ("address", "token", "max_rows")


def build_server(loaded: Loaded) -> Server:
    """The server that receives events and shows rows over HTTP."""
    said = list_options(loaded.settings.serve)
    given = {name: said[name] for name in SERVER_KEYS if name in said}
    made: Server = load_adapter("replicator.servers", "http")(
        {**given, "message_bytes": loaded.settings.limits.message_bytes}
    )
    return made
