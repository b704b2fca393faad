"""Expressions of the configuration on the columns of a source: conditions, and computed columns.

They use `domain.policy.expr` with the side `source`, and SQL's three-valued logic. In a condition, an unchanged value
is unknown: neither NULL nor anything else. A condition that is unknown for a row does not hold.
"""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa

from replicator.domain.errors import ConfigProblem
from replicator.domain.policy.expr import AllOf, AnyOf, Call, Case, Cast, Coalesce, Col, Compare, Expr, IsNull, Lit, Not
from replicator.domain.table import TableSpec

from .expression_resolver import resolve_boolean, resolve_expression
from .functions import ARITHMETIC
from .typed_expressions import InvalidExpression, TypedExpr


def list_columns(expression: Expr) -> frozenset[str]:
    """The columns in an expression."""
    if isinstance(expression, Col):
        return frozenset({expression.name})
    return frozenset[str]().union(*map(list_columns, list_operands(expression)))


def list_operands(expression: Expr) -> tuple[Expr, ...]:
    """The direct operands of an expression."""
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


def to_text(expression: Expr) -> str:  # noqa: PLR0911  (a case each)
    """The expression in the syntax of the configuration; equal expressions have equal texts."""
    match expression:
        case Col(_, name):
            return name
        case Lit(value):
            return _constant_to_text(value)
        case Compare(op, left, right):
            return f"{to_text(left)} {op} {to_text(right)}"
        case AllOf(terms) | AnyOf(terms):
            return f"({(' and ' if isinstance(expression, AllOf) else ' or ').join(map(to_text, terms))})"
        case IsNull(operand):
            return f"{to_text(operand)} is null"
        case Not(operand):
            return f"not ({to_text(operand)})"
    return _function_to_text(expression)


def _function_to_text(expression: Expr) -> str:
    match expression:
        case Coalesce(first, other):
            return f"coalesce({to_text(first)}, {to_text(other)})"
        case Cast(operand, kind):
            return f"cast({to_text(operand)} as {kind})"
        case Case(branches, otherwise):
            asked = (f"when {to_text(when)} then {to_text(then)}" for when, then in branches)
            return f"case {' '.join(asked)} else {to_text(otherwise)} end"
        case Call(name, arguments):
            between, words = (f" {name} ", "") if name in (*ARITHMETIC, "||") else (", ", name)
            return f"{words}({between.join(map(to_text, arguments))})"
    raise AssertionError(f"no expression: {expression}")


def _constant_to_text(value: str | int | bool | Decimal | None) -> str:
    if isinstance(value, str):
        return "'{}'".format(value.replace("'", "''"))
    return "null" if value is None else str(value).lower()


def refuse_condition(expression: Expr, table: TableSpec, key: str) -> None:
    """Raise ConfigProblem if the condition, under `key` in the configuration, is invalid for `table`. It may name an
    unknown column, or compare values that cannot be compared."""
    _refuse_unknown(expression, table, key)
    try:
        resolve_condition(expression, table)
    except InvalidExpression as why:
        raise ConfigProblem(f"'{key}' of table {table.name} {why}", next_step="Correct the condition.") from None


def resolve_condition(expression: Expr, table: TableSpec) -> TypedExpr:
    """The condition with types. InvalidExpression if it is invalid."""
    return resolve_boolean(expression, {column.name: column.type for column in table.columns})


def resolve_computed_column(name: str, expression: Expr, table: TableSpec) -> TypedExpr:
    """The typed expression of the computed column `name`, over the columns of `table`. ConfigProblem if it is invalid."""
    key = f"the expression of column {name}"
    _refuse_unknown(expression, table, key)
    try:
        found = resolve_expression(expression, {column.name: column.type for column in table.columns})
        if pa.types.is_null(found.type):
            raise InvalidExpression("is always NULL")
    except InvalidExpression as why:
        raise ConfigProblem(f"'{key}' of table {table.name} {why}", next_step="Correct the expression.") from None
    return found


def _refuse_unknown(expression: Expr, table: TableSpec, key: str) -> None:
    for name in sorted(list_columns(expression) - set(table.column_names)):
        raise make_unknown_column_error(name, table, key)


def make_unknown_column_error(name: str, table: TableSpec, key: str) -> ConfigProblem:
    """The error of a configuration key that names a column which the table does not have."""
    known = ", ".join(table.column_names)
    return ConfigProblem(
        f"'{key}' names column {name!r}, which table {table.name} does not have",
        next_step=f"Its columns are: {known}. Names are compared exactly. Write text in single quotes.",
    )
