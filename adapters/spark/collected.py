"""Sinks that take tables of this process, given Spark's frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from replicator.domain.plan import ApplyPlan, LaneState
from replicator.ports.frames import Applied, Lane, RejectRows, Write
from replicator.ports.sink import Sink, SinkCapabilities

from .errors import translating
from .frames import from_arrow, to_arrow


class Collected:
    """`ports.sink.Sink` over Spark's frames, by a sink over `pyarrow.Table`: rows that were folded on the executors come to
    the driver, which applies them."""

    frame = DataFrame

    def __init__(self, sink: Sink[pa.Table], spark: SparkSession) -> None:
        self._sink = sink
        self._spark = spark
        self.capabilities: SinkCapabilities = sink.capabilities

    def prepare(self, lane: Lane, plan: ApplyPlan) -> None:
        """See `ports.sink.Sink.prepare`."""
        self._sink.prepare(lane, plan)

    def state(self, lane: Lane) -> LaneState | None:
        """See `ports.sink.Sink.state`."""
        return self._sink.state(lane)

    def apply(self, writes: Sequence[Write[DataFrame]], reject: RejectRows[DataFrame]) -> Applied:
        """See `ports.sink.Sink.apply`."""

        def refused(lane: Lane, rows: pa.Table) -> None:
            reject(lane, from_arrow(self._spark, rows))

        return self._sink.apply([_collected(write) for write in writes], refused)

    def skip(self, lane: Lane, state: LaneState) -> None:
        """See `ports.sink.Sink.skip`."""
        self._sink.skip(lane, state)

    def reset(self, lane: Lane) -> None:
        """See `ports.sink.Sink.reset`."""
        self._sink.reset(lane)

    def close(self) -> None:
        """See `ports.sink.Sink.close`."""
        self._sink.close()


def _collected(write: Write[DataFrame]) -> Write[pa.Table]:
    folded = write.folded
    with translating(f"collecting rows of {write.lane.id}"):
        table = to_arrow(folded.frame)
    return Write(write.lane, write.plan, replace(folded, frame=table), write.span, write.identity)
