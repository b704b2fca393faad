"""Builds the HTTP server of a configuration, and the rows that it shows."""

from __future__ import annotations

from functools import partial

from replicator.application.operations.read_side import ConfiguredTargets
from replicator.ports.options import to_timedelta
from replicator.ports.runtime import Endpoints, Server
from replicator.settings import Loaded
from replicator.settings.plugins import load_adapter

from .adapters import list_options
from .components import ConfiguredComponents
from .event_logs import open_reader

SERVER_KEYS = ("address", "token", "max_rows")


def build_server(loaded: Loaded) -> Server[Endpoints]:
    """The server that receives events and shows rows over HTTP."""
    said = list_options(loaded.settings.serve)
    given = {name: said[name] for name in SERVER_KEYS if name in said}
    made: Server[Endpoints] = load_adapter("replicator.servers", "http")(
        {**given, "message_bytes": loaded.settings.limits.message_bytes}
    )
    return made


def build_read_side(loaded: Loaded) -> ConfiguredTargets:
    """The rows that the server shows."""
    serve = loaded.settings.serve
    seconds = to_timedelta(serve.query_timeout).total_seconds()
    return ConfiguredTargets(ConfiguredComponents(loaded), partial(open_reader, loaded), serve.tables, seconds)
