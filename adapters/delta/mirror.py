"""Stages 2 to 4 for tables that mirror a source."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from replicator.domain.change import OP, Op
from replicator.domain.errors import DataLoss
from replicator.domain.plan import ApplyPlan, Counts, LaneState, needs_repair
from replicator.domain.position import Position
from replicator.domain.retention import recalls
from replicator.domain.sequence import Sequence
from replicator.ports.frames import Lane, Write
from replicator.ports.sink import TombstoneLedger

from ..sql.local_repair import repair
from ..sql.local_watermark import admitted
from ..sql.repair import from_columns
from ..sql.rows import to_rows
from .beside import DeltaBeside
from .column_names import stored_frame, stored_names, stored_plan
from .columns import ByColumn
from .commits import Operation
from .fit import REJECTED, as_rejects, filled, fit, placed
from .histories import Histories, Rows
from .marks import DeltaMarks
from .merge import delete_all, write_stage
from .partitions import nameable, partition_columns
from .related import related_rows
from .staged import Staged, clearing, moved_on, truncated
from .tables import schema_of
from .trim import untouched


class Mirror:
    """Stages the writes of one lane whose table has the columns of `plan.target`."""

    def __init__(self, ledger: TombstoneLedger[pa.Table], marks: DeltaMarks, beside: DeltaBeside) -> None:
        self._ledger = ledger
        self._by_column = ByColumn(beside)
        self._histories = Histories(marks)

    def stage(self, snapshot: DeltaTable, state: LaneState, write: Write[pa.Table]) -> Staged:
        """Everything up to the commit, on the rows of exactly `snapshot`. Deletes are in the ledger on return.

        The position in the staged state is that of `state`.
        """
        facts, schema = write.folded.facts, schema_of(snapshot)
        frame, trimmed = untouched(write.folded.frame, Position() if write.beside else state.position)
        let_in = admitted(frame, write, state)
        truncates, frame = (0, let_in.rows) if write.plan.by_column else _parted(let_in.rows, write.plan)
        write, named = _named(write, frame, schema)
        plan = write.plan
        rows, unfit = fit(placed(to_rows(named, plan, datetime.now(UTC))), _with_old_keys(schema, plan))
        if plan.history is not None:
            return self._histories.stage(snapshot, state, write, Rows(frame, rows, unfit, trimmed, truncates))
        if plan.by_column:
            return self._by_column.stage(snapshot, state, write, Rows(frame, rows, unfit, trimmed, truncates))
        if state.owed and state.forgotten is not None and plan.repair.ledger:
            self._ledger.forget(write.lane, plan, state.forgotten.high)
        rows, refused_rows, counts = self._repaired(snapshot, state, write, rows)
        recorded = self._record(write, rows)
        rows, holes = filled(rows, plan, schema)
        rows, nameless = nameable(rows, plan, partition_columns(snapshot))
        bad = holes.num_rows + nameless.num_rows
        refused = bad + unfit.num_rows + let_in.rejected
        counts += Counts(applied=-bad, rejected=refused, duplicate=trimmed + let_in.duplicates)
        return Staged(
            write_stage(plan, rows, clearing(facts, state)),
            moved_on(plan, state, facts, recorded, write.at),
            counts + truncated(facts, state, truncates),
            _with(let_in.late, as_rejects(frame, unfit, refused_rows, holes, nameless)),
        )

    def cleared(self, _: LaneState | None) -> Operation:
        """Every row: the table belongs to its lane alone."""
        return delete_all

    def cleared_blindly(self, _: Lane, __: DataLoss) -> Operation:
        """Every row too."""
        return delete_all

    def _repaired(
        self, snapshot: DeltaTable, state: LaneState, write: Write[pa.Table], rows: pa.Table
    ) -> tuple[pa.Table, pa.Table, Counts]:
        """Stages 2 and 3 where they can matter: rows to write, rejects, and what became of every row."""
        if not needs_repair(write.plan, write.folded.facts, state):
            return rows, REJECTED.empty_table(), Counts(applied=rows.num_rows)
        related = related_rows(snapshot, write.plan, rows)
        done = repair(write, rows, related, self._remembered(write, rows, state), state)
        return done.write, done.rejects, done.counts

    def _record(self, write: Write[pa.Table], rows: pa.Table) -> Sequence | None:
        if not (write.plan.repair.ledger and write.folded.facts.deletes):
            return None
        return self._ledger.record(write.lane, write.plan, rows)

    def _remembered(self, write: Write[pa.Table], rows: pa.Table, state: LaneState) -> pa.Table | None:
        if not recalls(write.plan, write.folded.facts, state):
            return None
        return self._ledger.lookup(write.lane, write.plan, rows, state.position, again=write.beside)


def _named(write: Write[pa.Table], frame: pa.Table, schema: pa.Schema) -> tuple[Write[pa.Table], pa.Table]:
    """The write and its rows under the names that the table keeps columns by."""
    names = stored_names(write.plan.table.column_names, schema.names)
    if not names:
        return write, frame
    return replace(write, plan=stored_plan(write.plan, names)), stored_frame(frame, names)


def _parted(frame: pa.Table, plan: ApplyPlan) -> tuple[int, pa.Table]:
    """How many truncates clear the table, and the rows beside them."""
    if not plan.truncates or not frame.num_rows:
        return 0, frame
    rows = frame.filter(pc.not_equal(frame[OP], Op.TRUNCATE.value))
    return frame.num_rows - rows.num_rows, rows


def _with_old_keys(schema: pa.Schema, plan: ApplyPlan) -> pa.Schema:
    """Old keys are compared with keys, so they take the same types."""
    pairs = zip(from_columns(plan), plan.table.keys, strict=True)
    return pa.schema([*schema, *(pa.field(old, schema.field(key).type) for old, key in pairs)])


def _with(late: pa.Table | None, rejects: pa.Table) -> pa.Table:
    return rejects if late is None else pa.concat_tables([late, rejects])
