"""Renders expressions, the write stage of a plan, and the current rows of tables that also store old versions or deleted
rows.

Stage 3 is in `reconcile` and `scd2`. The statement of a truncate is `reconcile.render_truncate`."""

from __future__ import annotations

from collections.abc import Collection
from decimal import Decimal

from replicator.domain.change import UNCHANGED
from replicator.domain.expr import (
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
from replicator.domain.policy import VERSION_POLICIES
from replicator.domain.policy.plan import CDC_DELETED, ApplyPlan, end_sequence_columns
from replicator.ports.frames import Lane

from .dialect import Dialect, text_literal


def render_expression(expr: Expr, dialect: Dialect, source: str = "s", target: str = "t") -> str:
    """`expr` as SQL over the relations aliased `source` and `target`."""

    def render(e: Expr) -> str:  # noqa: PLR0911  (a case each)
        match e:
            case Col(side, name):
                return dialect.column(source if side == "source" else target, name)
            case Lit(value):
                return render_literal(value)
            case SentValue(name):
                unchanged = dialect.contains.format(list=dialect.column(source, UNCHANGED), item=dialect.text(name))
                return f"CASE WHEN {unchanged} THEN {dialect.column(target, name)} ELSE {dialect.column(source, name)} END"
            case Compare(op, left, right):
                return f"{render(left)} {op} {render(right)}"
            case Coalesce(first, other):
                return f"COALESCE({render(first)}, {render(other)})"
            case IsNull(operand) | Not(operand):
                return f"{render(operand)} IS NULL" if isinstance(e, IsNull) else f"NOT ({render(operand)})"
            case AllOf(terms) | AnyOf(terms):
                word, empty = ("AND", "TRUE") if isinstance(e, AllOf) else ("OR", "FALSE")
                joined = f" {word} ".join(render(t) for t in terms) or empty
                return f"({joined})" if len(terms) > 1 else joined
            case Call() | Cast() | Case():
                raise AssertionError(f"no policy has this: {e}")

    return render(expr)


def render_literal(value: str | int | bool | Decimal | None) -> str:
    """A constant as SQL."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "TRUE" if value else "FALSE"
        case int() | Decimal():
            return str(value)
        case str():
            return text_literal(value)


def merge_condition(plan: ApplyPlan, dialect: Dialect, source: str = "s", target: str = "t") -> str:
    """The condition that matches rows of the source with rows of the target."""
    pairs = (f"{dialect.column(target, k)} = {dialect.column(source, k)}" for k in plan.merge_keys)
    return " AND ".join(pairs)


def render_merge(plan: ApplyPlan, dialect: Dialect, target: str, source: str) -> str:
    """Stage 4 as one statement; `target` and `source` are relations as SQL text. Without merge keys it is an
    INSERT."""
    if not plan.merge_keys:
        (clause,) = plan.clauses
        columns = ", ".join(dialect.quote_name(name) for name, _ in clause.assign)
        select_list = ", ".join(render_expression(value, dialect) for _, value in clause.assign)
        return f"INSERT INTO {target} ({columns})\n{dialect.overriding}SELECT {select_list}\nFROM {source} AS s"
    lines = [f"MERGE INTO {target} AS t USING {source} AS s ON {merge_condition(plan, dialect)}"]
    for clause in plan.clauses:
        names = [dialect.quote_name(name) for name, _ in clause.assign]
        values = [render_expression(value, dialect) for _, value in clause.assign]
        head = f"WHEN {'MATCHED' if clause.matched else 'NOT MATCHED'} AND {render_expression(clause.when, dialect)} THEN"
        match clause.action:
            case "delete":
                lines.append(f"{head} DELETE")
            case "update":
                pairs = ", ".join(f"{n} = {v}" for n, v in zip(names, values, strict=True))
                lines.append(f"{head} UPDATE SET {pairs}")
            case "insert":
                lines.append(f"{head} INSERT ({', '.join(names)}) {dialect.overriding}VALUES ({', '.join(values)})")
    return "\n".join(lines)


# Current rows as a view.

OURS = "replicator: the rows of {table} that hold now"
"""The comment of such a view. A view without it belongs to another program."""
CURRENT, LIVING, NONE = "_current", "_living", ""
"""Suffixes of the table's name: for an scd2 target, and for a target with soft deletes. Other targets have no
view."""
VIEWS = (CURRENT, LIVING)
COLUMNS = {CURRENT: end_sequence_columns(1)[0], LIVING: CDC_DELETED}
"""The column that identifies current rows."""
HOLDS = {CURRENT: "IS NULL", LIVING: "IS NOT TRUE"}


def find_view(plan: ApplyPlan) -> str:
    """The suffix of the target's view."""
    return _view_suffix(history=plan.history is not None, soft_deletes=plan.soft_deletes)


def find_lane_view(lane: Lane) -> str:
    """`find_view` for a lane that has no plan yet."""
    return _view_suffix(history=lane.policy in VERSION_POLICIES, soft_deletes=lane.row_transforms.soft_deletes)


def _view_suffix(*, history: bool, soft_deletes: bool) -> str:
    return CURRENT if history else LIVING if soft_deletes else NONE


def current_rows_query(view: str, dialect: Dialect, relation: str) -> str:
    """The query of such a view over `relation`."""
    return f"SELECT * FROM {relation} WHERE {dialect.quote_name(COLUMNS[view])} {HOLDS[view]}"


# Current rows as a condition of comparisons.


def current_rows_condition(dialect: Dialect, lane: Lane, names: Collection[str]) -> str:
    """A condition for the rows of a target that its source should have too: open versions, without rows that are marked as
    deleted. `names`: the columns of the target."""
    conditions = []
    if lane.policy in VERSION_POLICIES:
        conditions.append(f"{dialect.quote_name(end_sequence_columns(1)[0])} IS NULL")
    if CDC_DELETED in names:
        conditions.append(f"NOT coalesce({dialect.quote_name(CDC_DELETED)}, false)")
    return " AND ".join(conditions) or "true"
