"""Event stores as targets of Spark's frames, through in-process sinks on the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrame

from replicator.domain.policy.plan import ApplyPlan, LaneState
from replicator.ports.frames import ApplyOutcome, Lane, RejectRows, Write
from replicator.ports.sink import Sink

from ..sinks.delta.event_lanes import DeltaEventLanes
from ..sinks.postgres.event_lanes import PostgresEventLanes
from ..spark.errors import translate_errors
from ..spark.frames import from_arrow, to_arrow
from ..spark.session import LazySession, split_options_lazily
from ..spark.types import arrow_schema


def delta_lanes(options: Mapping[str, object]) -> DriverSink:
    """`DeltaEventLanes` for Spark's frames. delta-rs commits on the driver."""
    own, session = split_options_lazily(options)
    return DriverSink(DeltaEventLanes(own), session)


def postgres_lanes(options: Mapping[str, object]) -> DriverSink:
    """`PostgresEventLanes` for Spark's frames."""
    own, session = split_options_lazily(options)
    return DriverSink(PostgresEventLanes(own), session)


class DriverSink:
    """`ports.sink.Sink` over Spark frames: the driver collects the rows of a write, and an in-process sink
    commits them.

    For targets that need every row in order.
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
        def reject_rows(lane: Lane, rows: pa.Table) -> None:
            reject(lane, from_arrow(self._session.spark, rows))

        return self._sink.apply([_collect_rows(write) for write in writes], reject_rows)

    def skip(self, lane: Lane, state: LaneState) -> None:
        self._sink.skip(lane, state)

    def reset(self, lane: Lane) -> None:
        self._sink.reset(lane)

    def close(self) -> None:
        self._sink.close()


def _collect_rows(write: Write[DataFrame]) -> Write[pa.Table]:
    frame = write.folded.frame
    with translate_errors(f"collecting rows of {write.lane.id}"):
        rows = to_arrow(frame) if write.folded.rows else arrow_schema(frame.schema).empty_table()
    return Write(
        write.lane,
        write.plan,
        replace(write.folded, frame=rows),
        write.span,
        write.identity,
        write.at,
        write.complete,
        write.out_of_band,
    )
