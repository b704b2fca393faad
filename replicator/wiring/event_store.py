"""Opens the event store of a configuration, and stores the events that programs emit."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from replicator.application.options import Backoff
from replicator.domain.errors import ConfigProblem, Retryable
from replicator.domain.events import AppendedEvent, EventLimits, NewEvent, prepare_retry
from replicator.ports.stores import EventStore
from replicator.settings import Loaded
from replicator.settings.plugins import list_names, load_adapter

from .adapters import LOCAL, build_event_limits, call_factory, make_options

GROUP = "replicator.event_stores"


def open_store(loaded: Loaded) -> EventStore:
    """The event store, by its location and the pipeline's engine. ConfigProblem if the configuration has none."""
    settings = loaded.settings.event_store
    if settings is None:
        raise ConfigProblem(
            "the configuration has no event store",
            next_step="Add one, for example event_store: {path: ./deltalake/events}",
        )
    engine, kind, values = loaded.settings.engine, settings.adapter, {}
    if engine != LOCAL and f"{kind}_{engine}" in list_names(GROUP):
        scheme, is_url, _ = str(getattr(settings, "path", None)).partition("://")
        session = dict(getattr(loaded.settings, engine))
        kind = f"{kind}_{engine}"
        values = {"session": session, engine: session, "stores": (scheme,) if is_url else ()}
    factory = load_adapter(GROUP, kind, f"{loaded.describe_origin('event_store')}: ")
    store: EventStore = call_factory(factory, make_options(settings, values))
    return store


@dataclass(frozen=True, slots=True)
class EventEmitter:
    """Stores events in `store`, if they are within `limits`. Temporary errors are retried with the same ids for
    `patience` seconds. Thread-safe."""

    store: EventStore
    limits: EventLimits
    patience: float = 10.0
    stop: threading.Event = field(default_factory=threading.Event)

    def emit(self, events: Sequence[NewEvent]) -> Sequence[AppendedEvent]:
        """See `EventStore.append`; InvalidEvent for an event beyond the limits."""
        for new in events:
            self.limits.check(new)
        backoff, end = Backoff(), time.monotonic() + self.patience
        while True:
            try:
                return self.store.append(events)
            except Retryable:
                if time.monotonic() > end or backoff.wait(self.stop):
                    raise
                events = [prepare_retry(new) for new in events]


def make_emitter(loaded: Loaded) -> EventEmitter:
    """An emitter of events. Its store stays open until it is closed."""
    return EventEmitter(open_store(loaded), build_event_limits(loaded))
