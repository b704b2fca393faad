"""Stage 4 on delta-rs: the plan's clauses as one merge, or an append for a plan without merge keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.table import TableMerger

from replicator.domain.change import OP, UNSENT, Op
from replicator.domain.expr import source as value_of
from replicator.domain.plan import CDC_DELETED, CDC_DELETED_AT, END_AT, ApplyPlan, Clause, Cut, end_sequence_columns
from replicator.domain.policies import NOT_DELETE

from ..sql.dialect import DELTA_RS, DELTA_RS_ALONE
from ..sql.history_events import ended_by
from ..sql.render import expression, merge_condition
from ..sql.repair import cleared, constant
from .commits import WRITER, Attempt, Operation
from .tables import schema_of

WAITING = 128 * 1024 * 1024
EXHAUSTED = "Resources exhausted"
"""So says delta-rs of a step that cannot do with its part of the bound."""


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
    return Merge(plan, rows.select(names), lambda merger: _clearing(merger, plan, clear))


def _history_stage(plan: ApplyPlan, rows: pa.Table, cuts: list[Cut]) -> Operation | None:
    if not rows.num_rows and not cuts:
        return None
    source = rows.select([OP, *(c.name for c in plan.target)])

    def with_cuts(merger: TableMerger) -> TableMerger:
        for cut in cuts:
            merger = merger.when_not_matched_by_source_update(_ended(plan, cut), ended_by(plan, DELTA_RS, cut.sequence))
        return merger

    return Merge(plan, source, with_cuts)


def _ended(plan: ApplyPlan, cut: Cut) -> dict[str, str]:
    """What a truncate writes into a version."""
    names = end_sequence_columns(plan.table.sequence)
    values = {DELTA_RS.quoted(n): constant(v, DELTA_RS) for n, v in zip(names, cut.sequence, strict=True)}
    return values | {DELTA_RS.quoted(END_AT): _instant(cut)}


def _instant(cut: Cut) -> str:
    return "NULL" if cut.at is None else f"arrow_cast({cut.at}, 'Timestamp(Microsecond, Some(\"UTC\"))')"


def append_stage(rows: pa.Table) -> Operation:
    """An append of `rows`; columns of the table that they lack become null, columns that it lacks are left out."""

    return lambda snapshot, attempt: _append(snapshot, attempt.properties, rows)


def _append(snapshot: DeltaTable, properties: CommitProperties, rows: pa.Table) -> None:
    aligned = stored_rows(rows, schema_of(snapshot))
    write_deltalake(snapshot, aligned, mode="append", writer_properties=WRITER, commit_properties=properties)


def stored_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """`rows` with the columns of a table: null where they lack them, without those that the table lacks."""
    known = [rows[f.name] if f.name in rows.column_names else pa.nulls(rows.num_rows, f.type) for f in schema]
    return pa.table(known, schema=schema)


def delete_all(snapshot: DeltaTable, attempt: Attempt) -> None:
    """An `Operation` that removes every row."""
    snapshot.delete(commit_properties=attempt.properties)


def _clearing(merger: TableMerger, plan: ApplyPlan, clear: Cut | None) -> TableMerger:
    if clear is None:
        return merger
    found = cleared(plan, DELTA_RS, clear.sequence)
    if not plan.soft_deletes:
        return merger.when_not_matched_by_source_delete(found)
    marks = {DELTA_RS.quoted(CDC_DELETED): "TRUE", DELTA_RS.quoted(CDC_DELETED_AT): _instant(clear)}
    return merger.when_not_matched_by_source_update(marks, found)


def bound(source: pa.Table) -> int:
    """Bytes that may wait in memory between the steps of a merge of these rows, which are there twice. Without it
    the table's rows wait in memory as far as reading is ahead of writing; with it they do in files."""
    return WAITING + 2 * int(source.nbytes)


def remove_key(row: pa.Table) -> Callable[[DeltaTable, Attempt | None], None]:
    """An `Operation` of delta-rs that removes the rows with that key, also of a table of no lane. Streamed, for otherwise
    delta-rs writes the values that it looks for into the log."""
    same = " AND ".join(f"t.{DELTA_RS.quoted(name)} = s.{DELTA_RS.quoted(name)}" for name in row.column_names)

    def remove(snapshot: DeltaTable, attempt: Attempt | None) -> None:
        merger = snapshot.merge(
            row,
            same,
            source_alias="s",
            target_alias="t",
            streamed_exec=True,
            max_spill_size=bound(row),
            writer_properties=WRITER,
            commit_properties=None if attempt is None else attempt.properties,
        )
        merger.when_matched_delete().execute()

    return remove


@dataclass(frozen=True)
class Merge:
    """An `Operation`: the plan's clauses on `source`, and what `more` adds, as one merge. What cannot be done within the
    bound is done without it. Of a table without rows there is nothing to be met: what a merge would insert is appended."""

    plan: ApplyPlan
    source: pa.Table
    more: Callable[[TableMerger], TableMerger]

    def __call__(self, snapshot: DeltaTable, attempt: Attempt) -> None:
        """See `Operation`."""
        plan, source, properties = self.plan, self.source, attempt.properties
        if takes_rows_as_they_are(plan) and has_no_rows(snapshot):
            _append(snapshot, properties, self.inserted)
            return
        # What making the rows took is not kept while the merge needs as much again.
        pa.default_memory_pool().release_unused()
        try:
            self.more(_merger(snapshot, properties, plan, source, bound(source))).execute()
        except DeltaError as error:
            if EXHAUSTED not in str(error):
                raise
            self.more(_merger(snapshot, properties, plan, source, None)).execute()

    @property
    def inserted(self) -> pa.Table:
        """What there is of a table without rows after it, for a plan that takes rows as they are."""
        return self.source.filter(pc.not_equal(self.source[OP], Op.DELETE.value))


def has_no_rows(snapshot: DeltaTable) -> bool:
    """Whether the table has no file."""
    return not pa.table(snapshot.get_add_actions()).num_rows


def takes_rows_as_they_are(plan: ApplyPlan) -> bool:
    """Whether a merge leaves in a table without rows those that are no deletes, as they are."""
    inserts = [clause for clause in plan.clauses if not clause.matched]
    as_it_is = tuple((column.name, value_of(column.name)) for column in plan.target)
    return [(clause.when, clause.assign) for clause in inserts] == [(NOT_DELETE, as_it_is)]


def _merger(
    snapshot: DeltaTable, properties: CommitProperties, plan: ApplyPlan, source: pa.Table, waiting: int | None
) -> TableMerger:
    merger = snapshot.merge(
        source,
        merge_condition(plan, DELTA_RS),
        source_alias="s",
        target_alias="t",
        streamed_exec=False,
        max_spill_size=waiting,
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
