"""Stages 2 to 4 of a write, in this process, for every target that can be read and written as Arrow tables.

A sink gives a `TargetSession`: one lane's target while one write is applied. `reconcile_write` decides what becomes of each
change: written, repeated, superseded or rejected. A sink whose rows and state are one transaction uses `apply_write`,
which also writes. A sink that commits in another way writes the `ReconciledWrite` itself.

The target may have a side table for what its rows do not show. Its kind depends on the plan:

- Tombstones (`plan.reconcile.uses_tombstones`): the keys and `_cdc_seq_*`, one row per key.
- Column versions (`plan.has_column_versions`): the keys and a text, one row per key.
- Absorbed changes (`plan.history`): `_op` and the columns of the target, any number of rows per key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import OP, RECORD_POSITION, Op
from replicator.domain.policy.late_changes import advance_purge, needs_tombstones
from replicator.domain.policy.plan import (
    CDC_DELETED,
    EVENT_ID,
    ApplyPlan,
    Counts,
    LaneState,
    Truncate,
    cdc_sequence_columns,
    find_highest,
    has_overlap,
    merge_truncates,
    needs_reconcile,
)
from replicator.domain.policy.policies import list_sequence_columns
from replicator.domain.sequence import Sequence as SequenceKey
from replicator.domain.table import Column
from replicator.ports.frames import Write

from ..sql.dialect import Dialect
from ..sql.reconcile import old_key_columns, purged_condition
from ..sql.scd2_events import overlap_condition, split_condition
from .column_versions import COLUMN_VERSIONS
from .conform import REJECTED, conform_changes, number_rows, require_values, to_rejects
from .lane_progress import (
    WatermarkResult,
    advance_position,
    advance_state,
    count_truncates,
    drop_applied,
    filter_late,
    find_late_truncates,
    find_new_truncates,
    is_applied,
    refuse_gap,
)
from .per_column_in_process import KeyState, add_key_rows, decide_columns, read_key_states
from .reconcile_in_process import list_missing_names, mask_lookups, reconcile_rows
from .rows_frame import to_rows
from .scd2_in_process import compute_versions

Wanted = Mapping[str, pa.Array]
"""Values by column. It asks for the rows that have one of the values in each of the columns."""


class TargetSession(Protocol):
    """The target of one lane while one write is applied. It reads the state before the write."""

    dialect: Dialect
    """The dialect of conditions. In these, the target's table is `t`, or has no alias (`Dialect.has_one_relation`)."""

    schema: pa.Schema
    """The columns of the target, with the types and the nullability of its table."""

    def conform_rows(self, rows: pa.Table, schema: pa.Schema) -> tuple[pa.Table, pa.Table]:
        """`rows` (with `_place`) in the types of `schema`, and the rows that do not fit as `conform.REJECTED`. No value
        may change silently."""

    def split_storable_rows(self, rows: pa.Table, plan: ApplyPlan, /) -> tuple[pa.Table, pa.Table]:
        """The rows that the target can store, and the rest as `conform.REJECTED`. Checks all rules except types."""

    def read_rows(self, columns: Sequence[str], wanted: Wanted, condition: str = "") -> pa.Table:
        """`columns` of the target's rows that have one of the `wanted` values in each column of `wanted`, and for which
        `condition` holds. NULL equals NULL. More rows are harmless where `condition` is empty."""

    def read_side_rows(self, rows: pa.Table | None) -> pa.Table:
        """The rows of the side table with the keys of `rows`; more are harmless. None: all rows. `rows` also names the
        record of each row (`domain.change.RECORD_POSITION`), or NULL.

        Rows that a failed attempt has stored do not count until their record is applied. A side table that is written
        in the transaction of the target has none.
        """

    def store_side_rows(self, rows: pa.Table) -> int | None:
        """Store rows of the side table. If it has one row per key, a row replaces the stored one. A row without a text
        (`column_versions.COLUMN_VERSIONS`) only deletes it. Returns `LaneState.side_table_version`, or None."""

    def delete_side_rows(self, max_sequence: SequenceKey) -> None:
        """Delete the tombstones that are not above `max_sequence`."""


class TransactionSession(TargetSession, Protocol):
    """A target whose rows, side table and state change in one transaction."""

    def delete_rows(self, condition: str) -> None:
        """Delete the target's rows for which `condition` is true."""

    def write_rows(self, plan: ApplyPlan, rows: pa.Table, truncates: Sequence[Truncate]) -> None:
        """Stage 4. First each of `truncates`, in order (`sql.reconcile.render_truncate`). Then the clauses of the plan
        over `rows` (`sql.render.render_merge`)."""


@dataclass(frozen=True, slots=True)
class ReconciledWrite:
    """The result of a write, before its commit.

    - `rows`: the rows for stage 4, at most one per merge key.
    - `truncates`: the truncates that the target has not applied, in order; for scd1 at most one.
    - `state`: the lane's state after the write. `reconcile_write` leaves its position, `apply_write` advances it.
    - `counts`: every folded row, once.
    - `rejects`: rows of the folded frame with `_error`.
    """

    rows: pa.Table
    truncates: Sequence[Truncate]
    state: LaneState
    counts: Counts
    rejects: pa.Table


def apply_write(session: TransactionSession, write: Write[pa.Table], state: LaneState | None) -> ReconciledWrite:
    """Applies the write in the transaction of `session`, which the caller commits together with the returned state.

    `state`: the lane's committed state. Before the commit the caller stores the rejects. DataLoss if records are missing.
    """
    before = state or LaneState()
    refuse_gap(write, before)
    if is_applied(write, before):
        nothing = write.folded.frame.slice(0, 0)
        return ReconciledWrite(nothing, (), before, Counts(duplicate=write.folded.rows), nothing)
    after = advance_purge(write.plan, before, write.at)
    if after != before and after.purged_up_to is not None:
        if write.plan.soft_deletes:
            session.delete_rows(purged_condition(write.plan, session.dialect, after.purged_up_to))
        after = replace(after, purge_pending=True)
    reconciled = reconcile_write(session, write, after)
    if reconciled.rows.num_rows or reconciled.truncates:
        session.write_rows(write.plan, reconciled.rows, reconciled.truncates)
    return replace(reconciled, state=advance_position(reconciled.state, write))


def reconcile_write(session: TargetSession, write: Write[pa.Table], state: LaneState) -> ReconciledWrite:
    """Stages 2 and 3 of a write above `state`. Rows of the side table are stored on return.

    `write` starts at most at the lane's position. If `state.purge_pending`, the purged tombstones are deleted.
    """
    plan, facts = write.plan, write.folded.facts
    batch = _read_batch(session, write, state)
    decide = _decide_columns if plan.has_column_versions else _decide_rows if plan.history is None else _decide_versions
    decision = decide(session, write, state, batch)
    counts = decision.counts + count_truncates(plan, facts, state, batch.truncates)
    counts += Counts(
        rejected=batch.misfits.num_rows + batch.watermark_result.rejected,
        duplicate=batch.trimmed + batch.watermark_result.duplicates,
    )
    rejects = to_rejects(batch.frame, batch.misfits, *decision.rejected)
    late = batch.watermark_result.late
    after = advance_state(plan, state, facts, decision.recorded, write.at)
    if decision.version is not None:
        after = replace(after, side_table_version=decision.version)
    return ReconciledWrite(
        decision.rows,
        find_new_truncates(plan, facts, state),
        after,
        counts,
        rejects if late is None else pa.concat_tables([late, rejects]),
    )


@dataclass(frozen=True, slots=True)
class _Batch:
    """The rows of a write.

    - `frame`: the folded rows above the position, without truncates, unless truncates are rows.
    - `rows`: the rows of `frame` in the types of the target, with `_place` (the numbers of its rows in `frame`).
    - `misfits`: the rows that do not fit, as `REJECTED`.
    - `trimmed`: how many rows were applied before.
    - `truncates`: how many truncates were left out of `frame`.
    - `watermark_result`: the result of the watermark.
    """

    frame: pa.Table
    rows: pa.Table
    misfits: pa.Table
    trimmed: int
    truncates: int
    watermark_result: WatermarkResult


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The result of stage 3: rows to write, `REJECTED` tables, and the counts of all rows of the batch that fit.

    `recorded`: the highest sequence that was stored in the side table. `version`: the version of the side table.
    """

    rows: pa.Table
    rejected: list[pa.Table]
    counts: Counts
    recorded: SequenceKey | None = None
    version: int | None = None


def _read_batch(session: TargetSession, write: Write[pa.Table], state: LaneState) -> _Batch:
    plan = write.plan
    frame, trimmed = drop_applied(write.folded.frame, write, state.position)
    result = filter_late(frame, write, state)
    frame = result.rows
    if plan.truncates and frame.num_rows and not plan.has_column_versions:
        frame = frame.filter(pc.not_equal(frame[OP], Op.TRUNCATE.value))
    truncates = result.rows.num_rows - frame.num_rows
    # Old keys have the types of the keys, because they are compared with them.
    pairs = zip(old_key_columns(plan), plan.table.keys, strict=True)
    schema = pa.schema([*session.schema, *(pa.field(old, session.schema.field(key).type) for old, key in pairs)])
    numbered = number_rows(to_rows(frame, plan, datetime.now(UTC)))
    rows, misfits = conform_changes(numbered, plan, lambda part: session.conform_rows(part, schema))
    return _Batch(frame, rows, misfits, trimmed, truncates, result)


# Plans that keep the newest row of a key, or every change.


def _decide_rows(session: TargetSession, write: Write[pa.Table], state: LaneState, batch: _Batch) -> _Outcome:
    plan, rows, facts = write.plan, batch.rows, write.folded.facts
    if state.purge_pending and state.purged_up_to is not None and plan.reconcile.uses_tombstones:
        session.delete_side_rows(state.purged_up_to.max_sequence)
    rejects, counts = REJECTED.empty_table(), Counts(applied=rows.num_rows)
    if needs_reconcile(plan, facts, state):
        related = _read_related(session, plan, rows)
        tombstones = session.read_side_rows(rows) if needs_tombstones(plan, facts, state) else None
        result = reconcile_rows(write, rows, related, tombstones, state)
        rows, rejects, counts = result.write, result.rejects, result.counts
    recorded = None
    if plan.reconcile.uses_tombstones and facts.has_deletes:
        deletes = rows.filter(pc.equal(rows[OP], Op.DELETE.value))
        session.store_side_rows(deletes.select([OP, *plan.table.keys, *_sequence_names(plan), EVENT_ID]))
        recorded = find_highest_sequence(plan, deletes)
    rows, holes = require_values(rows, plan, session.schema)
    rows, unstorable = session.split_storable_rows(rows, plan)
    bad = holes.num_rows + unstorable.num_rows
    return _Outcome(rows, [rejects, holes, unstorable], counts + Counts(applied=-bad, rejected=bad), recorded)


def _read_related(session: TargetSession, plan: ApplyPlan, rows: pa.Table) -> pa.Table:
    """Stage 2: the target's rows for every identity and old key in `rows`, with only the columns of stage 3."""
    unsent = list_missing_names(rows) if plan.reconcile.complete else []
    unsent += plan.delete_evidence_columns if pc.any(mask_lookups(plan, rows)).as_py() else ()
    marks = [CDC_DELETED] if plan.soft_deletes else []
    columns = list(dict.fromkeys([*plan.reconcile.identity, *_sequence_names(plan), *unsent, *marks]))
    if plan.reconcile.guard != "absent":
        return session.read_rows(columns, _list_keys(plan, rows))
    names = [n for n in _sequence_names(plan) if n in plan.reconcile.identity]
    names = names[:-1] if plan.reconcile.counted else names
    return session.read_rows(columns, {n: pc.unique(rows[n]) for n in (*names, *plan.table.keys)})


def _list_keys(plan: ApplyPlan, rows: pa.Table) -> dict[str, pa.Array]:
    """The values of each key column and of its old key."""
    wanted = {}
    for key, old in zip(plan.table.keys, old_key_columns(plan), strict=True):
        both = [*rows[key].chunks, *rows[old].drop_null().chunks]
        wanted[key] = pc.unique(pa.chunked_array(both, rows[key].type))
    return wanted


# Plans that keep every version of a row.


def _decide_versions(session: TargetSession, write: Write[pa.Table], state: LaneState, batch: _Batch) -> _Outcome:
    plan, facts = write.plan, write.folded.facts
    rows, holes = require_values(batch.rows, plan, session.schema)
    rows, unstorable = session.split_storable_rows(rows, plan)
    counts = Counts(rejected=holes.num_rows + unstorable.num_rows)
    late_truncates = find_late_truncates(plan, facts, state)
    if not (rows.num_rows or late_truncates) or facts.lowest is None or plan.history is None:
        return _Outcome(rows.slice(0, 0), [holes, unstorable], counts)
    wanted = _list_keys(plan, rows)
    if late_truncates:
        split = session.read_rows(list(plan.table.keys), {}, split_condition(plan, session.dialect, late_truncates))
        wanted = {key: pc.unique(pa.chunked_array([values, *split[key].chunks])) for key, values in wanted.items()}
    # Changes from the lowest one on can affect only versions that are open, or end there or later.
    condition = overlap_condition(plan, session.dialect, facts.lowest)
    related, absorbed = session.read_rows(session.schema.names, wanted, condition), None
    if state.max_side_table_sequence is not None and has_overlap(facts, state):
        # The keys of both tables, with the records of `rows`.
        own = rows.select([*plan.table.keys, *RECORD_POSITION])
        others = {name: pa.nulls(related.num_rows, own.schema.field(name).type) for name in RECORD_POSITION}
        others |= {key: related[key].cast(own.schema.field(key).type) for key in plan.table.keys}
        absorbed = session.read_side_rows(pa.concat_tables([own, pa.table(others).select(own.column_names)]))
    truncates = merge_truncates(state.truncates, facts.truncates)
    result = compute_versions(plan, plan.history, rows, related, absorbed, lowest=facts.lowest, truncates=truncates)
    recorded = None
    if result.absorbed.num_rows:
        session.store_side_rows(result.absorbed)
        recorded = find_highest_sequence(plan, result.absorbed)
    return _Outcome(result.write, [holes, unstorable, result.rejects], result.counts + counts, recorded)


# Plans with a sequence for each column.


def _decide_columns(session: TargetSession, write: Write[pa.Table], state: LaneState, batch: _Batch) -> _Outcome:
    """`batch.rows` include truncates."""
    plan, keys, truncated = write.plan, list(write.plan.table.keys), write.folded.facts.truncated_at is not None
    rows, unstorable = session.split_storable_rows(batch.rows, plan)
    column_versions = session.read_side_rows(None if truncated else rows)
    rows = add_key_rows(rows, column_versions.select(keys)) if truncated else rows

    def read_states(first: pa.Table) -> list[KeyState]:
        related = session.read_rows([*keys, *_sequence_names(plan)], {key: pc.unique(first[key]) for key in keys})
        return read_key_states(plan, first, related, column_versions)

    decision = decide_columns(plan, rows, state.truncated_at, read_states)
    version = session.store_side_rows(decision.side_rows)
    return _Outcome(decision.write, [unstorable], decision.counts + Counts(rejected=unstorable.num_rows), version=version)


# The side table.


def side_columns(plan: ApplyPlan) -> tuple[Column, ...]:
    """The columns of the side table of a plan; empty when there is none."""
    keys = tuple(plan.table.column(name) for name in plan.table.keys)
    if plan.reconcile.uses_tombstones:
        return (*keys, *list_sequence_columns(plan.table))
    if plan.has_column_versions:
        return (*keys, Column(COLUMN_VERSIONS, pa.string()))
    return (Column(OP, pa.string()), *plan.target) if plan.history else ()


def find_highest_sequence(plan: ApplyPlan, rows: pa.Table) -> SequenceKey | None:
    """The highest sequence in a table with `_cdc_seq_*`; None when it has no rows."""
    names = _sequence_names(plan)
    if not rows.num_rows:
        return None
    first = pc.select_k_unstable(rows, 1, [(n, "descending") for n in names])[0].as_py()
    return find_highest(tuple(rows[n][first].as_py() for n in names))


def _sequence_names(plan: ApplyPlan) -> tuple[str, ...]:
    return cdc_sequence_columns(plan.table.sequence)
