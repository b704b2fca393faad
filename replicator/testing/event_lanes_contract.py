"""The promises of a sink that is the event store: `ports.sink.Sink`, with a `ports.stores.EventStore` at the
same location, as tests for adapters to inherit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from replicator.domain.change import ERROR, OFFSET, OP, PARTITION, TOPIC, TS, Op, changes_schema, sequence_columns
from replicator.domain.errors import ConfigProblem, DataLoss, Fatal, Fenced, RejectCode, Retryable
from replicator.domain.events import Event, NewEvent
from replicator.domain.policy.plan import ApplyPlan, LaneState
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import EMPTY_SPAN, Position, Span, TopicPartition
from replicator.domain.table import Column, TableSpec
from replicator.ports.engine import Engine
from replicator.ports.frames import Lane, LaneOutcome, Write
from replicator.ports.sink import Sink
from replicator.ports.stores import EventStore

from .contract import FrameContract
from .fakes import FailAfterApply, FailBefore, Faulty
from .sink_base import fail_on_rejects, read_position
from .stores_contract import StoresBase, call_at_once

# Example outbox events, and their writes through an engine

FIRST_TIME = datetime(2024, 2, 29, 12, tzinfo=UTC)
COLUMN_NAMES = ("id", "aggregatetype", "aggregateid", "type", "payload")
TABLE = TableSpec(
    "outbox.event.order",
    (*(Column(name, pa.string()) for name in COLUMN_NAMES), Column("event_offset", pa.int64())),
    ("id",),
    1,
)
PLAN: ApplyPlan = plan_for("append", TABLE)
IDENTITY = {"shop.public.outbox": "topic-id-1"}


@dataclass(frozen=True, slots=True)
class SentEvent:
    """An event of an outbox, by default with the id `sent-<number>`. `minutes`: its time after `FIRST_TIME`."""

    number: int
    of: str | None = "A1"
    kind: str | None = "order"
    type: str | None = "Placed"
    payload: str | None = '{"total": 1.10, "names": ["\u00e9", null], "none": null, "who": "me"}'
    event_id: str = ""
    minutes: int | None = None

    @property
    def id(self) -> str:
        """The id of the event."""
        return self.event_id or f"sent-{self.number}"

    def make_row(self, partition: TopicPartition, offset: int) -> Mapping[str, Any]:
        """The change of the event, at this position."""
        values = dict(zip(COLUMN_NAMES, (self.id, self.kind, self.of, self.type, self.payload), strict=True))
        at = None if self.minutes is None else FIRST_TIME + timedelta(minutes=self.minutes)
        return {
            **values,
            "event_offset": offset,
            OP: Op.CREATE.value,
            sequence_columns(1)[0]: 0,
            TS: at,
            TOPIC: partition.topic,
            PARTITION: partition.partition,
            OFFSET: offset,
        }


@dataclass(frozen=True)
class OutboxRecords:
    """The records of one lane, by partition. `to_frame`: makes a frame of the engine."""

    records: Mapping[int, Sequence[SentEvent]]
    into: str = "order"
    to_frame: Callable[[pa.Table], Any] = lambda table: table

    @property
    def lane(self) -> Lane:
        """The lane that reads the records."""
        return Lane(f"event_store.{self.into}", "testing", "shop", TABLE.name, "event_store", self.into, "append")

    def get_partition(self, partition: int) -> TopicPartition:
        """The partition of that number."""
        return TopicPartition(f"shop.public.outbox.{self.into}", partition)

    def make_write(
        self, engine: Engine[Any], start: Mapping[int, int] | int, end: Mapping[int, int] | int, *, out_of_band: bool = False
    ) -> Write[Any]:
        """The records of these offsets as a write. A single number means the first partition. `out_of_band`:
        outside the stream."""
        first, last = _to_partitions(start), _to_partitions(end)
        # Partitions may arrive in any order.
        rows = [
            sent.make_row(self.get_partition(number), offset)
            for number in sorted(last, reverse=True)
            for offset, sent in enumerate(self.records.get(number, ()))
            if first.get(number, 0) <= offset < last[number]
        ]
        folded = engine.fold(self.make_frame(rows), PLAN)
        if out_of_band:
            return Write(self.lane, PLAN, folded, EMPTY_SPAN, out_of_band=True)
        span = Span(self._make_position(first), self._make_position(last))
        return Write(self.lane, PLAN, folded, span, IDENTITY)

    def make_frame(self, rows: Iterable[Mapping[str, Any]]) -> Any:
        """Changes as a frame of the engine. Missing values are null."""
        schema = changes_schema(TABLE)
        table = pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in rows], schema)
        return self.to_frame(table)

    def _make_position(self, offsets: Mapping[int, int]) -> Position:
        return Position({self.get_partition(number): offset for number, offset in offsets.items()})


def _to_partitions(offsets: Mapping[int, int] | int) -> Mapping[int, int]:
    return {0: offsets} if isinstance(offsets, int) else offsets


def refuse_gaps(events: Sequence[Event]) -> None:
    """AssertionError unless each aggregate has the versions 1, 2, 3 and so on, with times that never go back, and
    ids are unique."""
    by: dict[tuple[str, str], list[Event]] = {}
    for event in events:
        by.setdefault(event.aggregate, []).append(event)
    for of_one in by.values():
        inorder = sorted(of_one, key=lambda e: e.event_version)
        assert [e.event_version for e in inorder] == list(range(1, len(inorder) + 1)), inorder
        assert [e.created_at for e in inorder] == sorted(e.created_at for e in inorder), inorder
    ids = [event.event_id for event in events]
    assert len(set(ids)) == len(ids), ids


# Shared parts: the factories of an adapter, and a location with sink and event store

EMITTED = "emitted"


def make_sample_event(number: int, of: str = "A1", kind: str = "order", event_id: str = "") -> NewEvent:
    """An event of a program."""
    return NewEvent(
        event_id=event_id or f"{EMITTED}-{number}", event_type="Told", aggregate_id=of, aggregate_type=kind, event_data={}
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


class EventLanesBase(FrameContract, StoresBase[EventStore]):
    """An adapter defines `new_place`, `new_sink`, `new_store` and `new_engine`."""

    racing = 12
    """The number of events of each concurrent writer."""

    def new_sink(self, place: Any) -> Sink[Any]:
        """Another sink for the store at that location."""
        raise NotImplementedError

    def outbox(self, *sent: SentEvent, into: str = "order") -> OutboxRecords:
        """Records of one partition."""
        return self.outbox_of({0: sent}, into)

    def outbox_of(self, records: Mapping[int, Sequence[SentEvent]], into: str = "order") -> OutboxRecords:
        """Records by partition."""
        return OutboxRecords(records, into, self.to_frame)

    @contextmanager
    def open_place(self) -> Iterator[EventStoreFixture]:
        """A fixture at a fresh location."""
        fixture = EventStoreFixture(self, self.new_place())
        try:
            yield fixture
        finally:
            for each in fixture.opened:
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


# Concurrent writers and random histories


class EventLanesHistories(EventLanesBase):
    """Races and histories."""

    def test_concurrent_programs_and_lane_store_each_event_once(self) -> None:
        """Two programs and a lane write to the same aggregates at the same time, with overlapping spans and shared ids.
        No event is missing, and none is stored twice."""
        count, shared = self.racing, "shared-"
        sent = [SentEvent(n, f"A{n % 2}", event_id=f"{shared}{n}" if n % 4 == 0 else "") for n in range(count)]
        outbox, engine = self.outbox(*sent), self.new_engine()
        with self.open_place() as fixture:
            sink, stores = fixture.sink(), [fixture.store(), fixture.store()]
            fixture.apply_write(sink, outbox.make_write(engine, 0, 0))

            def emit(store: EventStore, program: int) -> None:
                for number in range(count):
                    own = make_sample_event(number, f"A{number % 2}", event_id=f"program-{program}-{number}")
                    several = [own, make_sample_event(0, "A0", event_id=f"{shared}{number}")] if number % 4 == 0 else [own]
                    retry_until_done(partial(store.append, several))

            def write_lane() -> None:
                for start in range(0, count, 2):
                    write = outbox.make_write(engine, max(0, start - 1), min(count, start + 2))
                    retry_until_done(partial(fixture.apply_write, sink, write))

            programs = [partial(emit, store, program) for program, store in enumerate(stores)]
            assert call_at_once([*programs, write_lane]) == [None] * 3
            events = fixture.store().read("order")
            refuse_gaps(events)
            emitted = {f"program-{program}-{number}" for program in range(2) for number in range(count)}
            assert {e.event_id for e in events} == {one.id for one in sent} | emitted

    def test_random_history_equals_a_list(self) -> None:
        """Random overlapping batches of two partitions, with faults, restarts and events of programs. Versions follow
        the order in which events arrived first."""
        step = st.one_of(
            st.tuples(st.just("batch"), st.integers(0, 1), st.integers(0, 3), st.integers(1, 3)),
            st.tuples(st.just("emit"), st.integers(0, 1), st.integers(0, 9), st.just(0)),
            st.sampled_from([(name, 0, 0, 0) for name in ("lost", "anew")]),
        )

        @self.for_all(
            ids=st.lists(st.integers(0, 9), min_size=16, max_size=16),
            aggregates=st.lists(st.integers(0, 2), min_size=16, max_size=16),
            steps=st.lists(step, max_size=8),
        )
        def check(ids: list[int], aggregates: list[int], steps: list[tuple[str, int, int, int]]) -> None:
            sent = [SentEvent(number, f"A{of}") for number, of in zip(ids, aggregates, strict=True)]
            outbox, engine = self.outbox_of({0: sent[:8], 1: sent[8:]}), self.new_engine()
            with self.open_place() as fixture:
                run = _HistoryRun(fixture, outbox, engine)
                for name, number, back, length in steps:
                    run.run_step(name, number, back, length)
                events = fixture.store().read("order")
                refuse_gaps(events)
                wanted = [(e, f"A{n}") for n in range(3) for e in run.expected if run.of[e] == f"A{n}"]
                by_version = sorted(events, key=lambda e: (e.aggregate_id, e.event_version))
                assert [(e.event_id, e.aggregate_id) for e in by_version] == wanted


@dataclass
class _HistoryRun:
    """A running history with its expected result: ids in the order of first arrival, with their aggregates."""

    place: EventStoreFixture
    outbox: OutboxRecords
    engine: Engine[Any]
    expected: list[str] = field(default_factory=list)
    of: dict[str, str] = field(default_factory=dict)
    reached: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0})

    def __post_init__(self) -> None:
        self.sink: Any = Faulty(self.place.sink())
        self.store = self.place.store()

    def run_step(self, name: str, number: int, back: int, length: int) -> None:
        if name == "emit":
            event = make_sample_event(back, f"A{number}", event_id=f"sent-{back}")
            self.store.append([event])
            self._add_expected(event.event_id, event.aggregate_id)
        elif name == "lost":
            self.sink.schedule("apply", FailAfterApply())
        elif name == "anew":
            self.sink.close()
            self.sink = Faulty(self.place.sink())
        else:
            start, end = max(0, self.reached[number] - back), min(8, self.reached[number] + length)
            write = self.outbox.make_write(self.engine, {number: start}, {number: max(start, end)})
            retry_until_done(lambda: self.place.apply_write(self.sink, write))
            for one in self.outbox.records[number][self.reached[number] : end]:
                self._add_expected(one.id, str(one.of))
            self.reached[number] = max(end, self.reached[number])

    def _add_expected(self, event_id: str, of: str) -> None:
        if event_id not in self.of:
            self.of[event_id] = of
            self.expected.append(event_id)


# The contract


class EventLanesContract(EventLanesHistories):
    """An adapter defines `new_place`, `new_sink`, `new_store` and `new_engine`. Its sink rejects events longer than
    1500 bytes."""

    def test_events_become_versions_of_their_aggregates(self) -> None:
        """In record order within a partition, with all values, the record position in the metadata, and times that
        never go back."""
        sent = [
            SentEvent(0, minutes=5),
            SentEvent(1, "A2", minutes=1),
            SentEvent(2, minutes=3),
            SentEvent(3, payload="{}", type="Odd \u00e9"),
        ]
        outbox, engine = self.outbox(*sent), self.new_engine()
        with self.open_place() as fixture:
            sink = fixture.sink()
            assert sink.state(outbox.lane) is None
            applied = fixture.apply_write(sink, outbox.make_write(engine, 0, 4))
            assert (applied.counts.applied, applied.counts.total) == (4, 4)
            events = fixture.store().read("order", "A1")
            assert [(e.event_id, e.event_version) for e in events] == [("sent-0", 1), ("sent-2", 2), ("sent-3", 3)]
            first = events[0]
            assert first.event_data == {"total": "1.10", "names": '["\u00e9",null]', "none": None, "who": "me"}
            assert first.metadata == {"topic": "shop.public.outbox.order", "partition": "0", "offset": "0"}
            assert (first.event_type, first.created_at) == ("Placed", FIRST_TIME + timedelta(minutes=5))
            assert events[1].created_at == first.created_at and events[2].event_type == "Odd \u00e9"
            assert fixture.store().version("order", "A2") == 1

    def test_state_is_committed_with_the_events(self) -> None:
        """Position, topic identity and the plan's rule. Another instance reads them and continues there."""
        outbox, engine = self.outbox(SentEvent(0), SentEvent(1)), self.new_engine()
        with self.open_place() as fixture:
            sink = fixture.sink()
            write = outbox.make_write(engine, 0, 1)
            fixture.apply_write(sink, write)
            sink.close()
            other = fixture.sink()
            state = other.state(outbox.lane)
            assert state is not None
            assert (state.position, dict(state.identity), state.rule) == (write.span.end, IDENTITY, write.plan.rule)
            assert (
                fixture.apply_write(other, outbox.make_write(engine, 1, 2)).position
                == outbox.make_write(engine, 1, 2).span.end
            )
            assert [e.event_version for e in fixture.store().read("order")] == [1, 2]

    def test_redelivery_changes_nothing(self) -> None:
        """Only the new part of an overlapping span is applied. The records below it count as duplicates."""
        outbox, engine = self.outbox(*map(SentEvent, range(5))), self.new_engine()
        with self.open_place() as fixture:
            sink = fixture.sink()
            fixture.apply_write(sink, outbox.make_write(engine, 0, 3))
            before = fixture.store().read("order")
            for start, end in ((0, 3), (1, 2), (0, 1)):
                counts = fixture.apply_write(sink, outbox.make_write(engine, start, end)).counts
                assert (counts.duplicate, counts.total) == (end - start, end - start)
            assert fixture.store().read("order") == before
            counts = fixture.apply_write(sink, outbox.make_write(engine, 1, 5)).counts
            assert (counts.applied, counts.duplicate) == (2, 2)
            assert [e.event_id for e in fixture.store().read("order")] == [f"sent-{n}" for n in range(5)]

    def test_event_with_a_known_id_is_not_stored(self) -> None:
        """With any content; the id may be of the same batch, an earlier batch or a program. The position moves past the
        event."""
        again = [
            SentEvent(1),
            SentEvent(1, "A9", payload='{"x": 1}'),
            SentEvent(2),
            SentEvent(3, event_id="emitted-0"),
            SentEvent(1),
            SentEvent(4),
        ]
        outbox, engine = self.outbox(SentEvent(0), *again), self.new_engine()
        with self.open_place() as fixture:
            sink, store = fixture.sink(), fixture.store()
            store.append([make_sample_event(0, "A5")])
            fixture.apply_write(sink, outbox.make_write(engine, 0, 1))
            write = outbox.make_write(engine, 1, 5)
            counts = fixture.apply_write(sink, write).counts + write.folded.counts  # The fold drops duplicates of a batch.
            assert (counts.applied, counts.duplicate) == (2, 2)
            counts = fixture.apply_write(sink, outbox.make_write(engine, 5, 6)).counts
            assert (counts.applied, counts.duplicate) == (0, 1)
            assert not store.append([make_sample_event(9, "A1", event_id="sent-0")])[0].is_new
            fixture.apply_write(sink, outbox.make_write(engine, 6, 7))
            events = store.read("order")
            assert {e.event_id for e in events} == {"emitted-0", "sent-0", "sent-1", "sent-2", "sent-4"}
            refuse_gaps(events)

    def test_programs_and_lanes_share_version_numbers(self) -> None:
        """An event gets the next version of its aggregate, whether a program or a lane stored the version before."""
        outbox, engine = self.outbox(*map(SentEvent, range(3))), self.new_engine()
        with self.open_place() as fixture:
            sink, store = fixture.sink(), fixture.store()
            for number in range(3):
                assert store.append([make_sample_event(number)])[0].event.event_version == 2 * number + 1
                fixture.apply_write(sink, outbox.make_write(engine, number, number + 1))
            assert store.append([replace(make_sample_event(7), expected_version=6)])[0].event.event_version == 7
            refuse_gaps(store.read("order"))

    def test_other_lanes_keep_their_positions(self) -> None:
        """Lanes of other tables share the store and the aggregates."""
        engine = self.new_engine()
        orders, others = (
            self.outbox(*map(SentEvent, range(3))),
            self.outbox(*(SentEvent(n) for n in range(10, 13)), into="others"),
        )
        with self.open_place() as fixture:
            sink = fixture.sink()
            for number in range(3):
                for one in (orders, others):
                    fixture.apply_write(sink, one.make_write(engine, number, number + 1))
            ids = [f"sent-{n}" for pair in zip(range(3), range(10, 13), strict=True) for n in pair]
            assert [e.event_id for e in fixture.store().read("order", "A1")] == ids
            sink.reset(orders.lane)
            assert sink.state(orders.lane) is None
            assert read_position(sink, others.lane) == others.make_write(engine, 2, 3).span.end

    def test_rejects_are_stored_before_the_commit(self) -> None:
        """If rejects cannot be stored, no event is stored. Otherwise each reject has its reason, and the other events
        are stored."""
        wrong = {
            "payload": [SentEvent(1, payload='["a"]'), SentEvent(2, payload="7"), SentEvent(3, payload=None)],
            "NUL": [SentEvent(4, payload='{"a":"\\u0000"}')],
            "type": [SentEvent(5, type=None), SentEvent(6, type=" ")],
            "aggregate_id": [SentEvent(7, of=None), SentEvent(8, of="x" * 501)],
            "aggregate_type": [SentEvent(9, kind=None), SentEvent(10, kind="")],
            "longer than": [SentEvent(11, payload='{"a": "' + "x" * 2000 + '"}')],
        }
        refused = [sent for several in wrong.values() for sent in several]
        outbox, engine = self.outbox(SentEvent(0), *refused, SentEvent(12)), self.new_engine()
        with self.open_place() as fixture:
            sink, write = fixture.sink(), outbox.make_write(engine, 0, len(refused) + 2)
            sink.prepare(write.lane, write.plan)
            with pytest.raises(Fatal, match="disk full"):
                sink.apply([write], fail_on_rejects)
            assert fixture.store().read("order") == [] and sink.state(write.lane) is None
            counts = fixture.apply_write(sink, write).counts
            assert (counts.applied, counts.rejected) == (2, len(refused))
            assert [e.event_id for e in fixture.store().read("order")] == ["sent-0", "sent-12"]
            texts = {row["_offset"]: row[ERROR] for row in fixture.rejects}
            names = [name for name, several in wrong.items() for _ in several]
            for offset, name in enumerate(names, 1):
                assert texts[offset].startswith(f"{RejectCode.NO_EVENT}: ") and name in texts[offset], (name, texts[offset])

    def test_a_gap_is_refused(self) -> None:
        """A span that starts after the applied position raises DataLoss, and nothing is stored."""
        outbox, engine = self.outbox(*map(SentEvent, range(4))), self.new_engine()
        with self.open_place() as fixture:
            sink = fixture.sink()
            fixture.apply_write(sink, outbox.make_write(engine, 0, 1))
            with pytest.raises(DataLoss):
                fixture.apply_write(sink, outbox.make_write(engine, 2, 4))
            assert len(fixture.store().read("order")) == 1

    def test_an_empty_write_advances_the_position(self) -> None:
        """Also a write with known events only. Neither stores anything."""
        outbox, engine = self.outbox(SentEvent(0), SentEvent(0)), self.new_engine()
        with self.open_place() as fixture:
            sink = fixture.sink()
            fixture.apply_write(sink, outbox.make_write(engine, 0, 1))
            fixture.apply_write(sink, outbox.make_write(engine, 1, 2))
            empty = outbox.make_write(engine, 2, 2)
            empty = replace(empty, span=Span(empty.span.end, Position({outbox.get_partition(0): 9})))
            assert fixture.apply_write(sink, empty).counts.total == 0
            assert read_position(sink, outbox.lane) == empty.span.end
            assert len(fixture.store().read("order")) == 1

    def test_failed_write_is_repeated(self) -> None:
        """A call may fail before it starts, or its answer may be lost. A retry stores each event once."""
        for fault in (FailBefore(), FailAfterApply()):
            outbox, engine = self.outbox(*map(SentEvent, range(3))), self.new_engine()
            with self.open_place() as fixture:
                sink = Faulty(fixture.sink())
                fixture.apply_write(sink, outbox.make_write(engine, 0, 1))
                sink.schedule("apply", fault)
                with pytest.raises(Retryable):
                    fixture.apply_write(sink, outbox.make_write(engine, 1, 3))
                counts = fixture.apply_write(sink, outbox.make_write(engine, 1, 3)).counts
                assert counts.applied == (2 if isinstance(fault, FailBefore) else 0)
                assert [e.event_version for e in fixture.store().read("order")] == [1, 2, 3]

    def test_an_out_of_band_event_is_the_next_version(self) -> None:
        """A skipped event becomes the next version, once, and the position stays."""
        outbox, engine = self.outbox(*map(SentEvent, range(3))), self.new_engine()
        with self.open_place() as fixture:
            sink = fixture.sink()
            fixture.apply_write(sink, outbox.make_write(engine, 1, 3))
            for applied in (1, 0):
                assert fixture.apply_write(sink, outbox.make_write(engine, 0, 1, out_of_band=True)).counts.applied == applied
                assert read_position(sink, outbox.lane) == outbox.make_write(engine, 1, 3).span.end
            assert [e.event_id for e in fixture.store().read("order")] == ["sent-1", "sent-2", "sent-0"]

    def test_reset_lane_stores_no_event_twice(self) -> None:
        """`reset` removes the position but keeps the events, so redelivered events are duplicates. `skip` leaves events
        out."""
        outbox, engine = self.outbox(*map(SentEvent, range(4))), self.new_engine()
        with self.open_place() as fixture:
            sink = fixture.sink()
            fixture.apply_write(sink, outbox.make_write(engine, 0, 2))
            before = fixture.store().read("order")
            sink.reset(outbox.lane)
            assert sink.state(outbox.lane) is None
            assert fixture.apply_write(sink, outbox.make_write(engine, 0, 2)).counts.duplicate == 2
            assert fixture.store().read("order") == before
            sink.skip(outbox.lane, LaneState(Position({outbox.get_partition(0): 3})))
            fixture.apply_write(sink, outbox.make_write(engine, 3, 4))
            assert [(e.event_id, e.event_version) for e in fixture.store().read("order")][2:] == [("sent-3", 3)]

    def test_a_second_instance_is_fenced(self) -> None:
        """At its next commit at the latest. Only one of the two stores the events."""
        outbox, engine = self.outbox(*map(SentEvent, range(2))), self.new_engine()
        with self.open_place() as fixture:
            first, second = fixture.sink(), fixture.sink()
            fixture.apply_write(first, outbox.make_write(engine, 0, 1))
            with pytest.raises(Fenced):
                fixture.apply_write(second, outbox.make_write(engine, 1, 2))
                fixture.apply_write(first, outbox.make_write(engine, 1, 2))
            refuse_gaps(fixture.store().read("order"))

    def test_policy_other_than_append_is_refused(self) -> None:
        """`prepare` raises ConfigProblem, because events are only appended."""
        with self.open_place() as fixture:
            for policy in ("scd1", "scd2"):
                with pytest.raises(ConfigProblem, match=r"does not (apply|support) policy"):
                    fixture.sink().prepare(replace(self.outbox().lane, policy=policy), plan_for(policy, TABLE))
