"""The changes of a batch that are new to a lane, and the state of the lane after them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import ERROR, OP, PARTITION, RECORD_POSITION, TOPIC, TS, sequence_columns
from replicator.domain.errors import DataLoss, describe_reload_or_skip
from replicator.domain.policy.late_changes import advance_event_times, can_be_late, update_delete_horizons
from replicator.domain.policy.plan import (
    ApplyPlan,
    Counts,
    Facts,
    LaneState,
    Truncate,
    find_highest,
    is_counting_copies,
    merge_truncates,
)
from replicator.domain.position import Position
from replicator.domain.sequence import Sequence
from replicator.ports.frames import Write

from ..duckdb.session import open_session, to_duckdb_types
from ..sql.dialect import DUCKDB
from ..sql.fold import ARRIVAL, COPY, LAST, LATE, change_identity, first_select, late_select

# Redelivery: records that a lane has applied before, and records that are missing in front of a write.


def refuse_gap(write: Write[Any], state: LaneState) -> None:
    """Raises DataLoss when records between the lane's position and the write are missing."""
    for first in write.span.gaps(state.position):
        lane, start = write.lane, write.span.start[first]
        raise DataLoss(
            f"lane {lane.id} is at {first} offset {state.position[first]}, but the batch starts at {start}",
            next_step=describe_reload_or_skip(lane.id, f"{first.topic}:{first.partition}:{start}"),
        )


def is_applied(write: Write[Any], state: LaneState) -> bool:
    """True when nothing of the write is above the lane's position."""
    return not write.out_of_band and not write.span.after(state.position).end


def drop_applied(
    frame: pa.Table, write: Write[Any], position: Position, names: tuple[str, str, str] = RECORD_POSITION
) -> tuple[pa.Table, int]:
    """The rows of the write in `frame` at or above `position`, and the number of rows below it. No row of an out-of-band
    write is below.

    `names`: the columns with topic, partition and offset.
    """
    rows = frame
    for partition, applied in position.items():
        if write.span.start.get(partition, applied) < applied:
            topic, number, offset = (rows[name] for name in names)
            mine = pc.and_(pc.equal(topic, partition.topic), pc.equal(number, partition.partition))
            rows = rows.filter(pc.invert(pc.and_(mine, pc.less(offset, applied))))
    return rows, frame.num_rows - rows.num_rows


# The changes of a batch that are not too late for its watermark.


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
        narrow = frame.select([OP, TOPIC, PARTITION]).append_column(TS, frame[TS].cast(pa.int64()))
        narrow = narrow.append_column(ARRIVAL, pa.array(range(frame.num_rows), pa.int64()))
        select = late_select(plan, DUCKDB, "changes", reached=state.max_event_time, lane=write.lane.id)
        with open_session() as connection:
            connection.register("changes", narrow)
            why = connection.sql(f'SELECT "{LATE}" FROM ({select}) ORDER BY "{ARRIVAL}"').to_arrow_table()[LATE]
        good = pc.is_null(why)
        late = frame.filter(pc.invert(good)).drop_columns([ERROR]).append_column(ERROR, why.drop_null())
        frame = frame.filter(good)
    rows = drop_duplicates(frame, plan, counted=is_counting_copies(plan, state, write.span))
    return WatermarkResult(rows, late, frame.num_rows - rows.num_rows)


# The changes that are not repeated, for plans that store every change.


def drop_duplicates(changes: pa.Table, plan: ApplyPlan, *, counted: bool) -> pa.Table:
    """Keeps the first of the changes with equal key and sequence (without a key: with equal values and
    sequence).

    `counted`: of changes that differ only in their count, keeps as many as one reading of the log contained.
    """
    if not plan.table.sequence or is_ordered(changes, plan):
        return changes
    names = {*change_identity(plan, counted=counted), *sequence_columns(plan.table.sequence), TOPIC, PARTITION} - {COPY}
    narrow = to_duckdb_types(changes.select(sorted(names)))
    narrow = narrow.append_column(ARRIVAL, pa.array(range(changes.num_rows), pa.int64()))
    with open_session() as connection:
        connection.register("changes", narrow)
        first = connection.sql(first_select(plan, DUCKDB, "changes", counted=counted)).to_arrow_table()
    return changes.take(first[LAST])


def is_ordered(changes: pa.Table, plan: ApplyPlan) -> bool:
    """True when every change is above the one before it. Then it is above all earlier changes of its key, too."""
    if changes.num_rows < 2:
        return True
    columns = [changes[n].combine_chunks() for n in sequence_columns(plan.table.sequence)]
    above, equal = pa.scalar(False), pa.scalar(True)
    for column in columns:
        left, right = column[:-1], column[1:]
        above = pc.or_(above, pc.and_(equal, pc.greater(right, left)))
        equal = pc.and_(equal, pc.equal(right, left))
    return bool(pc.all(above).as_py())


# The state of a lane after a write, and the truncates that a write brings. Functions of facts: they read no rows.


def advance_state(
    plan: ApplyPlan, state: LaneState, facts: Facts, recorded: Sequence | None, at: datetime | None = None
) -> LaneState:
    """The lane's state after a write at time `at`, without its position.

    `recorded`: the highest sequence that was stored in the side table. A pending purge is done.
    """
    return replace(
        state,
        max_sequence=find_highest(state.max_sequence, facts.highest),
        truncated_at=find_highest(state.truncated_at, facts.truncated_at),
        max_side_table_sequence=find_highest(state.max_side_table_sequence, recorded),
        max_event_time=advance_event_times(plan, facts, state),
        truncates=merge_truncates(state.truncates, facts.truncates),
        delete_horizons=update_delete_horizons(plan, facts, state, at),
        purge_pending=False,
    )


def advance_position(state: LaneState, write: Write[Any]) -> LaneState:
    """`state` with the position after the write, and the write's topics and rule."""
    identity = tuple(sorted({**dict(state.identity), **write.identity}.items()))
    position = state.position.advanced_to(write.span.end)
    return replace(state, position=position, identity=identity, rule=write.plan.rule)


def find_new_truncates(plan: ApplyPlan, facts: Facts, state: LaneState) -> list[Truncate]:
    """The truncates that the target has not applied, by sequence. At most one, except for a plan with `history`."""
    if plan.history is not None:
        applied_sequences = {truncate.sequence for truncate in state.truncates}
        return [truncate for truncate in facts.truncates if truncate.sequence not in applied_sequences]
    if facts.truncated_at is None or not is_above(facts.truncated_at, state.truncated_at):
        return []
    return [Truncate(facts.truncated_at, facts.truncate_time)]


def find_late_truncates(plan: ApplyPlan, facts: Facts, state: LaneState) -> list[Sequence]:
    """The new truncates at or below the highest applied sequence."""
    return [
        truncate.sequence
        for truncate in find_new_truncates(plan, facts, state)
        if state.max_sequence is not None and truncate.sequence <= state.max_sequence
    ]


def count_truncates(plan: ApplyPlan, facts: Facts, state: LaneState, truncates: int) -> Counts:
    """The counts of the truncates of a write."""
    new = find_new_truncates(plan, facts, state)
    if plan.history is not None:
        return Counts(applied=len(new), duplicate=truncates - len(new))
    if new or facts.truncated_at is None:
        return Counts(applied=truncates)
    return Counts(duplicate=truncates) if facts.truncated_at == state.truncated_at else Counts(superseded=truncates)


def is_above(sequence: Sequence | None, floor: Sequence | None) -> bool:
    """True when there is a sequence, and it is above the floor, if there is one."""
    return sequence is not None and (floor is None or sequence > floor)
