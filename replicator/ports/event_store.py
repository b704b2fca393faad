"""The port to the store of events that programs emit themselves."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from replicator.domain.events import AppendedEvent, Event, NewEvent


class EventStore(Protocol):
    """An append-only store of events (`domain.events`).

    Every adapter passes `testing.event_store_contract.EventStoreContract`. Safe for use from several threads; several
    processes may write at once (test_racing_writers_are_put_in_order).
    """

    def append(self, events: Sequence[NewEvent]) -> Sequence[AppendedEvent]:
        """Store events, all or none (test_all_or_none), durable when it returns; what became of each, in their order.

        An event becomes its aggregate's next version (test_versions_are_counted_per_aggregate). One whose id is stored
        already, or came before in `events`, changes nothing, whatever else it says (test_a_repeated_id_changes_nothing).
        `VersionConflict` when one was to follow another version than the aggregate has, of several that race for it all but
        one (test_one_of_several_wins). After `Retryable` it is not known whether they are stored: repeat the call, with the
        same ids and without `has_new_id`.
        """

    def read(
        self,
        aggregate_type: str,
        aggregate_id: str | None = None,
        *,
        until: datetime | None = None,
        limit: int | None = None,
    ) -> Sequence[Event]:
        """The events of a type or of one aggregate, stored up to and including `until`, by time, those of an aggregate by
        version; the first `limit` of them. None when there are none (test_events_outlive_the_store,
        test_events_are_filtered)."""

    def version(self, aggregate_type: str, aggregate_id: str) -> int:
        """The aggregate's version; 0 when it has no events (test_versions_are_counted_per_aggregate)."""

    def close(self) -> None:
        """Release everything; may be called twice, and the store be used again."""
