"""The rows of a write on the executors: changes that are new and in time, as the rows frame of `adapters.apply`.

The same rules as in `adapters.apply.lane_progress` and `adapters.apply.rows_frame`, as SQL expressions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from replicator.domain import change
from replicator.domain.policy.late_changes import can_be_late
from replicator.domain.policy.plan import (
    CDC_APPLIED_AT,
    CDC_DELETED,
    CDC_DELETED_AT,
    EVENT_ID,
    START_AT,
    ApplyPlan,
    LaneState,
    is_counting_copies,
)
from replicator.domain.policy.policies import get_start_type
from replicator.domain.position import Position
from replicator.ports.frames import ApplyOutcome, Lane, RejectRows, Write
from replicator.ports.sink import Sink

from ..apply.rows_frame import copied_columns, end_columns
from ..arrow.key_change import can_have_foreign_deletes
from ..sql.dialect import SPARK
from ..sql.fold import ARRIVAL, LAST, LATE, first_windows, late_select
from ..sql.reconcile import missing_values_reject, old_key_columns
from .errors import translate_errors
from .frames import cache_frame, column, filter_rows, from_arrow, keep_parents, quote_name, run_select, to_arrow
from .session import LazySession
from .types import arrow_schema, spark_type, value_expression

# Changes that the lane has applied.


def drop_applied(
    write: Write[DataFrame], position: Position, names: tuple[str, str, str] = change.RECORD_POSITION
) -> tuple[DataFrame, int]:
    """The rows at or above `position`, and the number of rows below. A job runs only if the write starts below
    the position.

    `names`: the columns with topic, partition and offset.
    """
    frame = write.folded.frame
    again = {p: o for p, o in position.items() if write.span.start.get(p, o) < o}
    if not again:
        return frame, 0
    topic, number, at = (column(name) for name in names)
    below = sf.lit(False)
    for partition, offset in again.items():
        below = below | ((topic == partition.topic) & (number == partition.partition) & (at < offset))
    return filter_rows(frame, ~below), frame.filter(below).count()


# Changes that are late by the watermark.


@dataclass(frozen=True)
class SparkWatermarkResult:
    """The result of the filter.

    - `rows`: the changes to write.
    - `late`: the late changes with `_error`, or None; `rejected` is their number.
    - `duplicates`: how many changes were repeated.
    """

    rows: DataFrame
    late: DataFrame | None = None
    rejected: int = 0
    duplicates: int = 0


def filter_late(frame: DataFrame, write: Write[Any], state: LaneState) -> SparkWatermarkResult:
    """See `adapters.apply.lane_progress.filter_late`."""
    plan, late, rejected_count, duplicates = write.plan, None, 0, 0
    if plan.watermark is None:
        return SparkWatermarkResult(frame)
    # In arrival order, which is the physical order.
    rows = keep_parents(frame.withColumn(ARRIVAL, sf.monotonically_increasing_id()), frame)
    if can_be_late(plan, write.folded.facts, state):
        micros = f"unix_micros({quote_name(change.TS)})"

        def select_late(names: Any) -> str:
            return late_select(plan, SPARK, names["rows"], reached=state.max_event_time, lane=write.lane.id, micros=micros)

        marked = cache_frame(keep_parents(run_select(rows.sparkSession, select_late, {"rows": rows}), rows))
        bad = filter_rows(marked, column(LATE).isNotNull())
        late, rejected_count = keep_parents(bad.withColumn(change.ERROR, column(LATE)), bad), bad.count()
        rows = filter_rows(marked, column(LATE).isNull())
    if plan.table.sequence:
        counted = is_counting_copies(plan, state, write.span)

        def select_first(names: Any) -> str:
            return first_windows(plan, SPARK, names["rows"], counted=counted)

        marked = cache_frame(keep_parents(run_select(rows.sparkSession, select_first, {"rows": rows}), rows))
        is_first = column(ARRIVAL) == column(LAST)
        rows, duplicates = filter_rows(marked, is_first), filter_rows(marked, ~is_first).count()
    timely_rows = keep_parents(rows.select([column(name) for name in frame.columns]), rows)
    return SparkWatermarkResult(timely_rows, late, rejected_count, duplicates)


# The rows frame.


def to_rows(folded: DataFrame, plan: ApplyPlan, applied_at: datetime) -> DataFrame:
    """The rows frame with the columns of `adapters.apply.rows_frame.to_rows`, in Spark's types."""
    extra = _computed_columns(plan, applied_at)
    extra |= {stored: column(sent) for stored, sent in copied_columns(plan).items()}
    extra |= {c.name: sf.lit(None).cast(spark_type(c.type)) for c in plan.target if c.name in end_columns(plan)}
    clears = plan.truncates and not plan.has_column_versions
    rows = folded.filter(column(change.OP) != change.Op.TRUNCATE.value) if clears else folded
    needed = column(change.UNCHANGED)
    if plan.table.ignore_null or plan.soft_deletes:
        spare = sf.array_contains(needed, change.KEEP_EXISTING) & column(change.KEY_CHANGE_DELETE).isNull()
        needed = sf.when(spare, sf.lit(None)).otherwise(needed)
    old_keys = []
    for key, old in zip(plan.table.keys, old_key_columns(plan), strict=True):
        before = sf.expr(f"{quote_name(change.OLD_KEY)}.{quote_name(key)}")
        if can_have_foreign_deletes(plan):
            before = sf.when(column(change.KEY_CHANGE_DELETE), column(key)).otherwise(before)
        old_keys.append(before.alias(old))
    columns = [
        column(change.OP),
        *(extra.get(c.name, column(c.name)).alias(c.name) for c in plan.target),
        needed.alias(change.UNCHANGED),
        column(change.RESET),
        *old_keys,
        *(column(name) for name in change.RECORD_POSITION),
    ]
    return keep_parents(rows.select(columns), folded)


def _computed_columns(plan: ApplyPlan, applied_at: datetime) -> dict[str, Column]:
    columns = {
        EVENT_ID: sf.concat_ws("-", *(column(name).cast("string") for name in change.RECORD_POSITION)),
        CDC_APPLIED_AT: sf.timestamp_micros(sf.lit(round(applied_at.timestamp() * 1_000_000))),
    }
    if plan.soft_deletes:
        is_delete = column(change.OP) == change.Op.DELETE.value
        is_incomplete = is_delete & column(change.UNCHANGED).isNotNull()
        columns[CDC_DELETED] = sf.when(is_incomplete, sf.lit(None).cast("boolean")).otherwise(is_delete)
        columns[CDC_DELETED_AT] = sf.when(is_delete, column(change.TS))
    start = get_start_type(plan.table) if plan.history else None
    if start is not None:
        columns[START_AT] = value_expression(column(change.sequence_columns(1)[0]), start)
    return columns


# Rejected rows.

NAMES = "{names}"


def incomplete_reason() -> Column:
    """The reason why a row cannot be completed, with the text of `sql.reconcile.missing_values_reject`."""
    before, after = str(missing_values_reject([NAMES])).split(NAMES)
    reason = sf.concat(sf.lit(before), sf.array_join(column(change.UNCHANGED), ", "), sf.lit(after))
    return sf.when(sf.size(column(change.UNCHANGED)) == 0, sf.lit(str(missing_values_reject([])))).otherwise(reason)


def to_rejects(*rejected_frames: DataFrame | None) -> DataFrame | None:
    """The positions of rejected rows, with `_error`; None when there are none."""
    columns = [column(name) for name in (*change.RECORD_POSITION, change.ERROR)]
    frames = [frame for frame in rejected_frames if frame is not None]
    if not frames:
        return None
    return keep_parents(reduce(DataFrame.unionAll, [frame.select(columns) for frame in frames]), *frames)


# A sink that gets the rows in the driver.


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
