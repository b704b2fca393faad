"""`replicator serve`: targets and events over HTTP."""

from __future__ import annotations

import os
import signal
import threading

import click

from .run import handle_signals
from .session import CommandSession, command


@command("serve")
@click.option("--address", help="HOST:PORT, instead of `serve.address` of the config.")
def serve(session: CommandSession, address: str | None) -> None:
    """Answer over HTTP: the rows of targets, now and then, and what became of them, as JSON and Arrow (/docs tells how); and
    where the config has an `event_store`, take events for it: `POST /events`. With the token that `serve.token` names, which
    is needed for events and on any address but this machine's own. SIGTERM answers what has begun and exits 0."""
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
        session.print_note(f"targets are shown at {at}/docs{f', and events are taken at {at}/events' if store else ''}")
        stop.wait()
        side.close()
    finally:
        if store is not None:
            store.store.close()
    session.emit(None, "stopped in order")
