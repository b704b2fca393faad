"""Operations of expressions over whole columns, with reasons for values that failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from replicator.domain.sequence_elements import to_plain_type
from replicator.domain.transform.typed_expressions import WHOLE, TypedExpr

from ..arrow.masks import to_texts
from .casts import EVERY_INTEGER, cast_values, to_float

Texts: TypeAlias = pa.Array | None
"""The reason of each row without a value, null for rows with one; None if no row failed."""

Found = tuple[pa.Array, Texts]
Step = Callable[[TypedExpr, Sequence[pa.Array]], Found]

OUT_OF_RANGE = "a number is out of range"
BY_ZERO = "something is divided by zero"
WHOLE_FROM = 2.0**52
"""Floats from this size on have no fraction."""


def combine_arrays(values: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """A column as one array."""
    return values.combine_chunks() if values.num_chunks else pa.array([], kind)


def first_reasons(*failed: Texts) -> Texts:
    """The first reason of each row."""
    known = [one for one in failed if one is not None]
    return None if not known else known[0] if len(known) == 1 else pc.coalesce(*known)


def make_reasons(where: pa.Array, why: str) -> Texts:
    """The reason `why` for rows where `where` is true."""
    where = pc.fill_null(where, False)
    return pc.if_else(where, pa.scalar(why), pa.scalar(None, pa.string())) if pc.any(where).as_py() else None


def _map_values(function: Callable[..., pa.Array], kind: pa.DataType, *operands: pa.Array) -> list[pa.Array]:
    """Halve the arrays until the failing value is found, which becomes null: Arrow refuses all values for one of them."""
    try:
        return [function(*operands)]
    except pa.ArrowInvalid:
        count = len(operands[0])
        if count == 1:
            return [pa.nulls(1, kind)]
    half = count // 2
    parts = ([operand.slice(0, half) for operand in operands], [operand.slice(half) for operand in operands])
    return [done for part in parts for done in _map_values(function, kind, *part)]


def _check_range(function: Callable[..., pa.Array], kind: pa.DataType, *operands: pa.Array) -> Found:
    """A row with all operands but without a result is out of range."""
    pieces = _map_values(function, kind, *operands)
    if len(pieces) == 1 and len(operands[0]) != 1:
        return pieces[0], None
    done, there = pa.concat_arrays(pieces), pa.repeat(pa.scalar(True), len(operands[0]))
    for operand in operands:
        there = pc.and_(there, pc.is_valid(operand))
    return done, make_reasons(pc.and_(there, pc.is_null(done)), OUT_OF_RANGE)


def _apply_arithmetic(node: TypedExpr, operands: Sequence[pa.Array]) -> Found:
    function = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}[node.operation]
    if t.is_floating(node.type):
        return _check_finite(function(*operands), *operands)
    return _check_range(function, node.type, *operands)


def _check_finite(done: pa.Array, *operands: pa.Array) -> Found:
    """A result of finite numbers that is not finite is out of range."""
    lost = pc.invert(pc.is_finite(done))
    for operand in operands:
        lost = pc.and_(lost, pc.is_finite(operand))
    why = make_reasons(lost, OUT_OF_RANGE)
    return (done, None) if why is None else (pc.if_else(pc.is_valid(why), pa.scalar(None, done.type), done), why)


def _divide(_: TypedExpr, operands: Sequence[pa.Array]) -> Found:
    left, right = operands
    zero = pc.equal(right, 0.0)
    why = make_reasons(pc.and_(zero, pc.is_valid(left)), BY_ZERO)
    if why is not None:
        right = pc.if_else(zero, pa.scalar(None, right.type), right)
    done, beyond = _check_finite(pc.divide(left, right), left, right)
    return done, first_reasons(why, beyond)


def _modulo(_: TypedExpr, operands: Sequence[pa.Array]) -> Found:
    """The remainder, with the sign of the dividend."""
    left, right = operands
    zero = pc.equal(right, 0)
    # The smallest number divided by -1 overflows, but it has a remainder.
    by = pc.if_else(pc.or_(zero, pc.equal(right, -1)), pa.scalar(1, WHOLE), right)
    done = pc.subtract(left, pc.multiply(pc.divide(left, by), by))
    why = make_reasons(pc.and_(zero, pc.is_valid(left)), BY_ZERO)
    return (done if why is None else pc.if_else(zero, pa.scalar(None, WHOLE), done)), why


def _apply_unary(node: TypedExpr, operands: Sequence[pa.Array]) -> Found:
    function = {"negative": pc.negate_checked, "abs": pc.abs_checked}[node.operation]
    return _check_range(function, node.type, operands[0])


def _round(node: TypedExpr, operands: Sequence[pa.Array]) -> Found:
    (values,) = operands
    done = {"floor": pc.floor, "ceil": pc.ceil, "round": lambda some: _round_half_away(some, node.value)}[node.operation](
        values
    )
    return _check_finite(done, values) if t.is_floating(node.type) else (done, None)


def _round_half_away(values: pa.Array, decimals: int) -> pa.Array:
    """Rounds halves away from zero. Arrow multiplies floats first, and refuses the array if a product overflows."""
    if not t.is_floating(values.type):
        return pc.round(values, ndigits=decimals, round_mode="half_towards_infinity")
    small = pc.less(pc.abs(values), WHOLE_FROM)
    done = pc.round(pc.if_else(small, values, 0.0), ndigits=decimals, round_mode="half_towards_infinity")
    return pc.if_else(small, done, values)


def _convert(node: TypedExpr, operands: Sequence[pa.Array]) -> Found:
    (values,) = operands
    kind = to_plain_type(values.type)
    if kind != values.type:
        values = values.cast(kind)
    if t.is_floating(node.type):
        return to_float(values, node.type), None
    if t.is_integer(kind) and t.is_decimal(node.type):
        # Arrow compares the precision with the integer type's widest value, not with the values in the array.
        values = values.cast(EVERY_INTEGER)
    return _check_range(lambda some: some.cast(node.type), node.type, values)


def _cast_values(node: TypedExpr, operands: Sequence[pa.Array]) -> Found:
    done, lost = cast_values(pa.chunked_array([operands[0]]), node.type)
    return combine_arrays(done, node.type), lossy_cast_reasons(combine_arrays(lost, pa.bool_()), node.type)


def lossy_cast_reasons(where: pa.Array, kind: pa.DataType) -> Texts:
    """The reason for lossy casts."""
    return make_reasons(where, f"a value cannot become {kind} without loss")


def _narrow(node: TypedExpr, operands: Sequence[pa.Array]) -> Found:
    return _check_range(lambda some: some.cast(node.type), node.type, operands[0])


def _compare(node: TypedExpr, operands: Sequence[pa.Array]) -> Found:
    return COMPARISONS[node.operation](*operands), None


def _to_text(node: TypedExpr, operands: Sequence[pa.Array]) -> Found:
    return combine_arrays(to_texts(pa.chunked_array([operands[0]])), node.type), None


def _join_texts(node: TypedExpr, operands: Sequence[pa.Array]) -> Found:
    """`||` with NULL is NULL; `concat` skips NULLs."""
    if node.operation == "concat":
        operands = [pc.coalesce(operand, "") for operand in operands]
    return pc.binary_join_element_wise(*operands, ""), None


def _apply_text_function(node: TypedExpr, operands: Sequence[pa.Array]) -> Found:
    (values,) = operands
    match node.operation:
        case "lower" | "upper":
            return (pc.utf8_lower if node.operation == "lower" else pc.utf8_upper)(values), None
        case "length":
            return pc.utf8_length(values).cast(node.type), None
        case "slice":
            return pc.utf8_slice_codeunits(values, *node.value), None
        case "replace":
            pattern, replacement = node.value
            return pc.replace_substring(values, pattern=pattern, replacement=replacement), None
    trim = {"trim": pc.utf8_trim, "ltrim": pc.utf8_ltrim, "rtrim": pc.utf8_rtrim}[node.operation]
    return trim(values, characters=" "), None


def _extract_part(node: TypedExpr, operands: Sequence[pa.Array]) -> Found:
    return getattr(pc, node.value)(_to_utc_clock(operands[0])).cast(node.type), None


def _truncate_time(node: TypedExpr, operands: Sequence[pa.Array]) -> Found:
    (values,) = operands
    done, why = _check_range(
        lambda some: pc.floor_temporal(some, unit=node.value), _to_utc_clock(values).type, _to_utc_clock(values)
    )
    return done.cast(node.type), why


def _to_utc_clock(values: pa.Array) -> pa.Array:
    """Timestamps with a zone are converted to UTC."""
    zoned = t.is_timestamp(values.type) and values.type.tz
    return values.cast(pa.timestamp(values.type.unit)) if zoned else values


COMPARISONS = {
    **{"=": pc.equal, "<>": pc.not_equal, "<": pc.less, "<=": pc.less_equal},
    **{">": pc.greater, ">=": pc.greater_equal},
}
STEPS: Mapping[str, Step] = {
    **dict.fromkeys(("+", "-", "*"), _apply_arithmetic),
    **{"/": _divide, "%": _modulo, "as": _convert, "cast": _cast_values, "narrowed": _narrow, "text": _to_text},
    **dict.fromkeys(("negative", "abs"), _apply_unary),
    **dict.fromkeys(("round", "floor", "ceil"), _round),
    **dict.fromkeys(COMPARISONS, _compare),
    **dict.fromkeys(("concat", "||"), _join_texts),
    **dict.fromkeys(("lower", "upper", "trim", "ltrim", "rtrim", "length", "slice", "replace"), _apply_text_function),
    "extract": _extract_part,
    "date_trunc": _truncate_time,
}
"""The function of each operation."""
