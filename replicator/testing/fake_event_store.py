"""Events in a list, as the contract means them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import UTC, datetime

from replicator.domain.events import Appended, Event, Head, Known, NewEvent, fresh, heads_of, in_order, numbered


class FakeEventStore:
    """`ports.event_store.EventStore` in memory."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._turn = threading.Lock()

    def append(self, events: Sequence[NewEvent]) -> Sequence[Appended]:
        """See `ports.event_store.EventStore.append`."""
        with self._turn:
            known = Known({e.event_id: e for e in self.events}, dict(heads_of(self.events)))
            done = numbered(events, known, datetime.now(UTC))
            self.events += fresh(done)
            return done

    def read(
        self,
        aggregate_type: str,
        aggregate_id: str | None = None,
        *,
        until: datetime | None = None,
        limit: int | None = None,
    ) -> Sequence[Event]:
        """See `ports.event_store.EventStore.read`."""
        found = (e for e in self.events if e.aggregate_type == aggregate_type and aggregate_id in (None, e.aggregate_id))
        return in_order(e for e in found if until is None or e.created_at <= until)[:limit]

    def version(self, aggregate_type: str, aggregate_id: str) -> int:
        """See `ports.event_store.EventStore.version`."""
        return heads_of(self.events).get((aggregate_type, aggregate_id), Head()).version

    def close(self) -> None:
        """See `ports.event_store.EventStore.close`."""
