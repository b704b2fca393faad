"""Filters a batch by its watermark on Spark: `adapters.apply.watermark_filter` for frames on the executors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from replicator.domain.change import ERROR, TS
from replicator.domain.policy.plan import LaneState, is_counting_copies
from replicator.domain.policy.watermark import can_be_late
from replicator.ports.frames import Write

from ..sql.dialect import SPARK
from ..sql.fold import ARRIVAL, LAST
from ..sql.fold_windows import first_places
from ..sql.watermark import LATE, late_select
from .frames import cache_frame, column, filter_rows, keep_parents, quote_name, run_select


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
    """See `adapters.apply.watermark_filter.filter_late`."""
    plan, late, rejected = write.plan, None, 0
    if plan.watermark is None:
        return SparkWatermarkResult(frame)
    rows = _number_rows(frame)
    if can_be_late(plan, write.folded.facts, state):
        rows, late, rejected = _split_late(rows, write, state)
    duplicates = 0
    if plan.table.sequence:
        rows, duplicates = _drop_duplicates(rows, write, state)
    return SparkWatermarkResult(_select_rows(rows, frame), late, rejected, duplicates)


def _number_rows(frame: DataFrame) -> DataFrame:
    """Adds numbers in arrival order, which is the physical order."""
    return keep_parents(frame.withColumn(ARRIVAL, sf.monotonically_increasing_id()), frame)


def _select_rows(rows: DataFrame, frame: DataFrame) -> DataFrame:
    return keep_parents(rows.select([column(name) for name in frame.columns]), rows)


def _split_late(rows: DataFrame, write: Write[Any], state: LaneState) -> tuple[DataFrame, DataFrame, int]:
    """The changes that are not late, the late ones, and their number."""
    micros = f"unix_micros({quote_name(TS)})"

    def select(names: Any) -> str:
        return late_select(write.plan, SPARK, names["rows"], reached=state.max_event_time, lane=write.lane.id, micros=micros)

    marked = cache_frame(keep_parents(run_select(rows.sparkSession, select, {"rows": rows}), rows))
    late = filter_rows(marked, column(LATE).isNotNull())
    bad = keep_parents(late.withColumn(ERROR, column(LATE)), late)
    return filter_rows(marked, column(LATE).isNull()), bad, late.count()


def _drop_duplicates(rows: DataFrame, write: Write[Any], state: LaneState) -> tuple[DataFrame, int]:
    """Every change once, and how many were repeated."""
    counted = is_counting_copies(write.plan, state, write.span)
    select = first_places(write.plan, SPARK, counted=counted)
    marked = cache_frame(
        keep_parents(run_select(rows.sparkSession, lambda names: select(names["rows"]), {"rows": rows}), rows)
    )
    is_first = column(ARRIVAL) == column(LAST)
    return filter_rows(marked, is_first), filter_rows(marked, ~is_first).count()
