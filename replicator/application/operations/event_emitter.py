"""Stores the events that programs emit, within limits and with retries."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from replicator.application.backoff import Backoff
from replicator.domain.errors import Retryable
from replicator.domain.events import AppendedEvent, EventLimits, NewEvent, prepare_retry
from replicator.ports.event_store import EventStore


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
