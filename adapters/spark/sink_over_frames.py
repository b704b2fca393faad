"""An in-process sink as a target of Spark's frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrame

from replicator.domain.policy.plan import ApplyPlan, LaneState
from replicator.ports.frames import ApplyOutcome, Lane, RejectRows, Write
from replicator.ports.sink import Sink

from .errors import translate_errors
from .frames import from_arrow, to_arrow
from .session import LazySession
from .types import arrow_schema


class SinkOverFrames:
    """`ports.sink.Sink` over Spark frames: the driver collects the rows of a write, and an in-process sink
    commits them.

    For targets that need every row in order. A subclass may supply the rows in another way.
    """

    frame = DataFrame

    def __init__(self, sink: Sink[pa.Table], session: LazySession) -> None:
        self._sink = sink
        self._session = session
        self.features = replace(sink.features, bulk_load=None)  # It takes other frames.

    def prepare(self, lane: Lane, plan: ApplyPlan) -> None:
        self._sink.prepare(lane, plan)

    def state(self, lane: Lane) -> LaneState | None:
        return self._sink.state(lane)

    def apply(self, writes: Sequence[Write[DataFrame]], reject: RejectRows[DataFrame]) -> ApplyOutcome:
        collected = [replace(write, folded=replace(write.folded, frame=collect_rows(write))) for write in writes]
        return self._sink.apply(collected, self.reject_as_frames(reject))

    def reject_as_frames(self, reject: RejectRows[DataFrame]) -> RejectRows[pa.Table]:
        def reject_rows(lane: Lane, rows: pa.Table) -> None:
            reject(lane, from_arrow(self._session.spark, rows))

        return reject_rows

    def skip(self, lane: Lane, state: LaneState) -> None:
        self._sink.skip(lane, state)

    def reset(self, lane: Lane) -> None:
        self._sink.reset(lane)

    def close(self) -> None:
        self._sink.close()


def collect_rows(write: Write[DataFrame]) -> pa.Table:
    """The folded rows of a write, in the driver."""
    if not write.folded.rows:
        return make_no_rows(write)
    with translate_errors(f"collecting rows of lane {write.lane.id}"):
        return to_arrow(write.folded.frame)


def make_no_rows(write: Write[DataFrame]) -> pa.Table:
    """No rows, with the columns of the write."""
    return arrow_schema(write.folded.frame.schema).empty_table()
