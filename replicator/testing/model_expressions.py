"""The meaning of expressions of the configuration: one row at a time, in Python's own values, without a word of types and
columns of values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_UP, Context, Decimal
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from replicator.domain.expr import AllOf, AnyOf, Call, Case, Cast, Coalesce, Col, Compare, Expr, IsNull, Lit, Not

from .model_remade import Unfit

EXACT = Context(prec=200)
BY_NAME: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def value_of(expression: Expr, row: Mapping[str, Any]) -> Any:  # noqa: PLR0911  (a case each)
    """What the expression is for a row; None for NULL. Raises Unfit where it has no value: a division by zero, a number out
    of range, a cast that does not fit. What is not needed for the answer, from left to right, is not asked."""
    match expression:
        case Col(_, name):
            return row[name]
        case Lit(value):
            return value
        case AllOf(terms) | AnyOf(terms):
            return _joined(terms, row, decides=isinstance(expression, AnyOf))
        case Not(operand):
            found = value_of(operand, row)
            return None if found is None else not found
        case IsNull(operand):
            return value_of(operand, row) is None
        case Compare(op, left, right):
            return _compared(op, value_of(left, row), value_of(right, row))
        case Coalesce(first, other):
            found = value_of(first, row)
            return value_of(other, row) if found is None else found
        case Case(branches, otherwise):
            return value_of(next((then for when, then in branches if value_of(when, row)), otherwise), row)
    return _made(expression, row)


def _made(expression: Expr, row: Mapping[str, Any]) -> Any:
    match expression:
        case Cast(operand, kind):
            found = value_of(operand, row)
            return None if found is None else _cast(found, kind)
        case Call(name, arguments):
            given = [value_of(argument, row) for argument in arguments]
            if name == "concat":
                return "".join(_text(one) for one in given if one is not None)
            return None if None in given else FUNCTIONS[name](*given)
    raise AssertionError(f"no expression: {expression}")


def _joined(terms: tuple[Expr, ...], row: Mapping[str, Any], *, decides: bool) -> bool | None:
    unknown = False
    for term in terms:
        found = value_of(term, row)
        if found is decides:
            return bool(decides)
        unknown |= found is None
    return None if unknown else not decides


def _compared(op: str, left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    for one, other in ((left, right), (right, left)):
        if isinstance(one, date) and isinstance(other, str):
            parsed = type(one).fromisoformat(other)
            left, right = (left, parsed) if one is left else (parsed, right)
    if isinstance(left, float) or isinstance(right, float):
        left, right = float(left), float(right)
    return BY_NAME[op](left, right)


def _text(value: Any) -> str:
    return (
        ("false", "true")[value] if isinstance(value, bool) else f"{value:f}" if isinstance(value, Decimal) else str(value)
    )


def _sum(op: str) -> Callable[[Any, Any], Any]:
    exact = {"+": EXACT.add, "-": EXACT.subtract, "*": EXACT.multiply}[op]

    def of(left: Any, right: Any) -> Any:
        if isinstance(left, float) or isinstance(right, float):
            a, b = float(left), float(right)
            return _finite({"+": a + b, "-": a - b, "*": a * b}[op])
        if isinstance(left, int) and isinstance(right, int):
            return _whole(int(exact(Decimal(left), Decimal(right))))
        return _decimal(exact(Decimal(left), Decimal(right)))

    return of


def _whole(value: int) -> int:
    if not -(2**63) <= value < 2**63:
        raise Unfit
    return value


def _decimal(value: Decimal) -> Decimal:
    if len(value.as_tuple().digits) > 38:
        raise Unfit
    return value


def _finite(value: float) -> float:
    if math.isinf(value):
        raise Unfit
    return value


def _divided(left: Any, right: Any) -> float:
    if not right:
        raise Unfit
    try:
        return _finite(float(left) / float(right))
    except OverflowError:
        raise Unfit from None


def _remainder(left: int, right: int) -> int:
    if not right:
        raise Unfit
    return left - right * (abs(left) // abs(right)) * (1 if (left < 0) == (right < 0) else -1)


def _rounded(mode: str) -> Callable[..., Any]:
    def of(value: Any, digits: int = 0) -> Any:
        if isinstance(value, int) or (isinstance(value, float) and (value.is_integer() or not math.isfinite(value))):
            return value
        if isinstance(value, Decimal) and -int(value.as_tuple().exponent) <= digits:
            return value
        made = Decimal(value).quantize(Decimal(1).scaleb(-digits), rounding=mode, context=EXACT)
        return float(made) if isinstance(value, float) else made

    return of


def _negative(value: Any) -> Any:
    return _whole(-value) if isinstance(value, int) else -value


def _part(part: str, value: date) -> int:
    match part:
        case "quarter":
            return (value.month + 2) // 3
        case "day_of_year":
            return value.timetuple().tm_yday
    return int(getattr(value, part))


def _truncated(unit: str, value: Any) -> Any:
    order = ("year", "month", "day", "hour", "minute", "second", "microsecond")
    if unit == "week":
        return _truncated("day", value) - timedelta(days=value.weekday())
    month = (value.month - 1) // 3 * 3 + 1 if unit == "quarter" else 1
    after = order[order.index("year" if unit == "quarter" else unit) + 1 :]
    known = [name for name in after if name in order[:3] or isinstance(value, datetime)]
    return value.replace(**{name: month if name == "month" else 1 if name == "day" else 0 for name in known})


def _cast(value: Any, kind: pa.DataType) -> Any:  # noqa: PLR0911  (a case each)
    try:
        if t.is_string(kind):
            return _text(value)
        if t.is_floating(kind):
            return _same(float(value), value)
        if t.is_boolean(kind):
            return {"true": True, "false": False}[value] if isinstance(value, str) else _same(bool(value), value)
        if t.is_integer(kind):
            found = _same(int(value), value)
            return found if -(2 ** (kind.bit_width - 1)) <= found < 2 ** (kind.bit_width - 1) else _unfit()
        if t.is_decimal(kind):
            found = Decimal(value).quantize(Decimal(1).scaleb(-kind.scale), context=EXACT)
            return _same(found, Decimal(value)) if abs(found) < Decimal(10) ** (kind.precision - kind.scale) else _unfit()
        if isinstance(value, str):
            return (datetime if t.is_timestamp(kind) else date).fromisoformat(value)
        return _same(value.date(), value)
    except (ValueError, KeyError, ArithmeticError):
        raise Unfit from None


def _same(found: Any, value: Any) -> Any:
    back = datetime(found.year, found.month, found.day) if isinstance(value, datetime) else found
    return found if isinstance(value, str) or back == value else _unfit()


def _unfit() -> Any:
    raise Unfit


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{op: _sum(op) for op in ("+", "-", "*")},
    "/": _divided,
    "%": _remainder,
    "negative": _negative,
    "abs": lambda value: _negative(value) if value < 0 else value,
    "round": _rounded(ROUND_HALF_UP),
    "floor": _rounded(ROUND_FLOOR),
    "ceil": _rounded(ROUND_CEILING),
    "||": lambda left, right: _text(left) + _text(right),
    "lower": str.lower,
    "upper": str.upper,
    "trim": lambda text: text.strip(" "),
    "ltrim": lambda text: text.lstrip(" "),
    "rtrim": lambda text: text.rstrip(" "),
    "length": len,
    "substring": lambda text, start, count=None: text[start - 1 :][:count],
    "left": lambda text, count: text[:count],
    "right": lambda text, count: text[len(text) - min(count, len(text)) :],
    "replace": lambda text, old, new: text.replace(old, new),
    "extract": _part,
    "date_trunc": _truncated,
}
"""Of values that are all there."""
