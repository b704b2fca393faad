"""Conditions of the configuration on the columns of a source: what they may compare, and with what meaning.

They are expressions (`domain.expr`) over the side `source`, with SQL's three-valued logic. What was not sent is unknown:
neither NULL nor anything else. One that is unknown for a row does not hold.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum

import pyarrow as pa
from pyarrow import types as t

from .elements import plain
from .errors import ConfigProblem
from .expr import AllOf, AnyOf, Coalesce, Col, Compare, Expr, IsNull, Lit, Not
from .table import TableSpec

NUMBERS = pa.decimal256(76, 38)
"""Holds every decimal of up to 38 digits, and every integer."""


class Kind(StrEnum):
    """Values that can be compared with each other."""

    NUMBER = "a number"
    TEXT = "text"
    TRUTH = "true or false"
    DAY = "a date"
    MOMENT = "a time with a zone"
    LOCAL_MOMENT = "a time without a zone"


def kind_of(kind: pa.DataType) -> Kind | None:
    """What the values of a type can be compared with; None when with nothing."""
    kind = plain(kind)
    if t.is_timestamp(kind):
        return Kind.MOMENT if kind.tz else Kind.LOCAL_MOMENT
    if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind):
        return Kind.TEXT
    if t.is_boolean(kind):
        return Kind.TRUTH
    if t.is_integer(kind) or t.is_floating(kind) or (t.is_decimal(kind) and kind.precision <= 38 >= kind.scale >= 0):
        return Kind.NUMBER
    return Kind.DAY if t.is_date(kind) else None


def columns_of(condition: Expr) -> frozenset[str]:
    """The columns that a condition names."""
    match condition:
        case Col(_, name):
            return frozenset({name})
        case Compare(_, left, right) | Coalesce(left, right):
            return columns_of(left) | columns_of(right)
        case AllOf(terms) | AnyOf(terms):
            return frozenset().union(*map(columns_of, terms))
        case IsNull(operand) | Not(operand):
            return columns_of(operand)
    return frozenset()


def refuse_condition(condition: Expr, table: TableSpec, key: str) -> None:
    """Raise ConfigProblem when the condition, which the configuration says under `key`, makes no sense for `table`: it names
    an unknown column, or compares what cannot be compared."""
    for name in sorted(columns_of(condition) - set(table.column_names)):
        raise unknown_column(name, table, key)
    try:
        _refuse(condition, table)
    except _Senseless as why:
        raise ConfigProblem(f"'{key}' of table {table.name} {why}", next_step="Correct the condition.") from None


def unknown_column(name: str, table: TableSpec, key: str) -> ConfigProblem:
    """The error of a key that names a column which the table does not have."""
    known = ", ".join(table.column_names)
    return ConfigProblem(
        f"'{key}' names column {name!r}, which table {table.name} does not have",
        next_step=f"Its columns are: {known}. Names are compared exactly, text is written in single quotes.",
    )


class _Senseless(Exception):
    """What is wrong with a condition."""


def _refuse(condition: Expr, table: TableSpec) -> None:
    match condition:
        case AllOf(terms) | AnyOf(terms):
            for term in terms:
                _refuse(term, table)
        case Not(operand):
            _refuse(operand, table)
        case IsNull(Col()) | Lit(None | True | False):
            pass
        case Col(_, name):
            if kind_of(table.column(name).type) is not Kind.TRUTH:
                raise _Senseless(f"takes column {name!r} ({table.column(name).type}) for true or false")
        case Compare():
            _refuse_comparison(condition, table)
        case _:
            raise _Senseless("is neither true nor false")


def _refuse_comparison(comparison: Compare, table: TableSpec) -> None:
    sides = (comparison.left, comparison.right)
    names = [side.name for side in sides if isinstance(side, Col)]
    if not names or any(not isinstance(side, Col | Lit) for side in sides):
        raise _Senseless("compares something else than a column with a column or a constant")
    kinds = {name: kind_of(table.column(name).type) for name in names}
    for name, kind in kinds.items():
        if kind is None:
            raise _Senseless(f"compares column {name!r}, whose type {table.column(name).type} cannot be compared")
    if len(set(kinds.values())) > 1:
        told = " and ".join(f"{name!r} ({table.column(name).type})" for name in names)
        raise _Senseless(f"compares columns of different kinds: {told}")
    if Kind.TRUTH in kinds.values() and comparison.op not in ("=", "<>"):
        raise _Senseless(f"asks for an order of {names[0]!r}, which is true or false")
    for side in sides:
        if isinstance(side, Lit):
            constant(side, table.column(names[0]).type, names[0])


def constant(literal: Lit, kind: pa.DataType, column: str = "") -> pa.Scalar:
    """A constant as it is compared with a column of type `kind`, which must have a `Kind`. Raises what `refuse_condition`
    makes its sentence of, when it is of another kind, or out of the type's range."""
    value = literal.value
    found = kind_of(kind)
    if value is None:
        return pa.scalar(None, comparable(kind))
    into = comparable(kind)
    try:
        given = _value(value, found)
        return pa.scalar(float(str(given)) if t.is_floating(into) else given, into)
    except (ValueError, TypeError, OverflowError, pa.ArrowException):
        raise _Senseless(f"compares column {column!r} ({kind}) with what is not {found}") from None


def comparable(kind: pa.DataType) -> pa.DataType:
    """The type in which values of `kind` are compared."""
    kind = plain(kind)
    match kind_of(kind):
        case Kind.TEXT:
            return pa.string()
        case Kind.DAY:
            return pa.date32()
        case Kind.NUMBER:
            return pa.float64() if t.is_floating(kind) else NUMBERS
    return kind


def _value(value: str | int | bool | Decimal, kind: Kind | None) -> object:
    """The value of a constant as one of `kind`; ValueError when it is none."""
    if kind is Kind.TRUTH and isinstance(value, bool):
        return value
    if kind is Kind.NUMBER and isinstance(value, int | Decimal) and not isinstance(value, bool):
        return Decimal(value)
    if not isinstance(value, str) or kind in (None, Kind.TRUTH, Kind.NUMBER):
        raise ValueError("another kind")
    match kind:
        case Kind.DAY:
            return date.fromisoformat(value)
        case Kind.MOMENT:
            moment = datetime.fromisoformat(value)
            return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        case Kind.LOCAL_MOMENT:
            if datetime.fromisoformat(value).tzinfo:
                raise ValueError("a zone")
            return datetime.fromisoformat(value)
    return value
