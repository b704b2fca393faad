"""Stage 3 in DuckDB, for sinks that apply in process.

DuckDB reads only keys, sequences and flags, and returns row numbers. Arrow then gathers the values. So no value
passes through a second type system, and wide tables cost no more than narrow ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import ERROR, KEEP_EXISTING, OFFSET, OP, RESET, UNCHANGED, Op
from replicator.domain.errors import AMBIGUOUS_DELETE
from replicator.domain.policy.late_changes import LatenessLimit, find_lateness_limit, make_late_reject
from replicator.domain.policy.plan import CDC_DELETED, ApplyPlan, Counts, LaneState, cdc_sequence_columns, get_resent_limit
from replicator.domain.sequence import Sequence
from replicator.ports.frames import Write

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
from .key_change_deletes import drop_foreign_deletes

ROW = "_row"


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
    tables = {"changes": rows, "related": related} | ({} if tombstones is None else {"ledger": tombstones})
    lateness = find_lateness_limit(plan, write.folded.facts, state)
    select = places_select(
        plan, tombstones=tombstones is not None, floor=state.truncated_at, resent=resent, lateness=lateness
    )
    verdicts = _find_verdicts(plan, tables, select)
    outcome = verdicts[VERDICT]
    apply = pc.equal(outcome, APPLY)
    completed = _complete_rows(plan, rows, related, verdicts) if plan.reconcile.complete else rows
    rejected = rows.filter(pc.equal(outcome, INCOMPLETE))
    rejects = [to_rejects(rejected, describe_incomplete(rejected)), to_ambiguous_rejects(ambiguous)]
    if lateness is not None:
        too_late = rows.filter(pc.equal(outcome, LATE))
        rejects.append(to_rejects(too_late, [str(make_late_reject(write.lane.id))] * too_late.num_rows))
    counts = _count_outcomes(outcome) + Counts(superseded=others, rejected=ambiguous.num_rows)
    return ReconcileResult(completed.filter(apply), pa.concat_tables(rejects), counts)


def to_rejects(rows: pa.Table, sentences: list[str]) -> pa.Table:
    """`rows` as rejects."""
    return rows.append_column(ERROR, pa.array(sentences, pa.string()))


def to_ambiguous_rejects(rows: pa.Table) -> pa.Table:
    """Deletes that may belong to another row than the target's, as rejects."""
    return to_rejects(rows, [str(AMBIGUOUS_DELETE)] * rows.num_rows)


def _find_verdicts(plan: ApplyPlan, tables: Mapping[str, pa.Table], select: str) -> pa.Table:
    sequence = cdc_sequence_columns(plan.table.sequence)
    narrow = (*plan.reconcile.identity, *(n for n in sequence if n not in plan.reconcile.identity))
    flags = (OP, UNCHANGED, RESET, OFFSET, *(old_key_columns(plan) if plan.reconcile.complete else ()))
    with open_session() as connection:
        connection.register("changes", _number_rows(tables["changes"].select([*narrow, *flags])))
        marks = (CDC_DELETED,) if plan.soft_deletes else ()
        connection.register("related", _number_rows(tables["related"].select([*narrow, *marks])))
        if "ledger" in tables:
            connection.register("ledger", tables["ledger"])
        return connection.sql(select).to_arrow_table()


def places_select(
    plan: ApplyPlan,
    *,
    tombstones: bool,
    floor: Sequence | None,
    resent: Sequence | None = None,
    lateness: LatenessLimit | None = None,
) -> str:
    """Per row of `changes`, ordered by `_row`: its verdict, and the numbers of its row in `related` (`_t`) and
    of its old key's row (`_o`).

    `floor`, `resent`, `lateness`: see `reconcile.reconcile_select`.
    """
    case = verdict_expression(
        plan, DUCKDB, tombstones=tombstones, floor=floor, related="related", resent=resent, lateness=lateness
    )
    t = f"t.{ROW}" if plan.reconcile.guard == "newer" else "CAST(NULL AS BIGINT)"
    o = f"o.{ROW}" if plan.reconcile.complete else "CAST(NULL AS BIGINT)"
    tables = join_clauses(plan, DUCKDB, "related", "ledger" if tombstones else None)
    return f"SELECT {t} AS _t, {o} AS _o,\n{case} AS {VERDICT}\nFROM changes AS r{tables}\nORDER BY r.{ROW}"


def _number_rows(table: pa.Table) -> pa.Table:
    return table.append_column(ROW, pa.array(range(table.num_rows), pa.int64()))


def _complete_rows(plan: ApplyPlan, rows: pa.Table, related: pa.Table, verdicts: pa.Table) -> pa.Table:
    """Fills in values that were not sent: after a key change from the row of the old key, otherwise from the
    key's row."""
    if rows[UNCHANGED].null_count == rows.num_rows:
        return rows
    moved = pc.is_valid(rows[old_key_columns(plan)[-1]])
    giver = pc.if_else(moved, verdicts["_o"], verdicts["_t"])
    if plan.soft_deletes:
        rows = _mark_values(rows, pc.equal(related[CDC_DELETED].fill_null(False).take(giver), False))
    for name in list_missing_names(rows):
        lacks = pa.array([name in (names or ()) for names in rows[UNCHANGED].to_pylist()])
        given = related[name].take(giver).cast(rows[name].type)
        rows = rows.set_column(rows.column_names.index(name), name, pc.if_else(lacks, given, rows[name]))
    return rows


def _mark_values(rows: pa.Table, alive: pa.ChunkedArray) -> pa.Table:
    """See `reconcile._has_values_condition`. `alive`: true if the row that provides the values is alive, null
    if there is none."""
    lacks = pa.array([names is not None and KEEP_EXISTING not in names for names in rows[UNCHANGED].to_pylist()], pa.bool_())
    completed = pc.and_(pc.equal(rows[OP], Op.DELETE.value), pc.and_(lacks, pc.fill_null(alive, False)))
    marks = pc.if_else(completed, pa.scalar(True), rows[CDC_DELETED])
    return rows.set_column(rows.column_names.index(CDC_DELETED), CDC_DELETED, marks)


def list_missing_names(rows: pa.Table, column: str = UNCHANGED) -> list[str]:
    """The columns that some row lacks; `column` holds their names."""
    return sorted(set(pc.list_flatten(rows[column].combine_chunks()).to_pylist()) - {KEEP_EXISTING})


def describe_incomplete(rejected: pa.Table) -> list[str]:
    """The reason why each of these rows cannot be completed."""
    return [str(missing_values_reject(names)) for names in rejected[UNCHANGED].to_pylist()]


def _count_outcomes(outcome: pa.ChunkedArray) -> Counts:
    seen = {entry["values"]: entry["counts"] for entry in pc.value_counts(outcome).to_pylist()}
    return Counts(
        applied=seen.get(APPLY, 0),
        superseded=seen.get(SUPERSEDED, 0),
        duplicate=seen.get(DUPLICATE, 0),
        rejected=seen.get(INCOMPLETE, 0) + seen.get(LATE, 0),
    )
