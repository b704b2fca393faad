"""Emits events of programs into the event store of the config, and reads them.

>>> from replicator import events
>>> events.emit_event("C101", "Customer", "CustomerCreated", {"name": "Alice Johnson", "city": "NYC"}, expected_version=0)
>>> with events.EventStore(config="config/replicator.yaml") as store:
...     store.events("Customer", "C101")
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from replicator.domain.events import Event, InvalidEvent, VersionConflict, make_event, to_texts
from replicator.settings import Loaded
from replicator.wiring.configuration import find_config_file, read_config

from .wiring.adapters import make_emitter

__all__ = ["Event", "EventStore", "InvalidEvent", "VersionConflict", "emit_event"]


class EventClient:
    """The event store of a config. Safe for use from several threads; a context manager, closed at its end.

    Without `config`, it uses the file that REPLICATOR_CONFIG names, or else config/replicator.yaml in this folder or one
    above it.
    """

    def __init__(self, config: str | Path | None = None, env: str | None = None, *, loaded: Loaded | None = None) -> None:
        loaded = loaded or read_config(Path(config or find_config_file()), env, ())
        self._emitting = make_emitter(loaded)

    def emit_event(  # noqa: PLR0917 - the call is the same everywhere
        self,
        aggregate_id: str,
        aggregate_type: str,
        event_type: str,
        event_data: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        expected_version: int | None = None,
        *,
        event_id: str | None = None,
    ) -> Event:
        """Store one event; it is durable on return. Returns the event as stored, with its version.

        `event_data` and `metadata` become maps from text to text: text and None stay, other values are their JSON text.
        `expected_version`: the version that the aggregate has before it, 0 for a new one; VersionConflict when it has
        another.
        An event whose `event_id` is stored changes nothing: what is stored is returned, so that a call may be repeated.
        Raises InvalidEvent for what cannot be stored or is beyond `limits`.
        """
        data = to_texts("event_data", event_data)
        more = None if metadata is None else to_texts("metadata", metadata)
        new = make_event(
            aggregate_id, aggregate_type, event_type, data, more, expected_version=expected_version, event_id=event_id
        )
        (entry,) = self._emitting.emit([new])
        return entry.event

    def events(
        self,
        aggregate_type: str,
        aggregate_id: str | None = None,
        *,
        until: datetime | None = None,
        limit: int | None = None,
    ) -> list[Event]:
        """The events of a type or of one aggregate, up to the time `until` (UTC without a zone), by time and version."""
        time = until.replace(tzinfo=UTC) if until is not None and until.tzinfo is None else until
        return list(self._emitting.store.read(aggregate_type, aggregate_id, until=time, limit=limit))

    def version(self, aggregate_type: str, aggregate_id: str) -> int:
        """The aggregate's version; 0 without events."""
        return self._emitting.store.version(aggregate_type, aggregate_id)

    def close(self) -> None:
        """Release everything; may be called twice."""
        self._emitting.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


EventStore = EventClient
"""The public name. In the code it is the port's name (`ports.stores.EventStore`)."""

_OPEN: dict[tuple[int, str, str | None], EventClient] = {}
_TURN = threading.Lock()


def emit_event(  # noqa: PLR0917 - as above
    aggregate_id: str,
    aggregate_type: str,
    event_type: str,
    event_data: Mapping[str, Any],
    metadata: Mapping[str, Any] | None = None,
    expected_version: int | None = None,
    *,
    event_id: str | None = None,
    config: str | Path | None = None,
    env: str | None = None,
) -> Event:
    """As `EventClient.emit_event`, in the store of that config, which stays open until the program ends."""
    path = str(Path(config or find_config_file()).absolute())
    with _TURN:
        # A process that was forked must not share its parent's connection.
        key = (os.getpid(), path, env)
        store = _OPEN.get(key) or _OPEN.setdefault(key, EventClient(path, env))
    return store.emit_event(
        aggregate_id, aggregate_type, event_type, event_data, metadata, expected_version, event_id=event_id
    )
