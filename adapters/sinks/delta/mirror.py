"""Stages 2 to 4 for tables that mirror a source."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from replicator.domain.change import OP, Op
from replicator.domain.errors import DataLoss
from replicator.domain.policy.plan import ApplyPlan, Counts, LaneState, needs_reconcile
from replicator.domain.policy.retention import needs_tombstones
from replicator.domain.position import Position
from replicator.domain.sequence import Sequence
from replicator.ports.frames import Lane, Write
from replicator.ports.sink import TombstoneStore

from ...apply.conform import REJECTED, number_rows, require_values, to_rejects
from ...apply.lane_progress import advance_state, count_truncates, find_new_truncate
from ...apply.reconcile_in_process import reconcile_rows
from ...apply.redelivery import drop_applied
from ...apply.rows_frame import to_rows
from ...apply.watermark_filter import filter_late
from ...delta.commits import Operation
from ...delta.merge import delete_all, write_stage
from ...delta.partitions import partition_columns, split_unnameable
from ...delta.tables import read_schema, stored_frame, stored_names, stored_plan
from ...delta.types import conform_to_table
from ...sql.reconcile import old_key_columns
from .absorbed_changes import DeltaAbsorbedChanges
from .column_versions_table import DeltaColumnVersions
from .merge_candidates import read_candidate_rows
from .per_column import DeltaPerColumn
from .scd2 import ConformedRows, DeltaScd2
from .staged_write import StagedWrite


class DeltaMirror:
    """Stages the writes of one lane whose table has the columns of `plan.target`."""

    def __init__(
        self,
        tombstones: TombstoneStore[pa.Table],
        absorbed_changes: DeltaAbsorbedChanges,
        column_versions: DeltaColumnVersions,
    ) -> None:
        self._tombstones = tombstones
        self._by_column = DeltaPerColumn(column_versions)
        self._histories = DeltaScd2(absorbed_changes)

    def stage(self, snapshot: DeltaTable, state: LaneState, write: Write[pa.Table]) -> StagedWrite:
        """Stages everything before the commit, on the rows of exactly `snapshot`. Tombstones are stored on
        return.

        The position in the staged state is the position of `state`.
        """
        facts, schema = write.folded.facts, read_schema(snapshot)
        frame, trimmed = drop_applied(write.folded.frame, Position() if write.out_of_band else state.position)
        let_in = filter_late(frame, write, state)
        truncates, frame = (0, let_in.rows) if write.plan.has_column_versions else _split_truncates(let_in.rows, write.plan)
        write, named = _to_stored_names(write, frame, schema)
        plan = write.plan
        rows, unfit = conform_to_table(number_rows(to_rows(named, plan, datetime.now(UTC))), _add_old_keys(schema, plan))
        if plan.history is not None:
            return self._histories.stage(snapshot, state, write, ConformedRows(frame, rows, unfit, trimmed, truncates))
        if plan.has_column_versions:
            return self._by_column.stage(snapshot, state, write, ConformedRows(frame, rows, unfit, trimmed, truncates))
        if state.purge_pending and state.purged_up_to is not None and plan.reconcile.uses_tombstones:
            self._tombstones.forget(write.lane, plan, state.purged_up_to.max_sequence)
        rows, refused_rows, counts = self._reconcile(snapshot, state, write, rows)
        recorded = self._record_deletes(write, rows)
        rows, holes = require_values(rows, plan, schema)
        rows, nameless = split_unnameable(rows, plan, partition_columns(snapshot))
        bad = holes.num_rows + nameless.num_rows
        refused = bad + unfit.num_rows + let_in.rejected
        counts += Counts(applied=-bad, rejected=refused, duplicate=trimmed + let_in.duplicates)
        return StagedWrite(
            write_stage(plan, rows, find_new_truncate(facts, state)),
            advance_state(plan, state, facts, recorded, write.at),
            counts + count_truncates(facts, state, truncates),
            _concat_rejects(let_in.late, to_rejects(frame, unfit, refused_rows, holes, nameless)),
        )

    def clear(self, _: LaneState | None) -> Operation:
        """Deletes every row: the table belongs to its lane alone."""
        return delete_all

    def clear_blindly(self, _: Lane, __: DataLoss) -> Operation:
        """Deletes every row, too."""
        return delete_all

    def _reconcile(
        self, snapshot: DeltaTable, state: LaneState, write: Write[pa.Table], rows: pa.Table
    ) -> tuple[pa.Table, pa.Table, Counts]:
        """Stages 2 and 3 if the batch needs them: rows to write, rejects, and the counts of all rows."""
        if not needs_reconcile(write.plan, write.folded.facts, state):
            return rows, REJECTED.empty_table(), Counts(applied=rows.num_rows)
        related = read_candidate_rows(snapshot, write.plan, rows)
        done = reconcile_rows(write, rows, related, self._read_tombstones(write, rows, state), state)
        return done.write, done.rejects, done.counts

    def _record_deletes(self, write: Write[pa.Table], rows: pa.Table) -> Sequence | None:
        if not (write.plan.reconcile.uses_tombstones and write.folded.facts.has_deletes):
            return None
        return self._tombstones.record(write.lane, write.plan, rows)

    def _read_tombstones(self, write: Write[pa.Table], rows: pa.Table, state: LaneState) -> pa.Table | None:
        if not needs_tombstones(write.plan, write.folded.facts, state):
            return None
        return self._tombstones.lookup(write.lane, write.plan, rows, state.position, again=write.out_of_band)


def _to_stored_names(write: Write[pa.Table], frame: pa.Table, schema: pa.Schema) -> tuple[Write[pa.Table], pa.Table]:
    """The write and its rows with the column names of the table."""
    names = stored_names(write.plan.table.column_names, schema.names)
    if not names:
        return write, frame
    return replace(write, plan=stored_plan(write.plan, names)), stored_frame(frame, names)


def _split_truncates(frame: pa.Table, plan: ApplyPlan) -> tuple[int, pa.Table]:
    """The number of truncates that clear the table, and the other rows."""
    if not plan.truncates or not frame.num_rows:
        return 0, frame
    rows = frame.filter(pc.not_equal(frame[OP], Op.TRUNCATE.value))
    return frame.num_rows - rows.num_rows, rows


def _add_old_keys(schema: pa.Schema, plan: ApplyPlan) -> pa.Schema:
    """The schema with old keys, which have the types of the keys because they are compared with them."""
    pairs = zip(old_key_columns(plan), plan.table.keys, strict=True)
    return pa.schema([*schema, *(pa.field(old, schema.field(key).type) for old, key in pairs)])


def _concat_rejects(late: pa.Table | None, rejects: pa.Table) -> pa.Table:
    return rejects if late is None else pa.concat_tables([late, rejects])
