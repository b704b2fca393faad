"""An event store in a list, for tests."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import UTC, datetime

from replicator.domain.events import (
    AggregateHead,
    AppendedEvent,
    Event,
    NewEvent,
    StoredEvents,
    find_heads,
    number_events,
    select_new,
    sort_events,
)


class FakeEventStore:
    """`ports.event_store.EventStore` in memory."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._turn = threading.Lock()

    def append(self, events: Sequence[NewEvent]) -> Sequence[AppendedEvent]:
        with self._turn:
            known = StoredEvents({e.event_id: e for e in self.events}, dict(find_heads(self.events)))
            done = number_events(events, known, datetime.now(UTC))
            self.events += select_new(done)
            return done

    def read(
        self,
        aggregate_type: str,
        aggregate_id: str | None = None,
        *,
        until: datetime | None = None,
        limit: int | None = None,
    ) -> Sequence[Event]:
        found = (e for e in self.events if e.aggregate_type == aggregate_type and aggregate_id in (None, e.aggregate_id))
        return sort_events(e for e in found if until is None or e.created_at <= until)[:limit]

    def version(self, aggregate_type: str, aggregate_id: str) -> int:
        return find_heads(self.events).get((aggregate_type, aggregate_id), AggregateHead()).version

    def close(self) -> None:
        """See `ports.event_store.EventStore.close`."""
