"""Expressions of the configuration with their types, every conversion spelt out: `adapters.arrow` evaluates them.

Values have few types while they are computed with: whole numbers of 64 bits, decimals of up to 38 digits, floats of 64 bits,
text, true or false, dates, and times with or without a zone. Of other types a value can only be passed on, or be asked for
NULL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from .casting import is_textual
from .elements import plain
from .expr import Lit

MOST_DIGITS = 38
NUMBERS = pa.decimal256(76, MOST_DIGITS)
"""Holds every decimal of up to 38 digits, and every integer."""

WHOLE = pa.int64()
BEYOND = 2**63


class Senseless(Exception):
    """What is wrong with an expression: completes the sentence `'where' of table t ...`, and holds no text of a constant."""


class Kind(StrEnum):
    """Values that can be compared with each other."""

    NUMBER = "a number"
    TEXT = "text"
    TRUTH = "true or false"
    DAY = "a date"
    MOMENT = "a time with a zone"
    LOCAL_MOMENT = "a time without a zone"


@dataclass(frozen=True, slots=True)
class Typed:
    """One step. `does`: `column` (whose name is `value`), `constant` (`value`), `as` (another type for the same value),
    `cast`, `narrowed` (of a decimal), `and`, `or`, `not`, `is null`, a comparison, `case` (condition, value, ..., else),
    `coalesce`, or a function of `domain.functions`, with `value` for what it is told beside its operands."""

    does: str
    type: pa.DataType
    operands: tuple[Typed, ...] = ()
    value: Any = None

    @property
    def columns(self) -> frozenset[str]:
        """The columns that it is made of."""
        if self.does == "column":
            return frozenset({self.value})
        return frozenset[str]().union(*(operand.columns for operand in self.operands))


def kind_of(kind: pa.DataType) -> Kind | None:
    """What the values of a type can be compared with; None when with nothing."""
    kind = plain(kind)
    if t.is_timestamp(kind):
        return Kind.MOMENT if kind.tz else Kind.LOCAL_MOMENT
    if is_textual(kind):
        return Kind.TEXT
    if t.is_boolean(kind):
        return Kind.TRUTH
    if t.is_integer(kind) or t.is_floating(kind) or (t.is_decimal(kind) and kind.precision <= 38 >= kind.scale >= 0):
        return Kind.NUMBER
    return Kind.DAY if t.is_date(kind) else None


def basic(node: Typed) -> Typed:
    """The same value in the type in which it is computed with."""
    kind = plain(node.type)
    match kind_of(kind):
        case Kind.NUMBER if t.is_integer(kind):
            kind = pa.decimal128(20, 0) if t.is_uint64(kind) else WHOLE
        case Kind.NUMBER:
            kind = pa.float64() if t.is_floating(kind) else pa.decimal128(kind.precision, kind.scale)
        case Kind.TEXT:
            kind = pa.string()
        case Kind.DAY:
            kind = pa.date32()
        case Kind.MOMENT | Kind.LOCAL_MOMENT:
            kind = pa.timestamp("ns" if kind.unit == "ns" else "us", kind.tz and "UTC")
    return converted(node, kind)


def converted(node: Typed, into: pa.DataType) -> Typed:
    """The same value in another type, in which it is not another one but for what floats cannot hold."""
    if node.type == into:
        return node
    return Typed("constant", into) if is_null(node) else Typed("as", into, (node,))


def is_null(node: Typed) -> bool:
    """It is the constant NULL."""
    return node.does == "constant" and node.value is None


def literal(value: str | int | bool | Decimal | None) -> Typed:
    """A constant by itself."""
    match value:
        case None:
            return Typed("constant", pa.null())
        case bool():
            return Typed("constant", pa.bool_(), value=value)
        case str():
            return Typed("constant", pa.string(), value=value)
        case int() if -BEYOND <= value < BEYOND:
            return Typed("constant", WHOLE, value=value)
    number = Decimal(value)
    _, digits, exponent = number.as_tuple()
    scale = max(-int(exponent), 0)
    precision = max(len(digits) + max(int(exponent), 0), scale, 1)
    if precision > MOST_DIGITS:
        raise Senseless(f"has a number of more than {MOST_DIGITS} digits")
    return Typed("constant", pa.decimal128(precision, scale), value=number)


def constant(lit: Lit, into: pa.DataType, beside: str) -> Typed:
    """A constant that is compared with `beside`, in the type in which both are compared; Senseless when it is of another
    kind, or out of range."""
    kind = Kind.NUMBER if t.is_decimal(into) else kind_of(into)
    if lit.value is None:
        return Typed("constant", into)
    try:
        given: Any = _value(lit.value, kind)
        given = float(str(given)) if t.is_floating(into) else int(given) if into == WHOLE else given
        pa.scalar(given, into)
    except (ValueError, TypeError, OverflowError, pa.ArrowException):
        raise Senseless(f"compares {beside} with what is not {kind}") from None
    return Typed("constant", into, value=given)


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


def digits_of(node: Typed) -> tuple[int, int]:
    """How many digits a whole number or a decimal has at most, and how many of them are decimals."""
    if t.is_decimal(node.type):
        return node.type.precision, node.type.scale
    if node.does == "constant" and node.value is not None:
        return len(str(abs(node.value))), 0
    return 19, 0


def numeric(nodes: Sequence[Typed]) -> pa.DataType:
    """The type that holds the numbers of all of them; Senseless where there is none."""
    if any(t.is_floating(node.type) for node in nodes):
        return pa.float64()
    if all(node.type == WHOLE for node in nodes):
        return WHOLE
    sizes = [digits_of(node) for node in nodes]
    scale = max(size[1] for size in sizes)
    digits = max(size[0] - size[1] for size in sizes) + scale
    if digits > MOST_DIGITS:
        raise Senseless(
            f"puts numbers together that need {digits} digits, of which there are {MOST_DIGITS}: cast one of them"
        )
    return pa.decimal128(digits, scale)


def united(nodes: Sequence[Typed]) -> tuple[Typed, ...]:
    """All of them in one type: of `case`, `coalesce` and so on. Senseless where there is none."""
    valued = [node for node in nodes if not is_null(node)]
    if not valued:
        raise Senseless("has no type: all that it can be is NULL")
    types = {node.type for node in valued}
    if len(types) == 1:
        return tuple(converted(node, valued[0].type) for node in nodes)
    basics = [node if is_null(node) else basic(node) for node in nodes]
    valued = [node for node in basics if not is_null(node)]
    kinds = {kind_of(node.type) for node in valued}
    types = {node.type for node in valued}
    if kinds == {Kind.NUMBER}:
        into = numeric(valued)
    elif len(types) == 1:
        into = valued[0].type
    else:
        named = " and ".join(sorted(map(str, types)))
        raise Senseless(f"is of several kinds, where one is to be: {named}")
    return tuple(converted(node, into) for node in basics)
