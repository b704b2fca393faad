"""Shared parts of the sink contract: the factories of an adapter, example histories, and their writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st

from replicator.domain.change import ERROR
from replicator.domain.errors import DataLoss, Fatal, Reject, RejectCode, Retryable
from replicator.domain.policy.plan import ApplyPlan, Counts, LaneState, cdc_sequence_columns
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import Position, Span, TopicPartition
from replicator.ports.frames import Lane, LaneOutcome, RejectRows, Write
from replicator.ports.sink import Sink, SinkFeatures

from .contract import FrameContract, require
from .delivery import DeliveryRun, Plans, SinkTarget, assert_equals_model, assert_rows, divide_segments, make_lane
from .fakes import FailAfterApply, Faulty
from .histories import History, changes_frame, list_events
from .model import Change, Row
from .model_transforms import ModelRowTransforms
from .source import SourceEvent, SourceTable, Statement, StreamShape

T = TypeVar("T")
SIMPLE = StreamShape(values=("text", "int"), tombstones=False)
TOPIC = SourceTable.topic
IDENTITY = {TOPIC: "topic-id-1"}


def make_history(*statements: Statement, shape: StreamShape = SIMPLE) -> History:
    """An example history."""
    return History(shape, statements)


def make_keyed_changes(*changes: tuple[str, int, int]) -> list[Change]:
    """Changes of a table with the columns `k1` and `v1`: operation, key, sequence."""
    return [
        Change(op, (sequence, 0, 0), {} if op == "t" else {"k1": key, "v1": f"{op}{sequence}"})
        for op, key, sequence in changes
    ]


def make_writes(*keys: int, salt: int = 0) -> tuple[Statement, ...]:
    """A write of each key."""
    return tuple(Statement("write", key, salt=salt + key) for key in keys)


def to_stored_sequence(sequence: tuple[int, ...]) -> dict[str, int]:
    """A sequence with the column names of targets."""
    return dict(zip(cdc_sequence_columns(len(sequence)), sequence, strict=True))


def refuse_rejects(lane: Lane, rows: Any) -> None:
    """Fail the test, because nothing should be rejected."""
    raise AssertionError(f"rows of lane {lane.id} were rejected: {rows}")


def fail_on_rejects(lane: Lane, rows: Any) -> None:
    """A dead-letter store that cannot write."""
    raise Fatal(f"disk full: {lane.id}, {rows is not None}")


def require_feature(feature: T | None, reason: str) -> T:
    """The feature of a sink. Skips the running test if the sink does not have it."""
    if feature is None:
        pytest.skip(reason)
    return feature


def move_position(position: Position, records: int) -> Position:
    """`position`, advanced by `records` in every partition."""
    return Position({partition: offset + records for partition, offset in position.items()})


def make_span(start: int, end: int) -> Span:
    """The span between two offsets of the first partition."""
    partition = TopicPartition(TOPIC, 0)
    return Span(Position({partition: start}), Position({partition: end}))


def read_position(sink: Any, lane: Lane) -> Position:
    """The position in the state of a lane."""
    state: LaneState | None = sink.state(lane)
    assert state is not None
    return state.position


class SinkBase(FrameContract):
    """The factories of an adapter, and helpers of the tests."""

    def new_target(self) -> SinkTarget:
        """A fresh, empty target."""
        raise NotImplementedError

    @contextmanager
    def target(self) -> Iterator[SinkTarget]:
        """A fresh target that is closed afterwards."""
        target = self.new_target()
        try:
            yield target
        finally:
            target.close()

    @contextmanager
    def open_sink(self) -> Iterator[tuple[SinkTarget, Sink[Any]]]:
        """A fresh target and a sink for it. Both are closed afterwards."""
        with self.target() as target, closing(target.open()) as sink:
            yield target, sink

    @contextmanager
    def open_lane(self, plan: ApplyPlan, lane: Lane | None = None, *, may_reject: bool = False) -> Iterator[LaneWriter]:
        """A lane of a fresh target, which is closed afterwards."""
        with self.target() as target, closing(LaneWriter(self, target, plan, lane, may_reject=may_reject)) as run:
            yield run

    def features(self) -> SinkFeatures:
        """The features of the sink."""
        with self.open_sink() as (_, sink):
            return sink.features

    def check_history(
        self,
        history: History,
        policy: str,
        plans: Plans = plan_for,
        wanted: ModelRowTransforms | None = None,
        times: Sequence[datetime] = (),
    ) -> DeliveryRun:
        """The history ends like the model, and every change is accounted for. `wanted`: the row transforms of the
        plans. `times`: of the batches."""
        with self.target() as target:
            arguments = self.new_engine(), target, history, policy, plans, wanted
            delivering = DeliveryRun(*arguments, to_frame=self.to_frame, to_arrow=self.to_arrow, times=times)
            delivering.run()
            assert_equals_model(delivering)
        return delivering

    def check_model(
        self,
        histories: st.SearchStrategy[History],
        policy: str,
        plans: Plans = plan_for,
        share: int = 1,
        wanted: ModelRowTransforms | None = None,
    ) -> None:
        """`check_history` for random histories."""

        @self.for_all(share, history=histories)
        def check(history: History) -> None:
            self.check_history(history, policy, plans, wanted)

    def write(self, history: History, start: int, end: int, lane: Lane | None = None) -> Write[Any]:
        """The write of the events [start, end)."""
        engine, lane = self.new_engine(), lane or make_lane("scd1")
        table = history.table(end)
        plan = plan_for(lane.policy, table, lane.watermark)
        frames = [self.to_frame(frame) for _, frame in history.runs(start, end)]
        changes = engine.frames.concat(frames or [self.to_frame(history.frame((), table))], table)
        return Write(lane, plan, engine.fold(changes, plan), history.span(start, end), IDENTITY)

    def apply_write(self, sink: Sink[Any], write: Write[Any]) -> LaneOutcome:
        """Prepare and apply one write without rejects."""
        sink.prepare(write.lane, write.plan)
        return sink.apply([write], refuse_rejects)[write.lane.id]

    def assert_holds(self, target: SinkTarget, history: History, write: Write[Any], end: int | None = None) -> None:
        """The target equals the model after the events before `end`."""
        assert_rows(target, write.lane, write.plan, history, end)


class LaneWriter:
    """The writes of a test to one lane. `lane`: by default one with the policy of the plan. `sink`: by default a new one.

    - `table`: the table of the changes, before the row transforms of the plan. `sent`: the next offset.
    - `counts`, `rejects`: of all writes so far. Only if `may_reject`, the sink may reject rows.
    """

    def __init__(
        self,
        suite: SinkBase,
        target: SinkTarget,
        plan: ApplyPlan,
        lane: Lane | None = None,
        sink: Sink[Any] | None = None,
        *,
        may_reject: bool = False,
    ) -> None:
        self.suite, self.target, self.may_reject = suite, target, may_reject
        self.plan, self.table, self.lane = plan, plan.table, lane or make_lane(plan.policy)
        self.engine, self.sink = suite.new_engine(), sink or target.open()
        self.counts, self.sent = Counts(), 0
        self.rejects: list[Row] = []
        self.sink.prepare(self.lane, plan)

    def send_changes(self, changes: Sequence[Change], at: datetime | None = None) -> None:
        """Apply the next changes of the first partition as one batch. `at`: its time."""
        start, self.sent = self.sent, self.sent + len(changes)
        self.send_events(list_events(changes, start), make_span(start, self.sent), at)

    def send_events(self, events: Iterable[tuple[SourceEvent, Change]], span: Span, at: datetime | None = None) -> None:
        """Apply a batch like the pipeline: transform its rows, and write each segment."""
        frame = self.suite.to_frame(changes_frame(events, self.table, TOPIC))
        if self.plan.row_transforms:
            frame = self.engine.transform_rows(frame, self.plan).frame
        for segment, part in divide_segments(self.engine, frame, self.plan.table, span):
            self.apply_write(Write(self.lane, self.plan, self.engine.fold(segment, self.plan), part, IDENTITY, at))

    def apply_write(self, write: Write[Any], reject: RejectRows[Any] | None = None) -> None:
        """Apply one write."""

        def add_rejects(_: Lane, rows: Any) -> None:
            self.rejects += self.suite.to_arrow(rows).to_pylist()

        reject = reject or (add_rejects if self.may_reject else refuse_rejects)
        self.counts += write.folded.counts + self.sink.apply([write], reject)[self.lane.id].counts

    def rows(self) -> Sequence[Row]:
        """The rows of the target now."""
        return self.target.rows(self.lane)

    def close(self) -> None:
        """Close the sink."""
        self.sink.close()


# Positions, repetitions and rejects


class SinkPositions(SinkBase):
    """Positions, repetitions, rejects."""

    def test_state_of_an_unprepared_lane_is_none(self) -> None:
        """`state` of a lane that was never prepared is None."""
        with self.open_sink() as (_, sink):
            assert sink.state(make_lane("scd1")) is None

    def test_state_is_committed_with_the_rows(self) -> None:
        """After `apply`, another instance reads position, highest sequence and identity."""
        history = make_history(*make_writes(0, 1, 2))
        with self.target() as target:
            sink = target.open()
            write = self.write(history, 0, 3)
            applied = self.apply_write(sink, write)
            sink.close()
            state = target.open().state(write.lane)
            assert state is not None
            assert applied.position == state.position == history.position(3)
            assert state.max_sequence == write.folded.facts.highest
            assert dict(state.identity) == IDENTITY
            assert state.rule == write.plan.rule

    def test_empty_write_advances_position(self) -> None:
        """A write without rows commits its position and changes nothing else."""
        history = make_history(*make_writes(0), Statement("skip"), *make_writes(1))
        with self.open_sink() as (target, sink):
            self.apply_write(sink, self.write(history, 0, 1))
            empty = replace(self.write(history, 1, 1), span=Span(history.position(1), move_position(history.position(1), 5)))
            assert self.apply_write(sink, empty).counts.total == 0
            assert read_position(sink, empty.lane) == empty.span.end
            self.assert_holds(target, history, empty, 1)

    def test_stale_write_advances_position(self) -> None:
        """A write whose rows are all known commits its position, too."""
        history = make_history(*make_writes(0, 1), Statement("resend", salt=1))
        with self.open_sink() as (target, sink):
            self.apply_write(sink, self.write(history, 0, 2))
            write = self.write(history, 2, 4)
            counts = self.apply_write(sink, write).counts
            assert read_position(sink, write.lane) == history.position(4)
            assert counts.applied == 0
            assert counts.total == 2
            self.assert_holds(target, history, write)

    def test_redelivery(self) -> None:
        """An applied span changes nothing. Only the new part of an overlapping span is applied, and the overlap counts
        as duplicate."""
        history = make_history(*make_writes(0, 1, 2, 3))
        with self.open_sink() as (target, sink):
            self.apply_write(sink, self.write(history, 0, 3))
            again = self.apply_write(sink, self.write(history, 0, 2))
            assert again.counts.duplicate == again.counts.total == 2
            assert again.position == history.position(3)
            overlapping = self.write(history, 1, 4)
            assert self.apply_write(sink, overlapping).counts.applied == 1
            self.assert_holds(target, history, overlapping)

    def test_redelivery_under_append(self) -> None:
        """The same for rows without a key."""
        history = make_history(*make_writes(0, 1, 2, 3), shape=StreamShape(key="none", blocks=True))
        lane = make_lane("append")
        with self.open_sink() as (target, sink):
            for start, end in ((0, 3), (0, 2), (1, 4), (0, 4)):
                self.apply_write(sink, self.write(history, start, end, lane))
            self.assert_holds(target, history, self.write(history, 0, 4, lane))

    def test_gap_is_refused(self) -> None:
        """A span that starts after the applied position raises DataLoss, and changes nothing."""
        history = make_history(*make_writes(0, 1, 2))
        with self.open_sink() as (target, sink):
            self.apply_write(sink, self.write(history, 0, 1))
            late = self.write(history, 2, 3)
            with pytest.raises(DataLoss):
                self.apply_write(sink, late)
            assert read_position(sink, late.lane) == history.position(1)
            self.assert_holds(target, history, late, 1)

    def test_new_partition_may_start_at_any_offset(self) -> None:
        """A partition that is new to the lane is no gap, wherever it starts."""
        history = make_history(*make_writes(0, 1, 2, 3, 4), shape=replace(SIMPLE, partitions=3))
        with self.open_sink() as (target, sink):
            first = self.write(history, 0, 1)
            written_partitions = [p for p, end in first.span.end.items() if first.span.start[p] < end]
            self.apply_write(sink, replace(first, span=first.span.only(written_partitions)))
            rest = self.write(history, 1, 5)
            assert len([p for p in rest.span.end if p not in written_partitions]) == 2
            self.apply_write(sink, rest)
            self.assert_holds(target, history, rest)

    def test_fail_after_apply_then_retry(self) -> None:
        """If the answer of `apply` was lost, a retry by a new instance applies nothing twice."""
        history = make_history(*make_writes(0, 1), Statement("delete", 0))
        for lane in (make_lane("scd1"), make_lane("append", "log")):
            with self.target() as target:
                sink = Faulty(target.open(), {"apply": [FailAfterApply()]})
                write = self.write(history, 0, 3, lane)
                with pytest.raises(Retryable):
                    self.apply_write(sink, write)
                sink.close()
                again = target.open()
                counts = self.apply_write(again, write).counts
                assert counts.applied == 0
                assert counts.total == write.folded.rows
                self.assert_holds(target, history, write)
                again.close()

    def test_rejects_are_stored_before_the_commit(self) -> None:
        """Rejects are reported before the commit. If they cannot be stored, nothing is applied."""
        self._check_rejects_first("scd1")

    def test_rejects_under_scd2_are_stored_before_the_commit(self) -> None:
        """The same under `scd2`."""
        require("scd2" in self.features().policies, "the sink does not know policy scd2")
        self._check_rejects_first("scd2")

    def _check_rejects_first(self, policy: str) -> None:
        partial = Statement("write", 0, salt=3, mask=1)
        history = make_history(partial, *make_writes(1, 2), shape=replace(SIMPLE, unseen=True))
        with self.open_sink() as (target, sink):
            write = self.write(history, 0, len(history.events), make_lane(policy))
            sink.prepare(write.lane, write.plan)
            with pytest.raises(Fatal, match="disk full"):
                sink.apply([write], fail_on_rejects)
            state = sink.state(write.lane)
            assert state is None or not state.position
            seen: list[Any] = []
            counts = sink.apply([write], lambda lane, rows: seen.append((sink.state(lane), rows)))[write.lane.id].counts
            ((before, rows),) = seen
            assert before == state
            assert counts.rejected == 1
            (error,) = self.to_arrow(rows)[ERROR].to_pylist()
            assert Reject.parse(error).code == RejectCode.INCOMPLETE
            self.assert_holds(target, history, write)
