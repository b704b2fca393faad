"""Evaluation of configured expressions (`domain.transform.typed_expressions`) and conditions over frames, for all
engines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from replicator.domain.change import UNCHANGED
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.expr import Expr
from replicator.domain.sequence import to_plain_type
from replicator.domain.transform.expressions import resolve_boolean as with_types
from replicator.domain.transform.typed_expressions import WHOLE, TypedExpr

from ..arrow import text_values
from ..arrow.decimals import cast_digits
from ..arrow.masks import to_texts
from ..arrow.record_errors import ValueMisfit


@dataclass(frozen=True)
class ExpressionRows:
    """The input columns, each with `count` values. `missing`: for columns with missing values, the rows with them."""

    columns: Mapping[str, pa.ChunkedArray]
    count: int
    missing: Mapping[str, pa.Array] = field(default_factory=dict)

    def evaluate(self, node: TypedExpr) -> ValuesAndErrors:
        """The values of the expression, and reasons for failures: a division by zero, a number out of range, a lossy
        cast. Failed values are NULL."""
        values, failed = self._evaluate(node)
        return (values if failed is None else _select_values(pc.is_null(failed), values)), failed

    def _evaluate(self, node: TypedExpr) -> ValuesAndErrors:  # noqa: PLR0911  (one return per case)
        match node.operation:
            case "column":
                return combine_arrays(self.columns[node.value], node.type), None
            case "constant":
                return pa.repeat(pa.scalar(node.value, node.type), self.count), None
            case "and" | "or":
                return self._evaluate_junction(node)
            case "not":
                values, failed = self.evaluate_condition(node.operands[0])
                return pc.invert(values), failed
            case "is null":
                values, failed = self.evaluate(node.operands[0])
                return pc.is_null(values), failed
            case "case":
                return self._evaluate_case(node)
            case "coalesce":
                return self._evaluate_coalesce(node)
        operands = [self.evaluate(operand) for operand in node.operands]
        values, failed = STEPS[node.operation](node, [operand for operand, _ in operands])
        return values, first_reasons(*(why for _, why in operands), failed)

    def evaluate_condition(self, node: TypedExpr) -> ValuesAndErrors:
        """Like `evaluate`, for conditions: a condition on a missing value is unknown."""
        if node.operation in ("and", "or", "not"):
            return self.evaluate(node)
        values, failed = self.evaluate(node)
        for name in node.columns & self.missing.keys():
            present = pc.invert(self.missing[name])
            values, failed = _select_values(present, values), _select_values(present, failed)
        return values, failed

    def _evaluate_junction(self, node: TypedExpr) -> ValuesAndErrors:
        """From left to right. Operands that cannot change the result any more cannot fail."""
        decides = node.operation == "or"
        join = pc.or_kleene if decides else pc.and_kleene
        values, failed = pa.repeat(pa.scalar(not decides), self.count), None
        for operand in node.operands:
            others, why = self.evaluate_condition(operand)
            if why is not None:
                failed = first_reasons(failed, _select_values(pc.fill_null(pc.not_equal(values, decides), True), why))
            values = join(values, others)
        return values, failed

    def _evaluate_case(self, node: TypedExpr) -> ValuesAndErrors:
        *pairs, last = node.operands
        values, failed = pa.nulls(self.count, node.type), None
        is_open = pa.repeat(pa.scalar(True), self.count)
        for when, then in zip(pairs[::2], pairs[1::2], strict=True):
            holds, why = self.evaluate_condition(when)
            failed = first_reasons(failed, _select_values(is_open, why))
            is_branch = pc.and_(is_open, pc.fill_null(holds, False))
            is_open = pc.and_(is_open, pc.invert(is_branch))
            values, failed = self._choose_values(then, is_branch, values, failed)
        return self._choose_values(last, is_open, values, failed)

    def _evaluate_coalesce(self, node: TypedExpr) -> ValuesAndErrors:
        values, failed = self.evaluate(node.operands[0])
        for operand in node.operands[1:]:
            is_open = pc.is_null(values) if failed is None else pc.and_(pc.is_null(values), pc.is_null(failed))
            values, failed = self._choose_values(operand, is_open, values, failed)
        return values, failed

    def _choose_values(self, node: TypedExpr, where: pa.Array, values: pa.Array, failed: Texts) -> ValuesAndErrors:
        """`values`, replaced by the values of `node` where `where` is true."""
        if not pc.any(where).as_py():
            return values, failed
        others, why = self.evaluate(node)
        return pc.if_else(where, others, values), first_reasons(failed, _select_values(where, why))


def _select_values(mask: pa.Array, values: pa.Array | None) -> pa.Array | None:
    """The values where the mask is true, otherwise null."""
    return None if values is None else pc.if_else(mask, values, pa.scalar(None, values.type))


# Conditions (`domain.transform.expressions`) over changes.


def evaluate_condition(changes: pa.Table, condition: Expr) -> tuple[pa.Array, Texts]:
    """For each change True if the condition holds, False if it is unknown; and the reasons why it failed. The condition
    must have passed `refuse_condition` for the table of this frame."""
    tree = with_types(condition, {field.name: field.type for field in changes.schema})
    lacking = {name: where for name in tree.columns if (where := mask_missing(changes, name)) is not None}
    values, failed = ExpressionRows(select_columns(changes, tree.columns), changes.num_rows, lacking).evaluate_condition(
        tree
    )
    return pc.fill_null(values, False), failed


def select_columns(changes: pa.Table, names: Iterable[str]) -> dict[str, pa.ChunkedArray]:
    """Columns by their names."""
    return {name: changes[name] for name in names}


def mask_missing(changes: pa.Table, name: str) -> pa.Array | None:
    """True for changes with a missing value of this column; None if there are none."""
    lists = changes[UNCHANGED]
    if lists.null_count == changes.num_rows:
        return None
    return pa.array([names is not None and name in names for names in lists.to_pylist()], pa.bool_())


def unknown_condition_reject(key: str, why: str) -> Reject:
    """The reject of a change for which a condition failed."""
    return Reject(
        RejectCode.OUT_OF_RANGE, f"'{key}' cannot be evaluated for this row: {why}; correct the row, or the condition"
    )


# Operations of expressions over whole columns, with reasons for values that failed.

Texts: TypeAlias = pa.Array | None
"""The reason of each row without a value, null for rows with one; None if no row failed."""

ValuesAndErrors = tuple[pa.Array, Texts]
Step = Callable[[TypedExpr, Sequence[pa.Array]], ValuesAndErrors]

OUT_OF_RANGE = "a number is out of range"
BY_ZERO = "something is divided by zero"
WHOLE_FROM = 2.0**52
"""Floats from this size on have no fraction."""


def combine_arrays(values: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """A column as one array."""
    return values.combine_chunks() if values.num_chunks else pa.array([], kind)


def first_reasons(*failed: Texts) -> Texts:
    """The first reason of each row."""
    reasons = [one for one in failed if one is not None]
    return None if not reasons else reasons[0] if len(reasons) == 1 else pc.coalesce(*reasons)


def make_reasons(where: pa.Array, why: str) -> Texts:
    """The reason `why` for rows where `where` is true."""
    where = pc.fill_null(where, False)
    return pc.if_else(where, pa.scalar(why), pa.scalar(None, pa.string())) if pc.any(where).as_py() else None


def _map_values(function: Callable[..., pa.Array], kind: pa.DataType, *operands: pa.Array) -> list[pa.Array]:
    """Halve the arrays until the failing value is found, which becomes null: Arrow refuses all values for one of them."""
    try:
        return [function(*operands)]
    except (pa.ArrowInvalid, ValueMisfit):
        count = len(operands[0])
        if count == 1:
            return [pa.nulls(1, kind)]
    half = count // 2
    parts = ([operand.slice(0, half) for operand in operands], [operand.slice(half) for operand in operands])
    return [array for part in parts for array in _map_values(function, kind, *part)]


def _check_range(function: Callable[..., pa.Array], kind: pa.DataType, *operands: pa.Array) -> ValuesAndErrors:
    """A row with all operands but without a result is out of range."""
    pieces = _map_values(function, kind, *operands)
    if len(pieces) == 1 and len(operands[0]) != 1:
        return pieces[0], None
    array, has_operands = pa.concat_arrays(pieces), pa.repeat(pa.scalar(True), len(operands[0]))
    for operand in operands:
        has_operands = pc.and_(has_operands, pc.is_valid(operand))
    return array, make_reasons(pc.and_(has_operands, pc.is_null(array)), OUT_OF_RANGE)


def _apply_arithmetic(node: TypedExpr, operands: Sequence[pa.Array]) -> ValuesAndErrors:
    checked = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}
    function = (checked | {"negative": pc.negate_checked, "abs": pc.abs_checked})[node.operation]
    if t.is_floating(node.type):
        return _check_finite(function(*operands), *operands)
    return _check_range(function, node.type, *operands)


def _check_finite(array: pa.Array, *operands: pa.Array) -> ValuesAndErrors:
    """A result of finite numbers that is not finite is out of range."""
    lost = pc.invert(pc.is_finite(array))
    for operand in operands:
        lost = pc.and_(lost, pc.is_finite(operand))
    why = make_reasons(lost, OUT_OF_RANGE)
    return (array, None) if why is None else (pc.if_else(pc.is_valid(why), pa.scalar(None, array.type), array), why)


def _divide(_: TypedExpr, operands: Sequence[pa.Array]) -> ValuesAndErrors:
    left, right = operands
    zero = pc.equal(right, 0.0)
    why = make_reasons(pc.and_(zero, pc.is_valid(left)), BY_ZERO)
    if why is not None:
        right = pc.if_else(zero, pa.scalar(None, right.type), right)
    array, beyond = _check_finite(pc.divide(left, right), left, right)
    return array, first_reasons(why, beyond)


def _modulo(_: TypedExpr, operands: Sequence[pa.Array]) -> ValuesAndErrors:
    """The remainder, with the sign of the dividend."""
    left, right = operands
    zero = pc.equal(right, 0)
    # The smallest number divided by -1 overflows, but it has a remainder.
    by = pc.if_else(pc.or_(zero, pc.equal(right, -1)), pa.scalar(1, WHOLE), right)
    array = pc.subtract(left, pc.multiply(pc.divide(left, by), by))
    why = make_reasons(pc.and_(zero, pc.is_valid(left)), BY_ZERO)
    return (array if why is None else pc.if_else(zero, pa.scalar(None, WHOLE), array)), why


def _round(node: TypedExpr, operands: Sequence[pa.Array]) -> ValuesAndErrors:
    """`round` rounds halves away from zero."""
    (values,) = operands
    if node.operation != "round":
        array = (pc.floor if node.operation == "floor" else pc.ceil)(values)
    elif t.is_floating(values.type):
        # Arrow multiplies floats first, and refuses the array if a product overflows.
        small = pc.less(pc.abs(values), WHOLE_FROM)
        rounded = pc.round(pc.if_else(small, values, 0.0), ndigits=node.value, round_mode="half_towards_infinity")
        array = pc.if_else(small, rounded, values)
    else:
        array = pc.round(values, ndigits=node.value, round_mode="half_towards_infinity")
    return _check_finite(array, values) if t.is_floating(node.type) else (array, None)


def _convert(node: TypedExpr, operands: Sequence[pa.Array]) -> ValuesAndErrors:
    (values,) = operands
    kind = to_plain_type(values.type)
    if kind != values.type:
        values = values.cast(kind)
    if t.is_floating(node.type):
        return to_float(values, node.type), None
    if t.is_integer(kind) and t.is_decimal(node.type):
        # Arrow compares the precision with the integer type's widest value, not with the values in the array.
        values = values.cast(EVERY_INTEGER)
    return _check_range(lambda array: array.cast(node.type), node.type, values)


def _cast_values(node: TypedExpr, operands: Sequence[pa.Array]) -> ValuesAndErrors:
    values, lost = cast_values(pa.chunked_array([operands[0]]), node.type)
    return combine_arrays(values, node.type), lossy_cast_reasons(combine_arrays(lost, pa.bool_()), node.type)


def lossy_cast_reasons(where: pa.Array, kind: pa.DataType) -> Texts:
    """The reason for lossy casts."""
    return make_reasons(where, f"a value cannot become {kind} without loss")


def _join_texts(node: TypedExpr, operands: Sequence[pa.Array]) -> ValuesAndErrors:
    """`||` with NULL is NULL; `concat` skips NULLs."""
    if node.operation == "concat":
        operands = [pc.coalesce(operand, "") for operand in operands]
    return pc.binary_join_element_wise(*operands, ""), None


def _apply_text_function(node: TypedExpr, operands: Sequence[pa.Array]) -> ValuesAndErrors:
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


def _truncate_time(node: TypedExpr, operands: Sequence[pa.Array]) -> ValuesAndErrors:
    (values,) = operands
    clock, why = _check_range(
        lambda array: pc.floor_temporal(array, unit=node.value), _to_utc_clock(values).type, _to_utc_clock(values)
    )
    return clock.cast(node.type), why


def _to_utc_clock(values: pa.Array) -> pa.Array:
    """Timestamps with a zone are converted to UTC."""
    zoned = t.is_timestamp(values.type) and values.type.tz
    return values.cast(pa.timestamp(values.type.unit)) if zoned else values


COMPARISONS = {
    **{"=": pc.equal, "<>": pc.not_equal, "<": pc.less, "<=": pc.less_equal},
    **{">": pc.greater, ">=": pc.greater_equal},
}
STEPS: Mapping[str, Step] = {
    **dict.fromkeys(("+", "-", "*", "negative", "abs"), _apply_arithmetic),
    **{"/": _divide, "%": _modulo, "as": _convert, "cast": _cast_values},
    "narrowed": lambda node, operands: _check_range(lambda array: array.cast(node.type), node.type, operands[0]),
    "text": lambda node, operands: (combine_arrays(to_texts(pa.chunked_array([operands[0]])), node.type), None),
    **dict.fromkeys(("round", "floor", "ceil"), _round),
    **dict.fromkeys(COMPARISONS, lambda node, operands: (COMPARISONS[node.operation](*operands), None)),
    **dict.fromkeys(("concat", "||"), _join_texts),
    **dict.fromkeys(("lower", "upper", "trim", "ltrim", "rtrim", "length", "slice", "replace"), _apply_text_function),
    "extract": lambda node, operands: (getattr(pc, node.value)(_to_utc_clock(operands[0])).cast(node.type), None),
    "date_trunc": _truncate_time,
}
"""The function of each operation."""


# Casts without loss, value by value.

Cast = tuple[pa.ChunkedArray, pa.ChunkedArray]
"""The values, null if the cast fails; and a mask of the values for which it failed."""

EVERY_INTEGER = pa.decimal256(20, 0)


def cast_values(values: pa.ChunkedArray, into: pa.DataType) -> Cast:
    """The values in another type, for casts that exist (see `typed_expressions.is_castable`). A value fails if the cast
    back gives another value. Text only has to be readable."""
    kind = to_plain_type(values.type)
    whole = (values if kind == values.type else values.cast(kind)).combine_chunks()
    if isinstance(whole, pa.ChunkedArray):  # An array without chunks.
        whole = pa.array([], kind)
    array = pa.chunked_array(_map_values(lambda part: _cast_without_loss(part, into), into, whole), into)
    return array, pc.and_(pc.is_valid(pa.chunked_array([whole], kind)), pc.is_null(array))


def _cast_without_loss(values: pa.Array, into: pa.DataType) -> pa.Array:
    """The values in another type, null if the cast back gives another value."""
    array = _cast_array(values, into)
    if _is_text_type(values.type) or _is_text_type(array.type):
        return array
    back = _cast_array(array, values.type)
    same = pc.equal(back, values)
    if t.is_floating(values.type):
        same = pc.or_(same, pc.and_(pc.is_nan(back), pc.is_nan(values)))
    return pc.if_else(same, array, pa.scalar(None, array.type))


def _cast_array(values: pa.Array, into: pa.DataType) -> pa.Array:
    if t.is_integer(values.type) and t.is_decimal(into):
        # Arrow compares the precision with the integer type's widest value, not with the values in the array.
        values = values.cast(EVERY_INTEGER)
    # Arrow reads some text wrongly as these: 0x10 as an integer, 1e400 as infinity, long decimals.
    is_number = t.is_integer(into) or t.is_floating(into) or t.is_decimal(into)
    read = text_values.find_text_reader(into) if is_number and _is_text_type(values.type) else None
    if read is not None:
        return read(values.cast(pa.string()))
    return to_float(values, into) if t.is_floating(into) else cast_digits(values, into)


def to_float(values: pa.Array, into: pa.DataType) -> pa.Array:
    """The nearest floats. Arrow's own cast is inexact for decimals (220.23 becomes 220.23000000000002), not for text."""
    return values.cast(pa.string()).cast(into) if t.is_decimal(values.type) else values.cast(into, safe=False)


def _is_text_type(kind: pa.DataType) -> bool:
    return bool(t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind))
