"""Stages 2 to 4 for tables that store every version of a row."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable

from replicator.domain.policy.plan import Counts, LaneState, has_overlap, merge_truncates
from replicator.ports.frames import Write

from ...apply.conform import REJECTED, require_values, to_rejects
from ...apply.lane_progress import advance_state, count_truncates, find_late_truncates, find_new_truncates
from ...apply.scd2_in_process import Scd2Result, compute_versions
from ...delta.merge import write_stage
from ...delta.partitions import partition_columns, split_unnameable
from ...delta.tables import read_schema
from .absorbed_changes import DeltaAbsorbedChanges
from .merge_candidates import read_candidate_versions
from .staged_write import StagedWrite


@dataclass(frozen=True, slots=True)
class ConformedRows:
    """The rows frame of a write, divided by the types of the table.

    - `frame`: the folded frame.
    - `conforming`: rows that fit, with `_place` (their numbers in `frame`).
    - `misfits`: rows that do not fit, as `delta.types.REJECTED`.
    - `trimmed`: how many rows were applied before.
    - `truncates`: how many truncates are not rows.
    """

    frame: pa.Table
    conforming: pa.Table
    misfits: pa.Table
    trimmed: int
    truncates: int


class DeltaScd2:
    """Stages the writes of scd2 lanes."""

    def __init__(self, absorbed_changes: DeltaAbsorbedChanges) -> None:
        self._absorbed_changes = absorbed_changes

    def stage(self, snapshot: DeltaTable, state: LaneState, write: Write[pa.Table], rows: ConformedRows) -> StagedWrite:
        """See `sinks.delta.lane.WriteStages.stage`. Absorbed changes are stored on return."""
        plan, facts = write.plan, write.folded.facts
        good, holes = require_values(rows.conforming, plan, read_schema(snapshot))
        good, nameless = split_unnameable(good, plan, partition_columns(snapshot))
        done = self._compute_versions(snapshot, state, write, good)
        recorded = self._absorbed_changes.record(write.lane, plan, done.absorbed)
        refused = rows.misfits.num_rows + holes.num_rows + nameless.num_rows
        counts = done.counts + Counts(rejected=refused, duplicate=rows.trimmed)
        operation = write_stage(plan, done.write, None, find_new_truncates(facts, state))
        rejects = to_rejects(rows.frame, rows.misfits, holes, nameless, done.rejects)
        return StagedWrite(
            operation,
            advance_state(plan, state, facts, recorded),
            counts + count_truncates(facts, state, rows.truncates),
            rejects,
        )

    def _compute_versions(
        self, snapshot: DeltaTable, state: LaneState, write: Write[pa.Table], rows: pa.Table
    ) -> Scd2Result:
        plan, facts = write.plan, write.folded.facts
        late_truncates = find_late_truncates(facts, state)
        if not (rows.num_rows or late_truncates) or facts.lowest is None or plan.history is None:
            return Scd2Result(rows.slice(0, 0), pa.array([], pa.bool_()), rows.slice(0, 0), REJECTED.empty_table(), Counts())
        truncates = merge_truncates(state.truncates, facts.truncates)
        related = read_candidate_versions(snapshot, plan, rows, facts.lowest, late_truncates)
        absorbed = self._read_absorbed_changes(state, write, rows, related)
        return compute_versions(plan, plan.history, rows, related, absorbed, lowest=facts.lowest, truncates=truncates)

    def _read_absorbed_changes(
        self, state: LaneState, write: Write[pa.Table], rows: pa.Table, related: pa.Table
    ) -> pa.Table | None:
        """Absorbed changes matter only for late changes."""
        if state.max_side_table_sequence is None or not has_overlap(write.folded.facts, state):
            return None
        return self._absorbed_changes.lookup(write.lane, write.plan, rows, related, state.position, again=write.out_of_band)
