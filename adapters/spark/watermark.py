"""What a watermark lets in, of Spark's frames: `adapters.sql.local_watermark` on the executors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from replicator.domain.change import ERROR, TS
from replicator.domain.plan import LaneState, copies_count
from replicator.domain.watermark import can_be_late
from replicator.ports.frames import Write

from ..sql.dialect import SPARK
from ..sql.fold import LAST, PLACE
from ..sql.fold_windows import first_places
from ..sql.watermark import LATE, late_select
from .frames import column, derived, kept, quoted, selected, where


@dataclass(frozen=True)
class Admitted:
    """The changes to write; those that are late, with `_error`, or None, and how many these are; and how many came twice."""

    rows: DataFrame
    late: DataFrame | None = None
    rejected: int = 0
    duplicates: int = 0


def admitted(frame: DataFrame, write: Write[Any], state: LaneState) -> Admitted:
    """As `adapters.sql.local_watermark.admitted`."""
    plan, late, rejected = write.plan, None, 0
    if plan.watermark is None:
        return Admitted(frame)
    rows = _placed(frame)
    if can_be_late(plan, write.folded.facts, state):
        rows, late, rejected = _parted(rows, write, state)
    duplicates = 0
    if plan.table.sequence:
        rows, duplicates = _distinct(rows, write, state)
    return Admitted(_only(rows, frame), late, rejected, duplicates)


def _placed(frame: DataFrame) -> DataFrame:
    """With places in arrival order, which is the physical one."""
    return derived(frame.withColumn(PLACE, sf.monotonically_increasing_id()), frame)


def _only(rows: DataFrame, frame: DataFrame) -> DataFrame:
    return derived(rows.select([column(name) for name in frame.columns]), rows)


def _parted(rows: DataFrame, write: Write[Any], state: LaneState) -> tuple[DataFrame, DataFrame, int]:
    """The changes that are not late, those that are, and how many these are."""
    micros = f"unix_micros({quoted(TS)})"

    def select(names: Any) -> str:
        return late_select(write.plan, SPARK, names["rows"], reached=state.reached, lane=write.lane.id, micros=micros)

    marked = kept(derived(selected(rows.sparkSession, select, {"rows": rows}), rows))
    late = where(marked, column(LATE).isNotNull())
    bad = derived(late.withColumn(ERROR, column(LATE)), late)
    return where(marked, column(LATE).isNull()), bad, late.count()


def _distinct(rows: DataFrame, write: Write[Any], state: LaneState) -> tuple[DataFrame, int]:
    """Every change once, and how many came twice."""
    counted = copies_count(write.plan, state, write.span)
    select = first_places(write.plan, SPARK, counted=counted)
    marked = kept(derived(selected(rows.sparkSession, lambda names: select(names["rows"]), {"rows": rows}), rows))
    is_first = column(PLACE) == column(LAST)
    return where(marked, is_first), where(marked, ~is_first).count()
