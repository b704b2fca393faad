"""Shared parts of the sink contract: the factories of an adapter, example histories, and their writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from replicator.domain.errors import Fatal
from replicator.domain.policy.plan import cdc_sequence_columns
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import Position
from replicator.ports.engine import Engine
from replicator.ports.frames import Lane, LaneOutcome, Write
from replicator.ports.sink import Sink, SinkFeatures

from .contract import Contract
from .delivery import DeliveryRun, Plans, SinkTarget, assert_equals_model, assert_rows, make_lane
from .histories import History
from .model_row_transforms import ModelRowTransforms
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
        changes = engine.unite(frames or [self.to_frame(history.frame((), table))], table)
        return Write(lane, plan, engine.fold(changes, plan), history.span(start, end), IDENTITY)

    def apply_write(self, sink: Sink[Any], write: Write[Any]) -> LaneOutcome:
        """Prepare and apply one write without rejects."""
        sink.prepare(write.lane, write.plan)
        return sink.apply([write], refuse_rejects)[write.lane.id]

    def assert_holds(self, target: SinkTarget, history: History, write: Write[Any], end: int | None = None) -> None:
        """The target equals the model after the events before `end`."""
        assert_rows(target, write.lane, write.plan, history, end)
