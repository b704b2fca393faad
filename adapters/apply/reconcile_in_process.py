"""Stage 3 in DuckDB, for sinks that apply in process.

DuckDB reads only keys, sequences and flags, and returns row numbers. Arrow then gathers the values. So no value
passes through a second type system, and wide tables cost no more than narrow ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import ERROR, KEEP_EXISTING, OFFSET, OP, RESET, UNCHANGED, Op
from replicator.domain.errors import AMBIGUOUS_DELETE
from replicator.domain.policy.late_changes import LatenessLimit, find_lateness_limit, make_late_reject
from replicator.domain.policy.plan import (
    CDC_DELETED,
    ApplyPlan,
    Counts,
    LaneState,
    cdc_sequence_columns,
    end_sequence_columns,
    get_resent_limit,
    last_sequence_columns,
)
from replicator.domain.sequence import Sequence
from replicator.ports.frames import Write

from ..arrow.key_change import has_difference, needs_target_row, null_counts, to_comparable
from ..duckdb.session import open_session
from ..sql.dialect import DUCKDB
from ..sql.reconcile import (
    APPLY,
    DUPLICATE,
    INCOMPLETE,
    LATE,
    SUPERSEDED,
    VERDICT,
    join_clauses,
    missing_values_reject,
    old_key_columns,
    verdict_expression,
)

ROW_INDEX = "_row"


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """`write`: complete rows for stage 4. `rejects`: rows with `_error`. `counts`: every row of the input, once."""

    write: pa.Table
    rejects: pa.Table
    counts: Counts


def reconcile_rows(
    write: Write[pa.Table], rows: pa.Table, related: pa.Table, tombstones: pa.Table | None, state: LaneState
) -> ReconcileResult:
    """Stage 3 over the rows frame of a write.

    - `related`: the target's rows for every identity and old key in `rows`, with the target's columns.
      Additional rows are harmless.
    - `tombstones`: key columns and `_cdc_seq_*`, the highest per key. None if there are none.
    """
    plan, resent = write.plan, get_resent_limit(write.plan, state, write.span)
    rows, others, ambiguous = drop_foreign_deletes(plan, rows, related)
    lateness = find_lateness_limit(plan, write.folded.facts, state)
    select = verdict_rows_select(
        plan, tombstones=tombstones is not None, truncated_at=state.truncated_at, resent=resent, lateness=lateness
    )
    sequence = cdc_sequence_columns(plan.table.sequence)
    narrow = (*plan.reconcile.identity, *(n for n in sequence if n not in plan.reconcile.identity))
    flags = (OP, UNCHANGED, RESET, OFFSET, *(old_key_columns(plan) if plan.reconcile.complete else ()))
    marks = (CDC_DELETED,) if plan.soft_deletes else ()
    with open_session() as connection:
        connection.register("changes", _number_rows(rows.select([*narrow, *flags])))
        connection.register("related", _number_rows(related.select([*narrow, *marks])))
        if tombstones is not None:
            connection.register("tombstones", tombstones)
        verdicts = connection.sql(select).to_arrow_table()
    outcome = verdicts[VERDICT]
    apply = pc.equal(outcome, APPLY)
    complete_rows = _complete_rows(plan, rows, related, verdicts) if plan.reconcile.complete else rows
    rejects = [to_incomplete_rejects(rows.filter(pc.equal(outcome, INCOMPLETE))), to_ambiguous_rejects(ambiguous)]
    if lateness is not None:
        too_late = rows.filter(pc.equal(outcome, LATE))
        rejects.append(append_errors(too_late, [str(make_late_reject(write.lane.id))] * too_late.num_rows))
    counts = count_verdicts(outcome) + Counts(superseded=others, rejected=ambiguous.num_rows)
    return ReconcileResult(complete_rows.filter(apply), pa.concat_tables(rejects), counts)


def append_errors(rows: pa.Table, sentences: list[str]) -> pa.Table:
    """`rows` as rejects."""
    return rows.append_column(ERROR, pa.array(sentences, pa.string()))


def to_incomplete_rejects(rows: pa.Table) -> pa.Table:
    """Rows whose values cannot be completed, as rejects."""
    return append_errors(rows, [str(missing_values_reject(names)) for names in rows[UNCHANGED].to_pylist()])


def to_ambiguous_rejects(rows: pa.Table) -> pa.Table:
    """Deletes that may belong to another row than the target's, as rejects."""
    return append_errors(rows, [str(AMBIGUOUS_DELETE)] * rows.num_rows)


def verdict_rows_select(
    plan: ApplyPlan,
    *,
    tombstones: bool,
    truncated_at: Sequence | None,
    resent: Sequence | None = None,
    lateness: LatenessLimit | None = None,
) -> str:
    """Per row of `changes`, ordered by `_row`: its verdict, and the numbers of its row in `related` (`_t`) and
    of its old key's row (`_o`).

    `truncated_at`, `resent`, `lateness`: see `reconcile.reconcile_select`.
    """
    case = verdict_expression(
        plan, DUCKDB, tombstones=tombstones, truncated_at=truncated_at, related="related", resent=resent, lateness=lateness
    )
    t = f"t.{ROW_INDEX}" if plan.reconcile.guard == "newer" else "CAST(NULL AS BIGINT)"
    o = f"o.{ROW_INDEX}" if plan.reconcile.complete else "CAST(NULL AS BIGINT)"
    tables = join_clauses(plan, DUCKDB, "related", "tombstones" if tombstones else None)
    return f"SELECT {t} AS _t, {o} AS _o,\n{case} AS {VERDICT}\nFROM changes AS r{tables}\nORDER BY r.{ROW_INDEX}"


def _number_rows(table: pa.Table) -> pa.Table:
    return table.append_column(ROW_INDEX, pa.array(range(table.num_rows), pa.int64()))


def _complete_rows(plan: ApplyPlan, rows: pa.Table, related: pa.Table, verdicts: pa.Table) -> pa.Table:
    """Fills in values that were not sent: after a key change from the row of the old key, otherwise from the
    key's row."""
    if rows[UNCHANGED].null_count == rows.num_rows:
        return rows
    has_old_key = pc.is_valid(rows[old_key_columns(plan)[-1]])
    giver = pc.if_else(has_old_key, verdicts["_o"], verdicts["_t"])
    if plan.soft_deletes:
        # As `sql.reconcile` computes the mark. `alive`: null if no row provides the values.
        alive = pc.equal(related[CDC_DELETED].fill_null(False).take(giver), False)
        unchanged = rows[UNCHANGED].to_pylist()
        partial = pa.array([names is not None and KEEP_EXISTING not in names for names in unchanged], pa.bool_())
        completed = pc.and_(pc.equal(rows[OP], Op.DELETE.value), pc.and_(partial, pc.fill_null(alive, False)))
        marks = pc.if_else(completed, pa.scalar(True), rows[CDC_DELETED])
        rows = rows.set_column(rows.column_names.index(CDC_DELETED), CDC_DELETED, marks)
    for name in list_missing_names(rows):
        lacks = pa.array([name in (names or ()) for names in rows[UNCHANGED].to_pylist()])
        values = related[name].take(giver).cast(rows[name].type)
        rows = rows.set_column(rows.column_names.index(name), name, pc.if_else(lacks, values, rows[name]))
    return rows


def list_missing_names(rows: pa.Table, column: str = UNCHANGED) -> list[str]:
    """The columns that some row lacks; `column` holds their names."""
    return sorted(set(pc.list_flatten(rows[column].combine_chunks()).to_pylist()) - {KEEP_EXISTING})


def count_verdicts(verdicts: pa.ChunkedArray) -> Counts:
    """The counts of rows with these verdicts."""
    totals = {entry["values"]: entry["counts"] for entry in pc.value_counts(verdicts).to_pylist()}
    return Counts(
        applied=totals.get(APPLY, 0),
        superseded=totals.get(SUPERSEDED, 0),
        duplicate=totals.get(DUPLICATE, 0),
        rejected=totals.get(INCOMPLETE, 0) + totals.get(LATE, 0),
    )


# Finds deletes that belong to another row than the target's row of the same key.
#
# `arrow.key_change` does the same within a batch; this module is for batches that end between the two
# changes. The rows frame marks the deletes to compare with the target: their own key is also their old key
# (`_from_1..n`). `sql.reconcile.other_row_condition` is the same comparison as SQL.


def mask_lookups(plan: ApplyPlan, rows: pa.Table) -> pa.ChunkedArray:
    """Per row of a rows frame: must it be compared with the target?"""
    if not needs_target_row(plan):
        return pa.chunked_array([pa.repeat(False, rows.num_rows)])
    return pc.and_(pc.equal(rows[OP], Op.DELETE.value), pc.is_valid(rows[old_key_columns(plan)[-1]]))


def drop_foreign_deletes(plan: ApplyPlan, rows: pa.Table, related: pa.Table) -> tuple[pa.Table, int, pa.Table]:
    """Returns the rows without deletes of other rows, the number of such deletes, and the ambiguous deletes.

    `related`: the target's rows of these keys with the values of `plan.delete_evidence_columns`; additional rows are
    harmless.
    """
    if not pc.any(lookups := mask_lookups(plan, rows)).as_py():
        return rows, 0, rows.slice(0, 0)
    rows_by_key: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in to_comparable(related).to_pylist():
        rows_by_key.setdefault(tuple(row[k] for k in plan.table.keys), []).append(row)
    foreign, ambiguous, comparable = [], [], to_comparable(rows)
    for i in pc.indices_nonzero(lookups).to_pylist():
        (row,) = comparable.slice(i, 1).to_pylist()
        unchanged = frozenset(row[UNCHANGED] or ())
        whole, doubtful = (
            {n: row[n] for n in plan.delete_evidence_columns if (n in unchanged) is lacks} for lacks in (False, True)
        )
        others = [o for o in rows_by_key.get(tuple(row[k] for k in plan.table.keys), ()) if _can_be_other_row(plan, row, o)]
        if plan.table.by_tx:
            doubtful, whole = {n: v for n, v in whole.items() if v is not None or null_counts(plan, n)}, {}
        if any(has_difference(whole, other) for other in others):
            foreign.append(i)
        elif any(v is not None for v in doubtful.values()) and any(has_difference(doubtful, other) for other in others):
            ambiguous.append(i)
    mask = pc.invert(pc.is_in(pa.array(range(rows.num_rows), pa.int64()), pa.array([*foreign, *ambiguous], pa.int64())))
    return rows.filter(mask), len(foreign), rows.take(pa.array(ambiguous, pa.int64()))


def _can_be_other_row(plan: ApplyPlan, row: dict[str, Any], other: dict[str, Any]) -> bool:
    """`sql.reconcile.other_row_condition` without the comparison of values."""
    names = cdc_sequence_columns(plan.table.sequence)
    mine, starts = tuple(row[n] for n in names), tuple(other[n] for n in names)
    if None in starts or starts >= mine or other.get(CDC_DELETED):
        return False
    commits = {starts[0]}
    if plan.history:
        ends = tuple(other[n] for n in end_sequence_columns(plan.table.sequence))
        if None not in ends and ends <= mine:
            return False
        commits.add(other[last_sequence_columns(plan.table.sequence)[0]])
    return plan.table.by_tx or mine[0] in commits
