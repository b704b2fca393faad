"""The functions of expressions: what they take, and of which type they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
from pyarrow import types as t

from .casting import has_text
from .typed import MOST_DIGITS, WHOLE, Kind, Senseless, Typed, basic, converted, digits_of, is_null, kind_of

ARITHMETIC = ("+", "-", "*", "/", "%")
DATE_PARTS = ("year", "quarter", "month", "week", "day")
TIME_PARTS = ("hour", "minute", "second")
PARTS = ("year", "quarter", "month", "day", "day_of_year", *TIME_PARTS)
"""What can be taken out of a date or a time."""

UNITS = (*DATE_PARTS, *TIME_PARTS)
"""What a date or a time can be truncated to."""

MOST_DIGITS_WITHIN = 76

Resolve = Callable[[str, Sequence[Typed]], Typed]


def called(name: str, operands: Sequence[Typed]) -> Typed:
    """The function of that name of these operands; Senseless when it cannot take them."""
    for operand in operands:
        if is_null(operand):
            raise Senseless(f"gives NULL to {_told(name)}, which then is always NULL")
    return FUNCTIONS[name](name, operands)


def _told(name: str) -> str:
    return f"'{name}'"


def _of(kind: Kind | Sequence[Kind], name: str, operand: Typed) -> Typed:
    """The operand, which is to be of one of these kinds."""
    kinds = (kind,) if isinstance(kind, Kind) else kind
    if kind_of(operand.type) not in kinds:
        wanted = " or ".join(dict.fromkeys(kinds))
        raise Senseless(f"gives a value of type {operand.type} to {_told(name)}, which takes {wanted}")
    return basic(operand)


def _count(name: str, operand: Typed, least: int, most: int = 2**31 - 1) -> int:
    """The operand, which is to be a whole number that the configuration says."""
    value = operand.value
    if operand.does != "constant" or operand.type != WHOLE or not least <= value <= most:
        raise Senseless(f"gives something else to {_told(name)} where a whole number from {least} on is to be written")
    return int(value)


def _of_numbers(name: str, operands: Sequence[Typed]) -> Typed:
    left, right = (_of(Kind.NUMBER, name, operand) for operand in operands)
    if t.is_floating(left.type) or t.is_floating(right.type):
        return Typed(name, pa.float64(), (converted(left, pa.float64()), converted(right, pa.float64())))
    if left.type == right.type == WHOLE:
        return Typed(name, WHOLE, (left, right))
    return _of_decimals(name, left, right)


def _of_decimals(name: str, left: Typed, right: Typed) -> Typed:
    """Exact: with all digits that there can be. Where that are more than 38, a value that needs them fails."""
    (p, s), (q, r) = digits_of(left), digits_of(right)
    digits, scale = (p + q + 1, s + r) if name == "*" else (max(p - s, q - r) + max(s, r) + 1, max(s, r))
    if scale > MOST_DIGITS or digits > MOST_DIGITS_WITHIN:
        raise Senseless(f"takes {_told(name)} of decimals that have too many digits together: cast one to fewer")
    kind = pa.decimal128 if digits <= MOST_DIGITS else pa.decimal256
    done = Typed(name, kind(digits, scale), (converted(left, kind(p, s)), converted(right, kind(q, r))))
    return done if digits <= MOST_DIGITS else Typed("narrowed", pa.decimal128(MOST_DIGITS, scale), (done,))


def _divided(name: str, operands: Sequence[Typed]) -> Typed:
    left, right = (converted(_of(Kind.NUMBER, name, operand), pa.float64()) for operand in operands)
    return Typed(name, pa.float64(), (left, right))


def _remainder(name: str, operands: Sequence[Typed]) -> Typed:
    left, right = (_of(Kind.NUMBER, name, operand) for operand in operands)
    if not left.type == right.type == WHOLE:
        raise Senseless(f"takes {_told(name)} of {left.type} and {right.type}; it is of whole numbers")
    return Typed(name, WHOLE, (left, right))


def _of_one_number(name: str, operands: Sequence[Typed]) -> Typed:
    operand = _of(Kind.NUMBER, name, operands[0])
    return Typed(name, operand.type, (operand,))


def _rounded(name: str, operands: Sequence[Typed]) -> Typed:
    """With fewer decimals, in a type that has as many, and a digit more before them."""
    operand = _of(Kind.NUMBER, name, operands[0])
    left = _count(name, operands[1], 0, MOST_DIGITS) if len(operands) > 1 else 0
    if t.is_floating(operand.type):
        return Typed(name, operand.type, (operand,), left)
    digits, scale = digits_of(operand)
    if operand.type == WHOLE or left >= scale:
        return operand
    wide = (pa.decimal128 if digits < MOST_DIGITS else pa.decimal256)(digits + 1, scale)
    done = Typed(name, wide, (converted(operand, wide),), left)
    return Typed("narrowed", pa.decimal128(digits - scale + left + 1, left), (done,))


def _of_texts(name: str, operands: Sequence[Typed]) -> Typed:
    """`concat` and `||`: of what has one text."""
    for operand in operands:
        if not has_text(operand.type) or t.is_binary(operand.type) or t.is_large_binary(operand.type):
            raise Senseless(f"gives a value of type {operand.type} to {_told(name)}: cast it to string first")
    return Typed(name, pa.string(), tuple(map(_text, operands)))


def _text(operand: Typed) -> Typed:
    return basic(operand) if kind_of(operand.type) is Kind.TEXT else Typed("text", pa.string(), (operand,))


def _of_text(name: str, operands: Sequence[Typed]) -> Typed:
    return Typed(name, pa.string(), (_of(Kind.TEXT, name, operands[0]),))


def _length(name: str, operands: Sequence[Typed]) -> Typed:
    return Typed(name, WHOLE, (_of(Kind.TEXT, name, operands[0]),))


def _substring(name: str, operands: Sequence[Typed]) -> Typed:
    start = _count(name, operands[1], 1) - 1
    stop = None if len(operands) < 3 else start + _count(name, operands[2], 0)
    return Typed("slice", pa.string(), (_of(Kind.TEXT, name, operands[0]),), (start, stop))


def _end(name: str, operands: Sequence[Typed]) -> Typed:
    operand, count = _of(Kind.TEXT, name, operands[0]), _count(name, operands[1], 0)
    part = (0, count) if name == "left" or not count else (-count, None)
    return Typed("slice", pa.string(), (operand,), part)


def _replaced(name: str, operands: Sequence[Typed]) -> Typed:
    said = [operand.value for operand in operands[1:] if operand.does == "constant" and isinstance(operand.value, str)]
    if len(said) != 2 or not said[0]:
        raise Senseless(f"gives something else to {_told(name)} where two texts are to be written, the first not empty")
    return Typed(name, pa.string(), (_of(Kind.TEXT, name, operands[0]),), tuple(said))


TIMES = (Kind.DAY, Kind.MOMENT, Kind.LOCAL_MOMENT)


def _part(name: str, operands: Sequence[Typed]) -> Typed:
    part, operand = _unit(name, operands, PARTS)
    return Typed(name, WHOLE, (operand,), part)


def _truncated(name: str, operands: Sequence[Typed]) -> Typed:
    unit, operand = _unit(name, operands, UNITS)
    return Typed(name, operand.type, (operand,), unit)


def _unit(name: str, operands: Sequence[Typed], known: Sequence[str]) -> tuple[str, Typed]:
    unit, operand = operands[0].value, _of(TIMES, name, operands[1])
    fitting = [one for one in known if operand.type != pa.date32() or one not in TIME_PARTS]
    if unit not in fitting:
        raise Senseless(f"gives something else to {_told(name)} where one of these is to be written: {', '.join(fitting)}")
    return unit, operand


FUNCTIONS: Mapping[str, Resolve] = {
    **dict.fromkeys(("+", "-", "*"), _of_numbers),
    "/": _divided,
    "%": _remainder,
    **dict.fromkeys(("negative", "abs"), _of_one_number),
    **dict.fromkeys(("round", "floor", "ceil"), _rounded),
    **dict.fromkeys(("concat", "||"), _of_texts),
    **dict.fromkeys(("lower", "upper", "trim", "ltrim", "rtrim"), _of_text),
    "length": _length,
    "substring": _substring,
    **dict.fromkeys(("left", "right"), _end),
    "replace": _replaced,
    "extract": _part,
    "date_trunc": _truncated,
}
"""By the name in `expr.Call`."""
