"""`replicator serve`: serves targets and events over HTTP."""

from __future__ import annotations

import os
import signal
import threading

import click

from .run import handle_signals
from .session import CommandSession, command


@command("serve", "replicator serve --address 127.0.0.1:8091")
@click.option("--address", metavar="HOST:PORT", help="Use this address instead of `serve.address` of the config.")
def serve(session: CommandSession, address: str | None) -> None:
    """Serve targets, their history and events over HTTP.

    Serves the rows of targets, now and at earlier times, and the history of rows, as JSON and Arrow; /docs describes the
    API. With an `event_store` in the config it also accepts events: POST /events.

    Events, and any address but 127.0.0.1, need the token of `serve.token`. SIGTERM finishes the requests in progress and
    exits with 0.
    """
    signal.signal(signal.SIGINT, lambda number, _: os._exit(128 + number))
    from replicator.wiring.event_store import make_emitter
    from replicator.wiring.file_limits import raise_limit
    from replicator.wiring.logs import configure_logs
    from replicator.wiring.server import build_read_side, build_server

    configure_logs(session.verbosity)
    raise_limit()
    if address:
        session.overrides += (f"serve.address={address}",)
    side = build_server(session.loaded)
    store = make_emitter(session.loaded) if session.loaded.settings.event_store is not None else None
    stop = threading.Event()
    handle_signals(stop)
    try:
        at = side.start(store.emit if store else None, build_read_side(session.loaded))
        session.print_note(f"targets: {at}/docs{f', events: {at}/events' if store else ''}")
        stop.wait()
        side.close()
    finally:
        if store is not None:
            store.store.close()
    session.emit(None, "stopped cleanly")
