"""The meaning of expressions in the configuration: one row at a time, with Python values, without types or columnar
data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_UP, Context, Decimal
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from replicator.domain.policy.expr import AllOf, AnyOf, Call, Case, Cast, Coalesce, Col, Compare, Expr, IsNull, Lit, Not

from .model_column_transforms import UnrepresentableValue

EXACT = Context(prec=200)
BY_NAME: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def evaluate(expression: Expr, row: Mapping[str, Any]) -> Any:  # noqa: PLR0911  (a case each)
    """The value of the expression for a row; None for NULL. Evaluation is from left to right and stops when the
    value is clear.

    UnrepresentableValue if there is no value: a division by zero, a number out of range, a cast that does not fit.
    """
    match expression:
        case Col(_, name):
            return row[name]
        case Lit(value):
            return value
        case AllOf(terms) | AnyOf(terms):
            return _combine(terms, row, decides=isinstance(expression, AnyOf))
        case Not(operand):
            found = evaluate(operand, row)
            return None if found is None else not found
        case IsNull(operand):
            return evaluate(operand, row) is None
        case Compare(op, left, right):
            return _compare(op, evaluate(left, row), evaluate(right, row))
        case Coalesce(first, other):
            found = evaluate(first, row)
            return evaluate(other, row) if found is None else found
        case Case(branches, otherwise):
            return evaluate(next((then for when, then in branches if evaluate(when, row)), otherwise), row)
    return _compute(expression, row)


def _compute(expression: Expr, row: Mapping[str, Any]) -> Any:
    match expression:
        case Cast(operand, kind):
            found = evaluate(operand, row)
            return None if found is None else _cast_value(found, kind)
        case Call(name, arguments):
            given = [evaluate(argument, row) for argument in arguments]
            if name == "concat":
                return "".join(_to_text(one) for one in given if one is not None)
            return None if None in given else FUNCTIONS[name](*given)
    raise AssertionError(f"no expression: {expression}")


def _combine(terms: tuple[Expr, ...], row: Mapping[str, Any], *, decides: bool) -> bool | None:
    unknown = False
    for term in terms:
        found = evaluate(term, row)
        if found is decides:
            return bool(decides)
        unknown |= found is None
    return None if unknown else not decides


def _compare(op: str, left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    for one, other in ((left, right), (right, left)):
        if isinstance(one, date) and isinstance(other, str):
            parsed = type(one).fromisoformat(other)
            left, right = (left, parsed) if one is left else (parsed, right)
    if isinstance(left, float) or isinstance(right, float):
        left, right = float(left), float(right)
    return BY_NAME[op](left, right)


def _to_text(value: Any) -> str:
    return (
        ("false", "true")[value] if isinstance(value, bool) else f"{value:f}" if isinstance(value, Decimal) else str(value)
    )


def _make_arithmetic(op: str) -> Callable[[Any, Any], Any]:
    exact = {"+": EXACT.add, "-": EXACT.subtract, "*": EXACT.multiply}[op]

    def of(left: Any, right: Any) -> Any:
        if isinstance(left, float) or isinstance(right, float):
            a, b = float(left), float(right)
            return _check_finite({"+": a + b, "-": a - b, "*": a * b}[op])
        if isinstance(left, int) and isinstance(right, int):
            return _check_whole(int(exact(Decimal(left), Decimal(right))))
        return _check_decimal(exact(Decimal(left), Decimal(right)))

    return of


def _check_whole(value: int) -> int:
    if not -(2**63) <= value < 2**63:
        raise UnrepresentableValue
    return value


def _check_decimal(value: Decimal) -> Decimal:
    if len(value.as_tuple().digits) > 38:
        raise UnrepresentableValue
    return value


def _check_finite(value: float) -> float:
    if math.isinf(value):
        raise UnrepresentableValue
    return value


def _divide(left: Any, right: Any) -> float:
    if not right:
        raise UnrepresentableValue
    try:
        return _check_finite(float(left) / float(right))
    except OverflowError:
        raise UnrepresentableValue from None


def _compute_remainder(left: int, right: int) -> int:
    if not right:
        raise UnrepresentableValue
    return left - right * (abs(left) // abs(right)) * (1 if (left < 0) == (right < 0) else -1)


def _make_round(mode: str) -> Callable[..., Any]:
    def of(value: Any, digits: int = 0) -> Any:
        if isinstance(value, int) or (isinstance(value, float) and (value.is_integer() or not math.isfinite(value))):
            return value
        if isinstance(value, Decimal) and -int(value.as_tuple().exponent) <= digits:
            return value
        made = Decimal(value).quantize(Decimal(1).scaleb(-digits), rounding=mode, context=EXACT)
        return float(made) if isinstance(value, float) else made

    return of


def _negate(value: Any) -> Any:
    return _check_whole(-value) if isinstance(value, int) else -value


def _extract_part(part: str, value: date) -> int:
    match part:
        case "quarter":
            return (value.month + 2) // 3
        case "day_of_year":
            return value.timetuple().tm_yday
    return int(getattr(value, part))


def _truncate(unit: str, value: Any) -> Any:
    order = ("year", "month", "day", "hour", "minute", "second", "microsecond")
    if unit == "week":
        return _truncate("day", value) - timedelta(days=value.weekday())
    month = (value.month - 1) // 3 * 3 + 1 if unit == "quarter" else 1
    after = order[order.index("year" if unit == "quarter" else unit) + 1 :]
    known = [name for name in after if name in order[:3] or isinstance(value, datetime)]
    return value.replace(**{name: month if name == "month" else 1 if name == "day" else 0 for name in known})


def _cast_value(value: Any, kind: pa.DataType) -> Any:  # noqa: PLR0911  (a case each)
    try:
        if t.is_string(kind):
            return _to_text(value)
        if t.is_floating(kind):
            return _require_same(float(value), value)
        if t.is_boolean(kind):
            return {"true": True, "false": False}[value] if isinstance(value, str) else _require_same(bool(value), value)
        if t.is_integer(kind):
            found = _require_same(int(value), value)
            return found if -(2 ** (kind.bit_width - 1)) <= found < 2 ** (kind.bit_width - 1) else _raise_unrepresentable()
        if t.is_decimal(kind):
            found = Decimal(value).quantize(Decimal(1).scaleb(-kind.scale), context=EXACT)
            return (
                _require_same(found, Decimal(value))
                if abs(found) < Decimal(10) ** (kind.precision - kind.scale)
                else _raise_unrepresentable()
            )
        if isinstance(value, str):
            return (datetime if t.is_timestamp(kind) else date).fromisoformat(value)
        return _require_same(value.date(), value)
    except (ValueError, KeyError, ArithmeticError):
        raise UnrepresentableValue from None


def _require_same(found: Any, value: Any) -> Any:
    back = datetime(found.year, found.month, found.day) if isinstance(value, datetime) else found
    return found if isinstance(value, str) or back == value else _raise_unrepresentable()


def _raise_unrepresentable() -> Any:
    raise UnrepresentableValue


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{op: _make_arithmetic(op) for op in ("+", "-", "*")},
    "/": _divide,
    "%": _compute_remainder,
    "negative": _negate,
    "abs": lambda value: _negate(value) if value < 0 else value,
    "round": _make_round(ROUND_HALF_UP),
    "floor": _make_round(ROUND_FLOOR),
    "ceil": _make_round(ROUND_CEILING),
    "||": lambda left, right: _to_text(left) + _to_text(right),
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
    "extract": _extract_part,
    "date_trunc": _truncate,
}
"""Functions of non-NULL values."""
