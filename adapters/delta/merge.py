"""Stage 4 on delta-rs: the plan's clauses as one merge, or an append for a plan without merge keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.table import TableMerger

from replicator.domain.change import OP, UNCHANGED, Op
from replicator.domain.expr import source as value_of
from replicator.domain.policy.plan import ApplyPlan, Truncate
from replicator.domain.policy.policies import NOT_DELETE

from ..sql.dialect import DELTA_RS, DELTA_RS_ALONE
from ..sql.reconcile import cleared_condition, truncate_parts
from ..sql.render import merge_condition, render_expression
from .commits import WRITER, Attempt, Operation
from .tables import read_schema

WAITING = 128 * 1024 * 1024
EXHAUSTED = "Resources exhausted"
"""The error of delta-rs for a step that needs more than its share of the memory limit."""


def make_merge_operation(plan: ApplyPlan, rows: pa.Table, truncates: Sequence[Truncate]) -> Operation | None:
    """Stage 4 for `rows` (types of the table, one row per merge key); None when there is nothing to do.

    The same commit applies `truncates` to the rows of the table that are not in `rows`. For scd1, the single truncate
    deletes (or marks) rows below it, and rows without a sequence. For scd2, versions end at the first truncate that
    lies within them.
    """
    if not rows.num_rows and not truncates:
        return None
    if not plan.merge_keys:
        return make_append_operation(rows)
    if not rows.num_rows and plan.history is None and not plan.soft_deletes:
        return delete_where(cleared_condition(plan, DELTA_RS_ALONE, truncates[0].sequence))
    names = [OP, *(c.name for c in plan.target), *([UNCHANGED] if plan.has_column_versions else [])]
    return Merge(plan, rows.select(names), partial(_add_truncates, plan=plan, truncates=truncates))


def _add_truncates(merger: TableMerger, plan: ApplyPlan, truncates: Sequence[Truncate]) -> TableMerger:
    for truncate in truncates:
        truncated, assignments = truncate_parts(plan, DELTA_RS, truncate)
        if assignments:
            merger = merger.when_not_matched_by_source_update(assignments, truncated)
        else:
            merger = merger.when_not_matched_by_source_delete(truncated)
    return merger


def make_append_operation(rows: pa.Table) -> Operation:
    """An append of `rows`. Missing columns become null; columns that the table does not have are left out."""

    return lambda snapshot, attempt: _append_rows(snapshot, attempt.properties, rows)


def _append_rows(snapshot: DeltaTable, properties: CommitProperties, rows: pa.Table) -> None:
    aligned = stored_rows(rows, read_schema(snapshot))
    write_deltalake(snapshot, aligned, mode="append", writer_properties=WRITER, commit_properties=properties)


def stored_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """`rows` with exactly the columns of a table. Missing columns are null."""
    columns = [rows[f.name] if f.name in rows.column_names else pa.nulls(rows.num_rows, f.type) for f in schema]
    return pa.table(columns, schema=schema)


def delete_all(snapshot: DeltaTable, attempt: Attempt) -> None:
    """An `Operation` that deletes every row."""
    snapshot.delete(commit_properties=attempt.properties)


def memory_bound(source: pa.Table) -> int:
    """The limit in bytes for data that waits between the steps of a merge of these rows, which are in memory
    twice.

    Without a limit, rows of the table wait in memory when reading is faster than writing. With it, they wait in
    files.
    """
    return WAITING + 2 * int(source.nbytes)


def remove_key(row: pa.Table) -> Callable[[DeltaTable, Attempt | None], None]:
    """An `Operation` of delta-rs that deletes the rows with that key, also in a table without a lane.

    It streams, because otherwise delta-rs writes the searched values into the log.
    """
    same = " AND ".join(f"t.{DELTA_RS.quote_name(name)} = s.{DELTA_RS.quote_name(name)}" for name in row.column_names)

    def remove(snapshot: DeltaTable, attempt: Attempt | None) -> None:
        merger = snapshot.merge(
            row,
            same,
            source_alias="s",
            target_alias="t",
            streamed_exec=True,
            max_spill_size=memory_bound(row),
            writer_properties=WRITER,
            commit_properties=None if attempt is None else attempt.properties,
        )
        merger.when_matched_delete().execute()

    return remove


@dataclass(frozen=True)
class Merge:
    """An `Operation`: the plan's clauses on `source`, and the clauses of `more`, as one merge.

    If the memory limit is too small, the merge is repeated without it. For a table without rows, the inserts
    are appended.
    """

    plan: ApplyPlan
    source: pa.Table
    more: Callable[[TableMerger], TableMerger]

    def __call__(self, snapshot: DeltaTable, attempt: Attempt) -> None:
        plan, source, properties = self.plan, self.source, attempt.properties
        if can_insert_as_is(plan) and is_empty(snapshot):
            _append_rows(snapshot, properties, self.inserted_rows)
            return
        # Free unused memory first, because the merge needs as much again.
        pa.default_memory_pool().release_unused()
        try:
            self.more(_create_merger(snapshot, properties, plan, source, memory_bound(source))).execute()
        except DeltaError as error:
            if EXHAUSTED not in str(error):
                raise
            self.more(_create_merger(snapshot, properties, plan, source, None)).execute()

    @property
    def inserted_rows(self) -> pa.Table:
        """The rows that an empty table has afterwards, for a plan that inserts rows unchanged."""
        return self.source.filter(pc.not_equal(self.source[OP], Op.DELETE.value))


def is_empty(snapshot: DeltaTable) -> bool:
    """True when the table has no file."""
    return not pa.table(snapshot.get_add_actions()).num_rows


def can_insert_as_is(plan: ApplyPlan) -> bool:
    """True when a merge into an empty table inserts all rows but deletes, unchanged."""
    inserts = [clause for clause in plan.clauses if not clause.matched]
    as_it_is = tuple((column.name, value_of(column.name)) for column in plan.target)
    return [(clause.when, clause.assign) for clause in inserts] == [(NOT_DELETE, as_it_is)]


def _create_merger(
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
        when = render_expression(clause.when, DELTA_RS)
        values = {DELTA_RS.quote_name(name): render_expression(value, DELTA_RS) for name, value in clause.assign}
        match clause.matched, clause.action:
            case True, "delete":
                merger = merger.when_matched_delete(when)
            case True, "update":
                merger = merger.when_matched_update(values, when)
            case False, "insert":
                merger = merger.when_not_matched_insert(values, when)
            case matched, action:
                raise AssertionError(f"a plan cannot {action} rows that are {'' if matched else 'not '}there")
    return merger


def delete_where(condition: str) -> Operation:
    """An `Operation` that deletes the rows for which the condition is true."""

    def delete(snapshot: DeltaTable, attempt: Attempt) -> None:
        snapshot.delete(condition, commit_properties=attempt.properties)

    return delete
