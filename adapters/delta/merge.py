"""Stage 4 on delta-rs: the plan's clauses as one merge, or an append for a plan without merge keys."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.table import TableMerger

from replicator.domain.change import OP, UNSENT
from replicator.domain.plan import CDC_DELETED, CDC_DELETED_AT, END_AT, ApplyPlan, Clause, Cut, end_sequence_columns

from ..sql.dialect import DELTA_RS, DELTA_RS_ALONE
from ..sql.history_events import ended_by
from ..sql.render import expression, merge_condition
from ..sql.repair import cleared, constant
from .commits import WRITER, Attempt, Operation
from .tables import schema_of


def write_stage(plan: ApplyPlan, rows: pa.Table, clear: Cut | None, cuts: Iterable[Cut] = ()) -> Operation | None:
    """What stage 4 does with `rows` (types of the table, one row per merge key); None when there is nothing to do.

    `clear`: rows of the target below that truncate, or without a sequence, go, in the same commit, or are marked. `cuts`,
    of a history: the other versions end at the first of these truncates that lies within them.
    """
    if plan.history is not None:
        return _history_stage(plan, rows, sorted(cuts, key=lambda cut: cut.sequence))
    if not rows.num_rows and clear is None:
        return None
    if not plan.merge_keys:
        return append_stage(rows)
    if not rows.num_rows and clear is not None and not plan.soft_deletes:
        return delete_where(cleared(plan, DELTA_RS_ALONE, clear.sequence))
    names = [OP, *(c.name for c in plan.target), *([UNSENT] if plan.by_column else [])]
    source = rows.select(names)
    return lambda snapshot, attempt: _merge(snapshot, attempt.properties, plan, source, clear)


def _history_stage(plan: ApplyPlan, rows: pa.Table, cuts: list[Cut]) -> Operation | None:
    if not rows.num_rows and not cuts:
        return None
    source = rows.select([OP, *(c.name for c in plan.target)])

    def merge(snapshot: DeltaTable, attempt: Attempt) -> None:
        merger = _merger(snapshot, attempt.properties, plan, source)
        for cut in cuts:
            merger = merger.when_not_matched_by_source_update(_ended(plan, cut), ended_by(plan, DELTA_RS, cut.sequence))
        merger.execute()

    return merge


def _ended(plan: ApplyPlan, cut: Cut) -> dict[str, str]:
    """What a truncate writes into a version."""
    names = end_sequence_columns(plan.table.sequence)
    values = {DELTA_RS.quoted(n): constant(v, DELTA_RS) for n, v in zip(names, cut.sequence, strict=True)}
    return values | {DELTA_RS.quoted(END_AT): _instant(cut)}


def _instant(cut: Cut) -> str:
    return "NULL" if cut.at is None else f"arrow_cast({cut.at}, 'Timestamp(Microsecond, Some(\"UTC\"))')"


def append_stage(rows: pa.Table) -> Operation:
    """An append of `rows`; columns of the table that they lack become null, columns that it lacks are left out."""

    def write(snapshot: DeltaTable, attempt: Attempt) -> None:
        schema = schema_of(snapshot)
        known = [rows[f.name] if f.name in rows.column_names else pa.nulls(rows.num_rows, f.type) for f in schema]
        aligned = pa.table(known, schema=schema)
        write_deltalake(snapshot, aligned, mode="append", writer_properties=WRITER, commit_properties=attempt.properties)

    return write


def delete_all(snapshot: DeltaTable, attempt: Attempt) -> None:
    """An `Operation` that removes every row."""
    snapshot.delete(commit_properties=attempt.properties)


def _merge(snapshot: DeltaTable, properties: CommitProperties, plan: ApplyPlan, source: pa.Table, clear: Cut | None) -> None:
    merger = _merger(snapshot, properties, plan, source)
    if clear is not None and plan.soft_deletes:
        marks = {DELTA_RS.quoted(CDC_DELETED): "TRUE", DELTA_RS.quoted(CDC_DELETED_AT): _instant(clear)}
        merger = merger.when_not_matched_by_source_update(marks, cleared(plan, DELTA_RS, clear.sequence))
    elif clear is not None:
        merger = merger.when_not_matched_by_source_delete(cleared(plan, DELTA_RS, clear.sequence))
    merger.execute()


def _merger(snapshot: DeltaTable, properties: CommitProperties, plan: ApplyPlan, source: pa.Table) -> TableMerger:
    merger = snapshot.merge(
        source,
        merge_condition(plan, DELTA_RS),
        source_alias="s",
        target_alias="t",
        streamed_exec=False,
        writer_properties=WRITER,
        commit_properties=properties,
    )
    for clause in plan.clauses:
        merger = _with_clause(merger, clause)
    return merger


def _with_clause(merger: TableMerger, clause: Clause) -> TableMerger:
    when = expression(clause.when, DELTA_RS)
    values = {DELTA_RS.quoted(name): expression(value, DELTA_RS) for name, value in clause.assign}
    match clause.matched, clause.action:
        case True, "delete":
            return merger.when_matched_delete(when)
        case True, "update":
            return merger.when_matched_update(values, when)
        case False, "insert":
            return merger.when_not_matched_insert(values, when)
    raise AssertionError(f"a plan cannot {clause.action} rows that are {'' if clause.matched else 'not '}there")


def delete_where(condition: str) -> Operation:
    """An `Operation` that removes the rows for which the condition holds."""

    def delete(snapshot: DeltaTable, attempt: Attempt) -> None:
        snapshot.delete(condition, commit_properties=attempt.properties)

    return delete
