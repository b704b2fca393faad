"""PostgreSQL as a target of Spark frames: executors copy the rows, and one transaction applies them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from replicator.domain.change import ERROR, RAW_RECORD_POSITION, RECORD_POSITION
from replicator.domain.errors import EnvironmentProblem, Fatal, ReplicatorError, Retryable
from replicator.domain.policy.plan import LaneState
from replicator.ports.frames import ApplyOutcome, RejectRows, Write

from ....apply.lane_progress import is_applied, refuse_gap
from ....spark.errors import translate_errors
from ....spark.frames import column, map_partitions, to_arrow
from ....spark.rows import SinkOverFrames, collect_rows, drop_applied, filter_late, make_no_rows
from ....spark.session import LazySession, split_options_lazily
from ....spark.types import arrow_schema, from_spark, spark_schema
from ....sql.dialect import SPARK
from ....stores import EventLogSettings, EventStoreSettings
from ..event_log import PostgresEventLog
from ..event_store import PostgresEventLanes
from ..lanes import PostgresLanes, with_row_provider
from ..options import PostgresSettings
from ..row_provider import ArrowRowProvider, RowProvider
from ..shared_staging import CopyResult, SharedCopy, SharedStaging
from ..sink import PostgresSink
from ..target import PostgresTarget
from ..writer import advance_lane

THROUGH_DRIVER = 20_000
"""The driver applies writes of up to this number of folded rows.

A copy job and its staging table cost 0.3 s, as long as the driver needs for these rows (measured). More rows
would fill the driver's memory.
"""


class SparkPostgresLanes(SinkOverFrames):
    """`ports.sink.Sink` over Spark frames, with the transaction, tables and positions of `PostgresLanes`.

    Rows of a write with more than `through_driver` rows stay on the executors, which copy them into a staging
    table. The driver reads only the rejects. Each running task holds one connection.
    """

    def __init__(self, lanes: PostgresLanes, session: LazySession, through_driver: int) -> None:
        super().__init__(lanes, session)
        self._lanes = lanes
        self._through_driver = through_driver
        # Ids of the lanes whose staging tables hold rows. These tables are dropped before the lanes' next write.
        self._staging: set[str] = set()

    def apply(self, writes: Sequence[Write[DataFrame]], reject: RejectRows[DataFrame]) -> ApplyOutcome:
        return self._lanes.apply_writes(self._with_row_providers(writes), self.reject_as_frames(reject))

    def _with_row_providers(self, writes: Sequence[Write[DataFrame]]) -> list[Write[RowProvider]]:
        """The writes, with their rows in this process or in a staging table."""
        targets = [self._lanes.get_target(write) for write in writes]
        lanes = {write.lane.id for write in writes}
        large = any(self._is_large(write) for write in writes)
        if large or lanes & self._staging:
            self._lanes.begin_shared_copy([write.lane for write in writes])
            self._staging -= lanes
        if not large:
            return [with_row_provider(write, ArrowRowProvider(collect_rows(write))) for write in writes]
        self._staging |= lanes
        states = {write.lane.id: self._lanes.state(write.lane) or LaneState() for write in writes}
        out = []
        for write, target in zip(writes, targets, strict=True):
            before = states[write.lane.id]
            refuse_gap(write, before)
            if is_applied(write, before):
                out.append(with_row_provider(write, ArrowRowProvider(make_no_rows(write))))
                continue
            large = self._is_large(write)
            rows = self._copy_shared(write, before, target) if large else ArrowRowProvider(collect_rows(write))
            out.append(with_row_provider(write, rows))
            states[write.lane.id] = advance_lane(write, before)
        return out

    def _is_large(self, write: Write[DataFrame]) -> bool:
        return write.folded.rows > self._through_driver and not write.plan.has_column_versions

    def _copy_shared(self, write: Write[DataFrame], before: LaneState, target: PostgresTarget) -> SharedStaging:
        """The rows in a staging table, copied by the executors. No transaction is open meanwhile."""
        table = self._lanes.create_shared_table(target)
        copy = SharedCopy.for_table(table, target, self._lanes.session.dsn, datetime.now(UTC))
        with translate_errors(f"copying rows of lane {write.lane.id}"):
            names = RAW_RECORD_POSITION if target.event_log else RECORD_POSITION
            frame, trimmed = drop_applied(write, before.position, names)
            watermark_result = filter_late(frame, write, before)
            columns = [column(name) for name in (*RECORD_POSITION, ERROR)]
            late = None if watermark_result.late is None else to_arrow(watermark_result.late.select(columns))
            attempts = copy_in_tasks(watermark_result.rows, copy)
            return SharedStaging(table, before, trimmed + watermark_result.duplicates, attempts, late)


class PostgresSparkSink(SparkPostgresLanes):
    """`PostgresSink` over `pyspark.sql.DataFrame`; its options, and `spark`.

    Tables and positions are the same, so a lane can change between the two sinks.
    """

    def __init__(self, options: PostgresSettings | Mapping[str, Any], through_driver: int = THROUGH_DRIVER) -> None:
        own, session = split_options_lazily(options)
        sink = PostgresSink(own)
        super().__init__(sink, session, through_driver)
        self.features = replace(self.features, explain=partial(sink.explain, fold=SPARK))


def open_spark_event_log(
    options: EventLogSettings | Mapping[str, Any], through_driver: int = THROUGH_DRIVER
) -> SparkPostgresLanes:
    """`PostgresEventLog` for Spark's frames."""
    own, session = split_options_lazily(options)
    return SparkPostgresLanes(PostgresEventLog(own), session, through_driver)


def open_spark_event_lanes(options: EventStoreSettings | Mapping[str, Any]) -> SinkOverFrames:
    """`PostgresEventLanes` for Spark's frames."""
    own, session = split_options_lazily(options)
    return SinkOverFrames(PostgresEventLanes(own), session)


# Tasks of a Spark job copy a frame into a staging table, each one its own partition.

REPORT = pa.schema(
    [
        pa.field("part", pa.int32()),
        pa.field("attempt", pa.int64()),
        pa.field("rows", pa.int64()),
        pa.field("bound", pa.int64()),
        pa.field("truncates", pa.int64()),
        pa.field("rejects", pa.binary()),
        pa.field("failure", pa.string()),
        pa.field("sentence", pa.string()),
        pa.field("next_step", pa.string()),
    ]
)
"""The report of a task to the driver, one row: a `CopyResult` with its rejects as an Arrow stream, or its
failure."""

COUNTS = ("part", "attempt", "rows", "bound", "truncates")

FAILURES = {kind.__name__: kind for kind in (Retryable, Fatal, EnvironmentProblem)}


def copy_in_tasks(frame: DataFrame, copy: SharedCopy) -> list[CopyResult]:
    """The results of the attempts that Spark counts as successful, one per partition of the frame that has rows."""
    schema = arrow_schema(frame.schema)

    def pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return report_copy(copy, (from_spark(pa.Table.from_batches([batch]), schema) for batch in batches))

    # The copying stage is the last of the job, so each of its tasks has exactly one attempt in the result.
    reports = map_partitions(frame, pieces, spark_schema(REPORT)).toArrow().to_pylist()
    for row in reports:
        if row["failure"]:
            raise FAILURES[row["failure"]](row["sentence"], next_step=row["next_step"])
    results = []
    for row in reports:
        counts = {name: int(row[name]) for name in COUNTS}
        rejects = None if row["rejects"] is None else pa.ipc.open_stream(row["rejects"]).read_all()
        results.append(CopyResult(**counts, rejects=rejects))
    return results


def report_copy(copy: SharedCopy, pieces: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    """Runs in a task, and reports an error of the database as a result.

    If the task raised it, Spark would repeat the task for every error, and would show the driver's message,
    which may quote a row.
    """
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("rows are copied in the tasks of a job only")
    part, attempt = context.partitionId(), context.taskAttemptId()
    try:
        copy_result = copy.run(pieces, part, attempt)
    except ReplicatorError as error:
        kind = next(name for name, kind in reversed(FAILURES.items()) if isinstance(error, kind))
        yield _to_report({"failure": kind, "sentence": error.sentence, "next_step": error.next_step})
        return
    if copy_result is not None:
        counts: dict[str, object] = {name: getattr(copy_result, name) for name in COUNTS}
        rejects = copy_result.rejects
        if rejects is not None:
            out = pa.BufferOutputStream()
            with pa.ipc.new_stream(out, rejects.schema) as stream:
                stream.write_table(rejects)
            counts["rejects"] = bytes(out.getvalue())
        yield _to_report(counts)


def _to_report(row: dict[str, object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{**dict.fromkeys(REPORT.names), **row}], REPORT)
