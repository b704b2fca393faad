"""Expressions of the configuration on the columns of a source: conditions, and what computed columns are made of.

They are written with `domain.expr` over the side `source`, with SQL's three-valued logic. In a condition what was not sent
is unknown: neither NULL nor anything else. One that is unknown for a row does not hold.
"""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa

from .errors import ConfigProblem
from .expr import AllOf, AnyOf, Call, Case, Cast, Coalesce, Col, Compare, Expr, IsNull, Lit, Not
from .functions import ARITHMETIC
from .resolving import condition, resolved
from .table import TableSpec
from .typed import Senseless, Typed


def columns_of(expression: Expr) -> frozenset[str]:
    """The columns that an expression names."""
    if isinstance(expression, Col):
        return frozenset({expression.name})
    return frozenset[str]().union(*map(columns_of, parts(expression)))


def parts(expression: Expr) -> tuple[Expr, ...]:
    """What an expression is directly made of."""
    match expression:
        case Compare(_, left, right) | Coalesce(left, right):
            return (left, right)
        case AllOf(terms) | AnyOf(terms) | Call(_, terms):
            return terms
        case IsNull(operand) | Not(operand) | Cast(operand, _):
            return (operand,)
        case Case(branches, otherwise):
            return (*(part for branch in branches for part in branch), otherwise)
    return ()


def told(expression: Expr) -> str:  # noqa: PLR0911  (a case each)
    """The expression in the words of the configuration, the same for equal ones."""
    match expression:
        case Col(_, name):
            return name
        case Lit(value):
            return _told_constant(value)
        case Compare(op, left, right):
            return f"{told(left)} {op} {told(right)}"
        case AllOf(terms) | AnyOf(terms):
            return f"({(' and ' if isinstance(expression, AllOf) else ' or ').join(map(told, terms))})"
        case IsNull(operand):
            return f"{told(operand)} is null"
        case Not(operand):
            return f"not ({told(operand)})"
    return _told_function(expression)


def _told_function(expression: Expr) -> str:
    match expression:
        case Coalesce(first, other):
            return f"coalesce({told(first)}, {told(other)})"
        case Cast(operand, kind):
            return f"cast({told(operand)} as {kind})"
        case Case(branches, otherwise):
            asked = (f"when {told(when)} then {told(then)}" for when, then in branches)
            return f"case {' '.join(asked)} else {told(otherwise)} end"
        case Call(name, arguments):
            between, words = (f" {name} ", "") if name in (*ARITHMETIC, "||") else (", ", name)
            return f"{words}({between.join(map(told, arguments))})"
    raise AssertionError(f"no expression: {expression}")


def _told_constant(value: str | int | bool | Decimal | None) -> str:
    if isinstance(value, str):
        return "'{}'".format(value.replace("'", "''"))
    return "null" if value is None else str(value).lower()


def refuse_condition(expression: Expr, table: TableSpec, key: str) -> None:
    """Raise ConfigProblem when the condition, which the configuration says under `key`, makes no sense for `table`: it names
    an unknown column, or compares what cannot be compared."""
    _refuse_unknown(expression, table, key)
    try:
        condition_of(expression, table)
    except Senseless as why:
        raise ConfigProblem(f"'{key}' of table {table.name} {why}", next_step="Correct the condition.") from None


def condition_of(expression: Expr, table: TableSpec) -> Typed:
    """A condition with its types. Senseless when it makes no sense."""
    return condition(expression, {column.name: column.type for column in table.columns})


def computed(name: str, expression: Expr, table: TableSpec) -> Typed:
    """What a computed column of that name is made of, over the columns of `table`. ConfigProblem when it makes no sense."""
    key = f"the expression of column {name}"
    _refuse_unknown(expression, table, key)
    try:
        found = resolved(expression, {column.name: column.type for column in table.columns})
        if pa.types.is_null(found.type):
            raise Senseless("is always NULL")
    except Senseless as why:
        raise ConfigProblem(f"'{key}' of table {table.name} {why}", next_step="Correct the expression.") from None
    return found


def _refuse_unknown(expression: Expr, table: TableSpec, key: str) -> None:
    for name in sorted(columns_of(expression) - set(table.column_names)):
        raise unknown_column(name, table, key)


def unknown_column(name: str, table: TableSpec, key: str) -> ConfigProblem:
    """The error of a key that names a column which the table does not have."""
    known = ", ".join(table.column_names)
    return ConfigProblem(
        f"'{key}' names column {name!r}, which table {table.name} does not have",
        next_step=f"Its columns are: {known}. Names are compared exactly, text is written in single quotes.",
    )
