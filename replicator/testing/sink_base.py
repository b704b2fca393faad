"""Shared parts of the sink contract: the factories of an adapter, example histories, and their writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from replicator.domain.change import ERROR
from replicator.domain.errors import DataLoss, Fatal, Reject, RejectCode, Retryable
from replicator.domain.policy.plan import cdc_sequence_columns
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import Position, Span
from replicator.ports.engine import Engine
from replicator.ports.frames import Lane, LaneOutcome, Write
from replicator.ports.sink import Sink, SinkFeatures

from .contract import Contract, require
from .delivery import DeliveryRun, Plans, SinkTarget, assert_equals_model, assert_rows, make_lane
from .fakes import FailAfterApply, Faulty
from .histories import History
from .model_transforms import ModelRowTransforms
from .source import Statement, StreamShape

T = TypeVar("T")
SIMPLE = StreamShape(values=("text", "int"), tombstones=False)
IDENTITY = {"cdc.public.items": "topic-id-1"}


def make_history(*statements: Statement, shape: StreamShape = SIMPLE) -> History:
    """An example history."""
    return History(shape, statements)


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


class SinkBase(Contract):
    """The factories of an adapter, and helpers of the tests."""

    def new_target(self) -> SinkTarget:
        """A fresh, empty target."""
        raise NotImplementedError

    def new_engine(self) -> Engine[Any]:
        """An engine whose frames the sink accepts."""
        raise NotImplementedError

    def to_frame(self, frame: pa.Table) -> Any:
        """A `pyarrow.Table` as a frame of the engine."""
        return frame

    def to_arrow(self, frame: Any) -> pa.Table:
        """A frame of the engine as a `pyarrow.Table`."""
        return frame

    @contextmanager
    def target(self) -> Iterator[SinkTarget]:
        """A fresh target that is closed afterwards."""
        target = self.new_target()
        try:
            yield target
        finally:
            target.close()

    def features(self) -> SinkFeatures:
        """The features of the sink."""
        with self.target() as target:
            sink = target.open()
            sink.close()
            return sink.features

    def check_model(
        self,
        histories: st.SearchStrategy[History],
        policy: str,
        plans: Plans = plan_for,
        share: int = 1,
        wanted: ModelRowTransforms | None = None,
    ) -> None:
        """Random histories end like the model, and every change is accounted for. `wanted`: the row transforms of
        the plans."""

        @self.for_all(share, history=histories)
        def check(history: History) -> None:
            with self.target() as target:
                engine, frames = self.new_engine(), (self.to_frame, self.to_arrow)
                delivering = DeliveryRun(
                    engine, target, history, policy, plans, wanted, to_frame=frames[0], to_arrow=frames[1]
                )
                delivering.run()
                assert_equals_model(delivering)

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


# Positions, repetitions and rejects


class SinkPositions(SinkBase):
    """Positions, repetitions, rejects."""

    def test_state_of_an_unprepared_lane_is_none(self) -> None:
        """`state` of a lane that was never prepared is None."""
        with self.target() as target:
            sink = target.open()
            assert sink.state(make_lane("scd1")) is None
            sink.close()

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
        with self.target() as target:
            sink = target.open()
            self.apply_write(sink, self.write(history, 0, 1))
            empty = replace(self.write(history, 1, 1), span=Span(history.position(1), move_position(history.position(1), 5)))
            assert self.apply_write(sink, empty).counts.total == 0
            state = sink.state(empty.lane)
            assert state is not None
            assert state.position == empty.span.end
            self.assert_holds(target, history, empty, 1)
            sink.close()

    def test_stale_write_advances_position(self) -> None:
        """A write whose rows are all known commits its position, too."""
        history = make_history(*make_writes(0, 1), Statement("resend", salt=1))
        with self.target() as target:
            sink = target.open()
            self.apply_write(sink, self.write(history, 0, 2))
            write = self.write(history, 2, 4)
            counts = self.apply_write(sink, write).counts
            state = sink.state(write.lane)
            assert state is not None
            assert state.position == history.position(4)
            assert counts.applied == 0
            assert counts.total == 2
            self.assert_holds(target, history, write)
            sink.close()

    def test_redelivery(self) -> None:
        """An applied span changes nothing. Only the new part of an overlapping span is applied, and the overlap counts
        as duplicate."""
        history = make_history(*make_writes(0, 1, 2, 3))
        with self.target() as target:
            sink = target.open()
            self.apply_write(sink, self.write(history, 0, 3))
            again = self.apply_write(sink, self.write(history, 0, 2))
            assert again.counts.duplicate == again.counts.total == 2
            assert again.position == history.position(3)
            overlapping = self.write(history, 1, 4)
            assert self.apply_write(sink, overlapping).counts.applied == 1
            self.assert_holds(target, history, overlapping)
            sink.close()

    def test_redelivery_under_append(self) -> None:
        """The same for rows without a key."""
        history = make_history(*make_writes(0, 1, 2, 3), shape=StreamShape(key="none", blocks=True))
        lane = make_lane("append")
        with self.target() as target:
            sink = target.open()
            for start, end in ((0, 3), (0, 2), (1, 4), (0, 4)):
                self.apply_write(sink, self.write(history, start, end, lane))
            self.assert_holds(target, history, self.write(history, 0, 4, lane))
            sink.close()

    def test_gap_is_refused(self) -> None:
        """A span that starts after the applied position raises DataLoss, and changes nothing."""
        history = make_history(*make_writes(0, 1, 2))
        with self.target() as target:
            sink = target.open()
            self.apply_write(sink, self.write(history, 0, 1))
            late = self.write(history, 2, 3)
            with pytest.raises(DataLoss):
                self.apply_write(sink, late)
            state = sink.state(late.lane)
            assert state is not None
            assert state.position == history.position(1)
            self.assert_holds(target, history, late, 1)
            sink.close()

    def test_new_partition_may_start_at_any_offset(self) -> None:
        """A partition that is new to the lane is no gap, wherever it starts."""
        history = make_history(*make_writes(0, 1, 2, 3, 4), shape=replace(SIMPLE, partitions=3))
        with self.target() as target:
            sink = target.open()
            first = self.write(history, 0, 1)
            written_partitions = [p for p, end in first.span.end.items() if first.span.start[p] < end]
            self.apply_write(sink, replace(first, span=first.span.only(written_partitions)))
            rest = self.write(history, 1, 5)
            assert len([p for p in rest.span.end if p not in written_partitions]) == 2
            self.apply_write(sink, rest)
            self.assert_holds(target, history, rest)
            sink.close()

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
        with self.target() as target:
            sink = target.open()
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
            sink.close()
