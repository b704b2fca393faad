"""`replicator serve`: events over HTTP."""

from __future__ import annotations

import os
import signal
import threading

import click

from .run import on_signals
from .session import Session, command


@command("serve")
@click.option("--address", help="HOST:PORT, instead of `serve.address` of the config.")
def serve(session: Session, address: str | None) -> None:
    """Take events for the store of events (`event_store` of the config): `POST /events`, with the token that `serve.token`
    names. SIGTERM answers what has begun and exits 0."""
    signal.signal(signal.SIGINT, lambda number, _: os._exit(128 + number))
    from replicator.wiring import events as wiring
    from replicator.wiring.logs import configure

    configure(session.verbosity)
    if address:
        session.overrides += (f"serve.address={address}",)
    side, emitting = wiring.command_side(session.loaded), wiring.emitting(session.loaded)
    stop = threading.Event()
    on_signals(stop)
    try:
        session.note(f"events are taken at {side.start(emitting.emit)}/events")
        stop.wait()
        side.close()
    finally:
        emitting.store.close()
    session.emit(None, "stopped in order")
