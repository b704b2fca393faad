"""Stage 3 run in DuckDB, for sinks that apply in process.

DuckDB sees only keys, sequences and flags, and answers with row numbers; values are then taken in Arrow. So no value
passes through a second type system, and wide tables cost no more than narrow ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import ERROR, IF_THERE, OFFSET, OP, RESET, UNSENT, Op
from replicator.domain.errors import AMBIGUOUS_DELETE
from replicator.domain.plan import CDC_DELETED, ApplyPlan, Counts, LaneState, cdc_sequence_columns, resent_below
from replicator.domain.retention import Forgetting, can_be_late, late
from replicator.domain.sequence import Sequence
from replicator.ports.frames import Write

from .departures import without_others
from .dialect import DUCKDB
from .duck import session
from .repair import APPLY, DUPLICATE, INCOMPLETE, LATE, SUPERSEDED, VERDICT, from_columns, joins, not_sent, verdict

ROW = "_row"


@dataclass(frozen=True, slots=True)
class Repaired:
    """`write`: rows for stage 4, complete. `rejects`: rows with `_error`. `counts`: every row of the input, once."""

    write: pa.Table
    rejects: pa.Table
    counts: Counts


def repair(write: Write[pa.Table], rows: pa.Table, related: pa.Table, ledger: pa.Table | None, state: LaneState) -> Repaired:
    """Stage 3 over the rows frame of a write.

    `related`: the target's rows for every identity and old key in `rows` (more do no harm), with the target's columns.
    `ledger`: key columns and `_cdc_seq_*`, the highest per key, or None when nothing is remembered.
    """
    plan, resent = write.plan, resent_below(write.plan, state, write.span)
    rows, others, untold = without_others(plan, rows, related)
    tables = {"changes": rows, "related": related} | ({} if ledger is None else {"ledger": ledger})
    forgetting = can_be_late(plan, write.folded.facts, state)
    select = places_select(plan, ledger=ledger is not None, floor=state.floor, resent=resent, forgetting=forgetting)
    verdicts = _verdicts(plan, tables, select)
    outcome = verdicts[VERDICT]
    apply = pc.equal(outcome, APPLY)
    completed = _completed(plan, rows, related, verdicts) if plan.repair.complete else rows
    rejected = rows.filter(pc.equal(outcome, INCOMPLETE))
    rejects = [with_error(rejected, incomplete_sentences(rejected)), with_ambiguity(untold)]
    if forgetting is not None:
        too_late = rows.filter(pc.equal(outcome, LATE))
        rejects.append(with_error(too_late, [str(late(write.lane.id))] * too_late.num_rows))
    counts = _counts(outcome) + Counts(superseded=others, rejected=untold.num_rows)
    return Repaired(completed.filter(apply), pa.concat_tables(rejects), counts)


def with_error(rows: pa.Table, sentences: list[str]) -> pa.Table:
    """`rows` as rejects."""
    return rows.append_column(ERROR, pa.array(sentences, pa.string()))


def with_ambiguity(rows: pa.Table) -> pa.Table:
    """Deletes of which it cannot be told whose row they are of, as rejects."""
    return with_error(rows, [str(AMBIGUOUS_DELETE)] * rows.num_rows)


def _verdicts(plan: ApplyPlan, tables: Mapping[str, pa.Table], select: str) -> pa.Table:
    sequence = cdc_sequence_columns(plan.table.sequence)
    narrow = (*plan.repair.identity, *(n for n in sequence if n not in plan.repair.identity))
    flags = (OP, UNSENT, RESET, OFFSET, *(from_columns(plan) if plan.repair.complete else ()))
    with session() as connection:
        connection.register("changes", _numbered(tables["changes"].select([*narrow, *flags])))
        marks = (CDC_DELETED,) if plan.soft_deletes else ()
        connection.register("related", _numbered(tables["related"].select([*narrow, *marks])))
        if "ledger" in tables:
            connection.register("ledger", tables["ledger"])
        return connection.sql(select).to_arrow_table()


def places_select(
    plan: ApplyPlan,
    *,
    ledger: bool,
    floor: Sequence | None,
    resent: Sequence | None = None,
    forgetting: Forgetting | None = None,
) -> str:
    """Per row of `changes`, by `_row`: its verdict, and the number of its row in `related` (`_t`) and of that of its old key
    (`_o`). `floor`, `resent`, `forgetting`: see `repair.repair_select`."""
    case = verdict(plan, DUCKDB, ledger=ledger, floor=floor, related="related", resent=resent, forgetting=forgetting)
    t = f"t.{ROW}" if plan.repair.guard == "newer" else "CAST(NULL AS BIGINT)"
    o = f"o.{ROW}" if plan.repair.complete else "CAST(NULL AS BIGINT)"
    tables = joins(plan, DUCKDB, "related", "ledger" if ledger else None)
    return f"SELECT {t} AS _t, {o} AS _o,\n{case} AS {VERDICT}\nFROM changes AS r{tables}\nORDER BY r.{ROW}"


def _numbered(table: pa.Table) -> pa.Table:
    return table.append_column(ROW, pa.array(range(table.num_rows), pa.int64()))


def _completed(plan: ApplyPlan, rows: pa.Table, related: pa.Table, verdicts: pa.Table) -> pa.Table:
    """Values that were not sent, taken from the row of the old key after a key change, otherwise from the key's row."""
    if rows[UNSENT].null_count == rows.num_rows:
        return rows
    moved = pc.is_valid(rows[from_columns(plan)[-1]])
    giver = pc.if_else(moved, verdicts["_o"], verdicts["_t"])
    if plan.soft_deletes:
        rows = _with_values(rows, pc.equal(related[CDC_DELETED].fill_null(False).take(giver), False))
    for name in unsent_names(rows):
        lacks = pa.array([name in (names or ()) for names in rows[UNSENT].to_pylist()])
        given = related[name].take(giver).cast(rows[name].type)
        rows = rows.set_column(rows.column_names.index(name), name, pc.if_else(lacks, given, rows[name]))
    return rows


def _with_values(rows: pa.Table, alive: pa.ChunkedArray) -> pa.Table:
    """As `repair._brings_values`. `alive`: of the row that gives the values; null where there is none."""
    lacks = pa.array([names is not None and IF_THERE not in names for names in rows[UNSENT].to_pylist()], pa.bool_())
    completed = pc.and_(pc.equal(rows[OP], Op.DELETE.value), pc.and_(lacks, pc.fill_null(alive, False)))
    marks = pc.if_else(completed, pa.scalar(True), rows[CDC_DELETED])
    return rows.set_column(rows.column_names.index(CDC_DELETED), CDC_DELETED, marks)


def unsent_names(rows: pa.Table, column: str = UNSENT) -> list[str]:
    """The columns that some row lacks; `column` holds their names."""
    return sorted(set(pc.list_flatten(rows[column].combine_chunks()).to_pylist()) - {IF_THERE})


def incomplete_sentences(rejected: pa.Table) -> list[str]:
    """Why each of these rows cannot be completed."""
    return [str(not_sent(names)) for names in rejected[UNSENT].to_pylist()]


def _counts(outcome: pa.ChunkedArray) -> Counts:
    seen = {entry["values"]: entry["counts"] for entry in pc.value_counts(outcome).to_pylist()}
    return Counts(
        applied=seen.get(APPLY, 0),
        superseded=seen.get(SUPERSEDED, 0),
        duplicate=seen.get(DUPLICATE, 0),
        rejected=seen.get(INCOMPLETE, 0) + seen.get(LATE, 0),
    )
