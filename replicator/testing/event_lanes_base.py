"""Shared parts of the tests of sinks that are the event store: the factories of an adapter, and a location with both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from replicator.domain.errors import Retryable
from replicator.domain.events import NewEvent
from replicator.ports.engine import Engine
from replicator.ports.event_store import EventStore
from replicator.ports.frames import Lane, LaneOutcome, Write
from replicator.ports.sink import Sink

from .contract import Contract
from .stored_outbox import OutboxRecords, SentEvent

EMITTED = "emitted"


def make_sample_event(number: int, of: str = "A1", kind: str = "order", event_id: str = "") -> NewEvent:
    """An event of a program."""
    return NewEvent(
        event_id=event_id or f"{EMITTED}-{number}",
        event_type="Told",
        aggregate_id=of,
        aggregate_type=kind,
        event_data={},
    )


@dataclass
class EventStoreFixture:
    """An event store at one location, opened by a lane and by programs. `rejects`: the rejected rows."""

    suite: EventLanesBase
    at: Any
    opened: list[Any] = field(default_factory=list)
    rejects: list[dict[str, Any]] = field(default_factory=list)

    def sink(self) -> Sink[Any]:
        """Another sink."""
        self.opened.append(self.suite.new_sink(self.at))
        return self.opened[-1]  # type: ignore[no-any-return]

    def store(self) -> EventStore:
        """Another store."""
        self.opened.append(self.suite.new_store(self.at))
        return self.opened[-1]  # type: ignore[no-any-return]

    def reject(self, _: Lane, rows: Any) -> None:
        """Record the rejected rows."""
        self.rejects += self.suite.to_arrow(rows).to_pylist()

    def apply_write(self, sink: Any, write: Write[Any]) -> LaneOutcome:
        """Prepare and apply one write."""
        sink.prepare(write.lane, write.plan)
        return sink.apply([write], self.reject)[write.lane.id]  # type: ignore[no-any-return]


class EventLanesBase(Contract):
    """An adapter defines `new_place`, `new_sink`, `new_store` and `new_engine`."""

    racing = 12
    """The number of events of each concurrent writer."""

    def new_place(self) -> object:
        """A fresh, empty location for a store."""
        raise NotImplementedError

    def new_sink(self, place: Any) -> Sink[Any]:
        """Another sink for the store at that location."""
        raise NotImplementedError

    def new_store(self, place: Any) -> EventStore:
        """Another store at that location."""
        raise NotImplementedError

    def new_engine(self) -> Engine[Any]:
        """An engine whose frames the sink accepts."""
        raise NotImplementedError

    def to_frame(self, table: Any) -> Any:
        """A `pyarrow.Table` as a frame of the engine."""
        return table

    def to_arrow(self, frame: Any) -> Any:
        """A frame of the engine as a `pyarrow.Table`."""
        return frame

    def outbox(self, *sent: SentEvent, into: str = "order") -> OutboxRecords:
        """Records of one partition."""
        return self.outbox_of({0: sent}, into)

    def outbox_of(self, records: Mapping[int, Sequence[SentEvent]], into: str = "order") -> OutboxRecords:
        """Records by partition."""
        return OutboxRecords(records, into, self.to_frame)

    @contextmanager
    def open_place(self) -> Iterator[EventStoreFixture]:
        """A fixture at a fresh location."""
        place = EventStoreFixture(self, self.new_place())
        try:
            yield place
        finally:
            for each in place.opened:
                each.close()


def retry_until_done(act: Callable[[], object]) -> None:
    """Retry temporary errors, like the pipeline and programs."""
    for _ in range(50):
        try:
            act()
            return
        except Retryable:
            continue
    raise AssertionError("it does not pass")
