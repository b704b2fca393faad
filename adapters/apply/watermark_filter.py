"""Filters a batch by its watermark, in process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import ERROR, OP, PARTITION, TOPIC, TS
from replicator.domain.policy.late_changes import can_be_late
from replicator.domain.policy.plan import LaneState, is_counting_copies
from replicator.domain.position import TopicPartition
from replicator.ports.frames import Write

from ..duckdb.session import open_session
from ..sql.dialect import DUCKDB
from ..sql.fold import ARRIVAL
from ..sql.watermark import LATE, late_select
from .distinct_changes import drop_duplicates


@dataclass(frozen=True)
class WatermarkResult:
    """`rows`: the changes to write. `late`: the late changes with `_error`, or None. `duplicates`: how many
    were repeated."""

    rows: pa.Table
    late: pa.Table | None = None
    duplicates: int = 0

    @property
    def rejected(self) -> int:
        """The number of late changes."""
        return 0 if self.late is None else int(self.late.num_rows)


def filter_late(frame: pa.Table, write: Write[Any], state: LaneState) -> WatermarkResult:
    """Splits `frame`, the changes above the position of `state`, by the watermark of the write's plan.

    Late changes are removed before duplicates: a late change is rejected again when it is sent again.
    """
    plan, late = write.plan, None
    if plan.watermark is None:
        return WatermarkResult(frame)
    if can_be_late(plan, write.folded.facts, state):
        frame, late = _split_late(frame, write, state.max_event_time)
    rows = drop_duplicates(frame, plan, counted=is_counting_copies(plan, state, write.span))
    return WatermarkResult(rows, late, frame.num_rows - rows.num_rows)


def _split_late(frame: pa.Table, write: Write[Any], reached: Mapping[TopicPartition, int]) -> tuple[pa.Table, pa.Table]:
    narrow = frame.select([OP, TOPIC, PARTITION]).append_column(TS, frame[TS].cast(pa.int64()))
    narrow = narrow.append_column(ARRIVAL, pa.array(range(frame.num_rows), pa.int64()))
    select = late_select(write.plan, DUCKDB, "changes", reached=reached, lane=write.lane.id)
    with open_session() as connection:
        connection.register("changes", narrow)
        why = connection.sql(f'SELECT "{LATE}" FROM ({select}) ORDER BY "{ARRIVAL}"').to_arrow_table()[LATE]
    good = pc.is_null(why)
    bad = frame.filter(pc.invert(good)).drop_columns([ERROR])
    return frame.filter(good), bad.append_column(ERROR, why.drop_null())
