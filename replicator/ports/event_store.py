"""The port of the store of events that programs emit."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from replicator.domain.events import AppendedEvent, Event, NewEvent


class EventStore(Protocol):
    """An append-only store of events (`domain.events`).

    Every adapter passes `testing.event_store_contract.EventStoreContract`. Safe for several threads; several processes
    may write at once (test_racing_writers_are_put_in_order).
    """

    def append(self, events: Sequence[NewEvent]) -> Sequence[AppendedEvent]:
        """Store events, all or none (test_all_or_none); durable on return. Returns one result per event, in their
        order.

        An event gets the next version of its aggregate (test_versions_are_counted_per_aggregate). An event whose id is
        already stored, or occurs earlier in `events`, changes nothing. Its other values do not matter
        (test_a_repeated_id_changes_nothing). `VersionConflict` if the aggregate is not at the expected version. If
        several writers race for a version, one succeeds and all others fail with it (test_one_of_several_wins). After
        `Retryable` the events may or may not be stored: repeat the call with the same ids and without `has_new_id`.
        """

    def read(
        self,
        aggregate_type: str,
        aggregate_id: str | None = None,
        *,
        until: datetime | None = None,
        limit: int | None = None,
    ) -> Sequence[Event]:
        """The first `limit` events of a type or of one aggregate, stored up to and including `until`. They are in order
        of time, events of one aggregate in order of version. Empty if there are none (test_events_outlive_the_store,
        test_events_are_filtered)."""

    def version(self, aggregate_type: str, aggregate_id: str) -> int:
        """The aggregate's version; 0 if it has no events (test_versions_are_counted_per_aggregate)."""

    def close(self) -> None:
        """Release everything; may be called twice, and the store may be used again."""
