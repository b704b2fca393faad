"""Column names in Delta tables.

Spark refuses space , ; { } ( ) = tab and newline in the column names of a Delta table without column mapping,
which delta-rs does not write. Such a character is stored as `_xHHHH_`. An underscore that looks like the start
of such an escape is escaped, too. If an existing table has a column with the original name, that column is
used.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace

import pyarrow as pa

from replicator.domain.change import OLD_KEY, UNCHANGED
from replicator.domain.policy.expr import (
    AllOf,
    AnyOf,
    Call,
    Case,
    Cast,
    Coalesce,
    Col,
    Compare,
    Expr,
    IsNull,
    Lit,
    Not,
    SentValue,
)
from replicator.domain.policy.plan import ApplyPlan, Clause
from replicator.domain.table import Column

_KEPT_APART = re.compile(r"[ ,;{}()\n\t=]|_(?=x[0-9A-F]{4}_)")
_ESCAPE = re.compile(r"_x([0-9A-F]{4})_")

Names = Mapping[str, str]


def stored_name(name: str) -> str:
    """`name` with `_xHHHH_` for every character that Delta readers refuse."""
    return _KEPT_APART.sub(lambda m: f"_x{ord(m[0]):04X}_", name)


def source_name(stored: str) -> str:
    """The name that `stored_name` encoded as `stored`."""
    return _ESCAPE.sub(lambda m: chr(int(m[1], 16)), stored)


def stored_names(names: Collection[str], there: Collection[str] = ()) -> Names:
    """The names that are stored differently, with their stored names. `there`: the columns of the table."""
    return {n: stored_name(n) for n in names if stored_name(n) != n and n not in there}


def stored_columns(columns: tuple[Column, ...], there: Collection[str] = ()) -> tuple[Column, ...]:
    """The columns under their stored names."""
    names = stored_names([c.name for c in columns], there)
    return tuple(replace(c, name=names.get(c.name, c.name)) for c in columns)


def to_stored_plan(plan: ApplyPlan) -> ApplyPlan:
    """The plan with the stored names of a new table."""
    return stored_plan(plan, stored_names(plan.table.column_names))


def stored_plan(plan: ApplyPlan, names: Names) -> ApplyPlan:
    """The plan with columns renamed by `names`."""

    def new(name: str) -> str:
        return names.get(name, name)

    def columns(of: tuple[Column, ...]) -> tuple[Column, ...]:
        return tuple(replace(c, name=new(c.name)) for c in of)

    table, reconcile, history = plan.table, plan.reconcile, plan.history
    return replace(
        plan,
        table=replace(table, columns=columns(table.columns), keys=tuple(map(new, table.keys))),
        target=columns(plan.target),
        reconcile=replace(reconcile, identity=tuple(map(new, reconcile.identity))),
        merge_keys=tuple(map(new, plan.merge_keys)),
        clauses=tuple(_rename_clause(c, names) for c in plan.clauses),
        history=history
        and replace(history, tracked=tuple(map(new, history.tracked)), untracked=tuple(map(new, history.untracked))),
    )


def stored_frame(frame: pa.Table, names: Names) -> pa.Table:
    """A folded frame with columns renamed by `names`, also within `_unsent` and the old key."""
    if UNCHANGED in frame.column_names and frame[UNCHANGED].null_count < frame.num_rows:
        renamed = [None if row is None else [names.get(n, n) for n in row] for row in frame[UNCHANGED].to_pylist()]
        frame = frame.set_column(frame.column_names.index(UNCHANGED), UNCHANGED, pa.array(renamed, pa.list_(pa.string())))
    if OLD_KEY in frame.column_names:
        moved = frame[OLD_KEY].combine_chunks()
        fields = [f.with_name(names.get(f.name, f.name)) for f in moved.type]
        struct = pa.StructArray.from_arrays(moved.flatten(), fields=fields, mask=moved.is_null())
        frame = frame.set_column(frame.column_names.index(OLD_KEY), OLD_KEY, struct)
    return frame.rename_columns([names.get(n, n) for n in frame.column_names])


def _rename_clause(clause: Clause, names: Names) -> Clause:
    assign = tuple((names.get(name, name), _rename_expression(value, names)) for name, value in clause.assign)
    return replace(clause, when=_rename_expression(clause.when, names), assign=assign)


def _rename_expression(expr: Expr, names: Names) -> Expr:  # noqa: PLR0911  (a case each)
    match expr:
        case Col(side, name):
            return Col(side, names.get(name, name))
        case Lit():
            return expr
        case SentValue(name):
            return SentValue(names.get(name, name))
        case Compare(op, left, right):
            return Compare(op, _rename_expression(left, names), _rename_expression(right, names))
        case Coalesce(first, other):
            return Coalesce(_rename_expression(first, names), _rename_expression(other, names))
        case IsNull(operand) | Not(operand):
            return type(expr)(_rename_expression(operand, names))
        case AllOf(terms) | AnyOf(terms):
            return type(expr)(tuple(_rename_expression(t, names) for t in terms))
        case Call() | Cast() | Case():
            raise AssertionError(f"no policy has this: {expr}")
