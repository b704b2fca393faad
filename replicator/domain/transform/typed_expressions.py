"""Typed expressions of the configuration, with every conversion explicit. `adapters.transforms` evaluates them.

Values have few types during the computation:

- whole numbers of 64 bits, decimals of up to 38 digits, floats of 64 bits
- text, booleans, dates, and times with or without a zone

Values of other types can only be returned, or be compared with NULL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from replicator.domain.expr import Lit
from replicator.domain.schema_evolution import can_hold
from replicator.domain.sequence import is_text, to_plain_type

MAX_DIGITS = 38
NUMBERS = pa.decimal256(76, MAX_DIGITS)
"""Holds every decimal of up to 38 digits, and every integer."""

WHOLE = pa.int64()
BEYOND = 2**63


class InvalidExpression(Exception):
    """The fault of an expression: completes the sentence `'where' of table t ...`, and contains no text of a constant."""


class ExpressionKind(StrEnum):
    """Kinds of values; values of one kind can be compared."""

    NUMBER = "a number"
    TEXT = "text"
    TRUTH = "true or false"
    DAY = "a date"
    MOMENT = "a time with a zone"
    LOCAL_MOMENT = "a time without a zone"


@dataclass(frozen=True, slots=True)
class TypedExpr:
    """One step of an expression. `operation` is one of:

    - `column` (`value` is its name), `constant` (`value`)
    - `as` (the same value in another type), `cast`, `narrowed` (of a decimal)
    - `and`, `or`, `not`, `is null`, a comparison
    - `case` (condition, value, ..., else), `coalesce`
    - a function of `domain.transform.expressions`; `value` has its arguments that are not operands
    """

    operation: str
    type: pa.DataType
    operands: tuple[TypedExpr, ...] = ()
    value: Any = None

    @property
    def columns(self) -> frozenset[str]:
        """The columns in the expression."""
        if self.operation == "column":
            return frozenset({self.value})
        return frozenset[str]().union(*(operand.columns for operand in self.operands))


def get_kind(kind: pa.DataType) -> ExpressionKind | None:
    """The kind of values of a type; None if they cannot be compared."""
    kind = to_plain_type(kind)
    if t.is_timestamp(kind):
        return ExpressionKind.MOMENT if kind.tz else ExpressionKind.LOCAL_MOMENT
    if is_text(kind):
        return ExpressionKind.TEXT
    if t.is_boolean(kind):
        return ExpressionKind.TRUTH
    if t.is_integer(kind) or t.is_floating(kind) or (t.is_decimal(kind) and kind.precision <= 38 >= kind.scale >= 0):
        return ExpressionKind.NUMBER
    return ExpressionKind.DAY if t.is_date(kind) else None


def to_basic_type(node: TypedExpr) -> TypedExpr:
    """The same value in its type for computations."""
    kind = to_plain_type(node.type)
    match get_kind(kind):
        case ExpressionKind.NUMBER if t.is_integer(kind):
            kind = pa.decimal128(20, 0) if t.is_uint64(kind) else WHOLE
        case ExpressionKind.NUMBER:
            kind = pa.float64() if t.is_floating(kind) else pa.decimal128(kind.precision, kind.scale)
        case ExpressionKind.TEXT:
            kind = pa.string()
        case ExpressionKind.DAY:
            kind = pa.date32()
        case ExpressionKind.MOMENT | ExpressionKind.LOCAL_MOMENT:
            kind = pa.timestamp("ns" if kind.unit == "ns" else "us", kind.tz and "UTC")
    return convert_to(node, kind)


def convert_to(node: TypedExpr, into: pa.DataType) -> TypedExpr:
    """The same value in another type; only floats may lose precision."""
    if node.type == into:
        return node
    return TypedExpr("constant", into) if is_null(node) else TypedExpr("as", into, (node,))


def is_null(node: TypedExpr) -> bool:
    """True for the constant NULL."""
    return node.operation == "constant" and node.value is None


def make_literal(value: str | int | bool | Decimal | None) -> TypedExpr:
    """A constant in its own type."""
    match value:
        case None:
            return TypedExpr("constant", pa.null())
        case bool():
            return TypedExpr("constant", pa.bool_(), value=value)
        case str():
            return TypedExpr("constant", pa.string(), value=value)
        case int() if -BEYOND <= value < BEYOND:
            return TypedExpr("constant", WHOLE, value=value)
    number = Decimal(value)
    _, digits, exponent = number.as_tuple()
    scale = max(-int(exponent), 0)
    precision = max(len(digits) + max(int(exponent), 0), scale, 1)
    if precision > MAX_DIGITS:
        raise InvalidExpression(f"has a number of more than {MAX_DIGITS} digits")
    return TypedExpr("constant", pa.decimal128(precision, scale), value=number)


def make_constant(lit: Lit, into: pa.DataType, other: str) -> TypedExpr:
    """A constant that is compared with `other`, in the common type of both. InvalidExpression if it is of another
    kind, or out of range."""
    kind = ExpressionKind.NUMBER if t.is_decimal(into) else get_kind(into)
    if lit.value is None:
        return TypedExpr("constant", into)
    try:
        constant: Any = _to_value(lit.value, kind)
        constant = float(str(constant)) if t.is_floating(into) else int(constant) if into == WHOLE else constant
        pa.scalar(constant, into)
    except (ValueError, TypeError, OverflowError, pa.ArrowException):
        raise InvalidExpression(f"compares {other} with a value that is not {kind}") from None
    return TypedExpr("constant", into, value=constant)


def _to_value(value: str | int | bool | Decimal, kind: ExpressionKind | None) -> object:
    """The value of a constant as `kind`; ValueError if it is of another kind."""
    if kind is ExpressionKind.TRUTH and isinstance(value, bool):
        return value
    if kind is ExpressionKind.NUMBER and isinstance(value, int | Decimal) and not isinstance(value, bool):
        return Decimal(value)
    if not isinstance(value, str) or kind in (None, ExpressionKind.TRUTH, ExpressionKind.NUMBER):
        raise ValueError("another kind")
    match kind:
        case ExpressionKind.DAY:
            return date.fromisoformat(value)
        case ExpressionKind.MOMENT:
            time = datetime.fromisoformat(value)
            return time if time.tzinfo else time.replace(tzinfo=UTC)
        case ExpressionKind.LOCAL_MOMENT:
            if datetime.fromisoformat(value).tzinfo:
                raise ValueError("a zone")
            return datetime.fromisoformat(value)
    return value


def count_digits(node: TypedExpr) -> tuple[int, int]:
    """The maximum number of digits of a whole number or a decimal, and of its decimals."""
    if t.is_decimal(node.type):
        return node.type.precision, node.type.scale
    if node.operation == "constant" and node.value is not None:
        return len(str(abs(node.value))), 0
    return 19, 0


def find_numeric_type(nodes: Sequence[TypedExpr]) -> pa.DataType:
    """A type that holds the numbers of all nodes; InvalidExpression if there is none."""
    if any(t.is_floating(node.type) for node in nodes):
        return pa.float64()
    if all(node.type == WHOLE for node in nodes):
        return WHOLE
    sizes = [count_digits(node) for node in nodes]
    scale = max(size[1] for size in sizes)
    digits = max(size[0] - size[1] for size in sizes) + scale
    if digits > MAX_DIGITS:
        raise InvalidExpression(f"combines numbers that need {digits} digits; the limit is {MAX_DIGITS}. Cast one of them")
    return pa.decimal128(digits, scale)


def unify_types(nodes: Sequence[TypedExpr]) -> tuple[TypedExpr, ...]:
    """All nodes in one type, for `case`, `coalesce` and so on. InvalidExpression if there is none."""
    valued = [node for node in nodes if not is_null(node)]
    if not valued:
        raise InvalidExpression("has no type: its result is always NULL")
    types = {node.type for node in valued}
    if len(types) == 1:
        return tuple(convert_to(node, valued[0].type) for node in nodes)
    basics = [node if is_null(node) else to_basic_type(node) for node in nodes]
    valued = [node for node in basics if not is_null(node)]
    kinds = {get_kind(node.type) for node in valued}
    types = {node.type for node in valued}
    if kinds == {ExpressionKind.NUMBER}:
        into = find_numeric_type(valued)
    elif len(types) == 1:
        into = valued[0].type
    else:
        names = " and ".join(sorted(map(str, types)))
        raise InvalidExpression(f"combines several kinds of values: {names}")
    return tuple(convert_to(node, into) for node in basics)


# Possible casts between types, and their losses.


def has_text(kind: pa.DataType) -> bool:
    """True if each value of this type has one text: whole numbers, decimals, booleans, dates, bytes, and text."""
    kind = to_plain_type(kind)
    numbers = t.is_integer(kind) or t.is_decimal(kind) or t.is_boolean(kind)
    return bool(numbers or t.is_date(kind) or is_text(kind) or t.is_binary(kind) or t.is_large_binary(kind))


def is_hashable(kind: pa.DataType) -> bool:
    """True if values of this type have a text for masking (`erasures.to_key_texts`): all but nested values and
    durations."""
    kind = to_plain_type(kind)
    scalar = t.is_floating(kind) or t.is_time(kind) or t.is_timestamp(kind) or t.is_fixed_size_binary(kind)
    return bool(scalar or has_text(kind) or t.is_binary_view(kind))


def is_castable(kind: pa.DataType, into: pa.DataType) -> bool:
    """True if a cast between the two types exists, even if it fails for some values."""
    if t.is_nested(to_plain_type(kind)):
        return False
    try:
        pa.array([], to_plain_type(kind)).cast(into)
    except pa.ArrowNotImplementedError:
        return False
    return True


def is_injective_cast(kind: pa.DataType, into: pa.DataType) -> bool:
    """True if the cast never fails, and different values of `kind` stay different."""
    kind = to_plain_type(kind)
    if kind == into:
        return True
    if t.is_string(into):
        return bool(t.is_integer(kind) or t.is_boolean(kind) or t.is_date(kind) or is_text(kind))
    return bool(t.is_integer(kind) and t.is_integer(into) and can_hold(into, kind))
