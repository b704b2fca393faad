"""The functions of expressions: their arguments and result types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
from pyarrow import types as t

from .typed_expressions import (
    MAX_DIGITS,
    WHOLE,
    ExpressionKind,
    InvalidExpression,
    TypedExpr,
    convert_to,
    count_digits,
    get_kind,
    has_text,
    is_null,
    to_basic_type,
)

ARITHMETIC = ("+", "-", "*", "/", "%")
DATE_PARTS = ("year", "quarter", "month", "week", "day")
TIME_PARTS = ("hour", "minute", "second")
PARTS = ("year", "quarter", "month", "day", "day_of_year", *TIME_PARTS)
"""Parts that `extract` returns of a date or a time."""

UNITS = (*DATE_PARTS, *TIME_PARTS)
"""Units to which `date_trunc` truncates a date or a time."""

MAX_INNER_DIGITS = 76

Resolve = Callable[[str, Sequence[TypedExpr]], TypedExpr]


def resolve_call(name: str, operands: Sequence[TypedExpr]) -> TypedExpr:
    """The call of a function with these operands; InvalidExpression if the operands do not fit."""
    for operand in operands:
        if is_null(operand):
            raise InvalidExpression(f"passes NULL to {_quote_name(name)}, whose result is then always NULL")
    return FUNCTIONS[name](name, operands)


def _quote_name(name: str) -> str:
    return f"'{name}'"


def _require_kind(kind: ExpressionKind | Sequence[ExpressionKind], name: str, operand: TypedExpr) -> TypedExpr:
    """The operand, which must be of one of these kinds."""
    kinds = (kind,) if isinstance(kind, ExpressionKind) else kind
    if get_kind(operand.type) not in kinds:
        wanted = " or ".join(dict.fromkeys(kinds))
        raise InvalidExpression(f"passes a value of type {operand.type} to {_quote_name(name)}, which needs {wanted}")
    return to_basic_type(operand)


def _read_count(name: str, operand: TypedExpr, least: int, most: int = 2**31 - 1) -> int:
    """The operand, which must be a constant whole number."""
    value = operand.value
    if operand.operation != "constant" or operand.type != WHOLE or not least <= value <= most:
        raise InvalidExpression(f"needs a whole number of {least} or more as an argument of {_quote_name(name)}")
    return int(value)


def _resolve_arithmetic(name: str, operands: Sequence[TypedExpr]) -> TypedExpr:
    left, right = (_require_kind(ExpressionKind.NUMBER, name, operand) for operand in operands)
    if t.is_floating(left.type) or t.is_floating(right.type):
        return TypedExpr(name, pa.float64(), (convert_to(left, pa.float64()), convert_to(right, pa.float64())))
    if left.type == right.type == WHOLE:
        return TypedExpr(name, WHOLE, (left, right))
    return _resolve_decimals(name, left, right)


def _resolve_decimals(name: str, left: TypedExpr, right: TypedExpr) -> TypedExpr:
    """Exact, with all possible digits. Beyond 38 digits, only values that need more of them fail."""
    (p, s), (q, r) = count_digits(left), count_digits(right)
    digits, scale = (p + q + 1, s + r) if name == "*" else (max(p - s, q - r) + max(s, r) + 1, max(s, r))
    if scale > MAX_DIGITS or digits > MAX_INNER_DIGITS:
        raise InvalidExpression(
            f"uses {_quote_name(name)} on decimals that have too many digits together: cast one of them to fewer digits"
        )
    kind = pa.decimal128 if digits <= MAX_DIGITS else pa.decimal256
    done = TypedExpr(name, kind(digits, scale), (convert_to(left, kind(p, s)), convert_to(right, kind(q, r))))
    return done if digits <= MAX_DIGITS else TypedExpr("narrowed", pa.decimal128(MAX_DIGITS, scale), (done,))


def _resolve_division(name: str, operands: Sequence[TypedExpr]) -> TypedExpr:
    left, right = (convert_to(_require_kind(ExpressionKind.NUMBER, name, operand), pa.float64()) for operand in operands)
    return TypedExpr(name, pa.float64(), (left, right))


def _resolve_remainder(name: str, operands: Sequence[TypedExpr]) -> TypedExpr:
    left, right = (_require_kind(ExpressionKind.NUMBER, name, operand) for operand in operands)
    if not left.type == right.type == WHOLE:
        raise InvalidExpression(f"uses {_quote_name(name)} on {left.type} and {right.type}, but it needs whole numbers")
    return TypedExpr(name, WHOLE, (left, right))


def _resolve_one_number(name: str, operands: Sequence[TypedExpr]) -> TypedExpr:
    operand = _require_kind(ExpressionKind.NUMBER, name, operands[0])
    return TypedExpr(name, operand.type, (operand,))


def _resolve_round(name: str, operands: Sequence[TypedExpr]) -> TypedExpr:
    """The rounded number; its type has that many decimals, and one more digit before them."""
    operand = _require_kind(ExpressionKind.NUMBER, name, operands[0])
    left = _read_count(name, operands[1], 0, MAX_DIGITS) if len(operands) > 1 else 0
    if t.is_floating(operand.type):
        return TypedExpr(name, operand.type, (operand,), left)
    digits, scale = count_digits(operand)
    if operand.type == WHOLE or left >= scale:
        return operand
    wide = (pa.decimal128 if digits < MAX_DIGITS else pa.decimal256)(digits + 1, scale)
    done = TypedExpr(name, wide, (convert_to(operand, wide),), left)
    return TypedExpr("narrowed", pa.decimal128(digits - scale + left + 1, left), (done,))


def _resolve_concat(name: str, operands: Sequence[TypedExpr]) -> TypedExpr:
    """`concat` and `||`, of values that have one text."""
    for operand in operands:
        if not has_text(operand.type) or t.is_binary(operand.type) or t.is_large_binary(operand.type):
            raise InvalidExpression(f"passes a value of type {operand.type} to {_quote_name(name)}: cast it to string first")
    return TypedExpr(name, pa.string(), tuple(map(_to_text, operands)))


def _to_text(operand: TypedExpr) -> TypedExpr:
    return (
        to_basic_type(operand)
        if get_kind(operand.type) is ExpressionKind.TEXT
        else TypedExpr("text", pa.string(), (operand,))
    )


def _resolve_text_function(name: str, operands: Sequence[TypedExpr]) -> TypedExpr:
    return TypedExpr(name, pa.string(), (_require_kind(ExpressionKind.TEXT, name, operands[0]),))


def _resolve_length(name: str, operands: Sequence[TypedExpr]) -> TypedExpr:
    return TypedExpr(name, WHOLE, (_require_kind(ExpressionKind.TEXT, name, operands[0]),))


def _resolve_substring(name: str, operands: Sequence[TypedExpr]) -> TypedExpr:
    start = _read_count(name, operands[1], 1) - 1
    stop = None if len(operands) < 3 else start + _read_count(name, operands[2], 0)
    return TypedExpr("slice", pa.string(), (_require_kind(ExpressionKind.TEXT, name, operands[0]),), (start, stop))


def _resolve_end(name: str, operands: Sequence[TypedExpr]) -> TypedExpr:
    operand, count = _require_kind(ExpressionKind.TEXT, name, operands[0]), _read_count(name, operands[1], 0)
    part = (0, count) if name == "left" or not count else (-count, None)
    return TypedExpr("slice", pa.string(), (operand,), part)


def _resolve_replace(name: str, operands: Sequence[TypedExpr]) -> TypedExpr:
    said = [operand.value for operand in operands[1:] if operand.operation == "constant" and isinstance(operand.value, str)]
    if len(said) != 2 or not said[0]:
        raise InvalidExpression(f"needs two texts as arguments of {_quote_name(name)}, the first not empty")
    return TypedExpr(name, pa.string(), (_require_kind(ExpressionKind.TEXT, name, operands[0]),), tuple(said))


TIMES = (ExpressionKind.DAY, ExpressionKind.MOMENT, ExpressionKind.LOCAL_MOMENT)


def _resolve_extract(name: str, operands: Sequence[TypedExpr]) -> TypedExpr:
    part, operand = _read_unit(name, operands, PARTS)
    return TypedExpr(name, WHOLE, (operand,), part)


def _resolve_truncate(name: str, operands: Sequence[TypedExpr]) -> TypedExpr:
    unit, operand = _read_unit(name, operands, UNITS)
    return TypedExpr(name, operand.type, (operand,), unit)


def _read_unit(name: str, operands: Sequence[TypedExpr], known: Sequence[str]) -> tuple[str, TypedExpr]:
    unit, operand = operands[0].value, _require_kind(TIMES, name, operands[1])
    fitting = [one for one in known if operand.type != pa.date32() or one not in TIME_PARTS]
    if unit not in fitting:
        raise InvalidExpression(f"needs one of these as an argument of {_quote_name(name)}: {', '.join(fitting)}")
    return unit, operand


FUNCTIONS: Mapping[str, Resolve] = {
    **dict.fromkeys(("+", "-", "*"), _resolve_arithmetic),
    "/": _resolve_division,  # a float: no rule for the scale of a quotient suits every user
    "%": _resolve_remainder,
    **dict.fromkeys(("negative", "abs"), _resolve_one_number),
    **dict.fromkeys(("round", "floor", "ceil"), _resolve_round),
    **dict.fromkeys(("concat", "||"), _resolve_concat),
    **dict.fromkeys(("lower", "upper", "trim", "ltrim", "rtrim"), _resolve_text_function),
    "length": _resolve_length,
    "substring": _resolve_substring,
    **dict.fromkeys(("left", "right"), _resolve_end),
    "replace": _resolve_replace,
    "extract": _resolve_extract,
    "date_trunc": _resolve_truncate,
}
"""By name in `expr.Call`."""
