"""Casts without loss, value by value."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from replicator.domain.sequence_elements import to_plain_type

from ..arrow import text_values
from ..arrow.decimals import cast_digits
from ..arrow.record_errors import ValueMisfit

Cast = tuple[pa.ChunkedArray, pa.ChunkedArray]
"""The values, null if the cast fails; and a mask of the values for which it failed."""

EVERY_INTEGER = pa.decimal256(20, 0)


def cast_values(values: pa.ChunkedArray, into: pa.DataType) -> Cast:
    """The values in another type, for casts that exist (`domain.transform.casts.is_castable`). A value fails if the cast
    back gives another value. Text only has to be readable."""
    kind = to_plain_type(values.type)
    whole = (values if kind == values.type else values.cast(kind)).combine_chunks()
    if isinstance(whole, pa.ChunkedArray):  # An array without chunks.
        whole = pa.array([], kind)
    done = pa.chunked_array(_cast_halves(whole, into), into)
    return done, pc.and_(pc.is_valid(pa.chunked_array([whole], kind)), pc.is_null(done))


def _cast_halves(values: pa.Array, into: pa.DataType) -> list[pa.Array]:
    """Cast halves until the failing value is found, because Arrow refuses all values for one of them."""
    try:
        return [_drop_lossy(values, _cast_array(values, into))]
    except (pa.ArrowInvalid, ValueMisfit):
        if len(values) == 1:
            return [pa.nulls(1, into)]
    half = len(values) // 2
    return [*_cast_halves(values.slice(0, half), into), *_cast_halves(values.slice(half), into)]


def _cast_array(values: pa.Array, into: pa.DataType) -> pa.Array:
    if t.is_integer(values.type) and t.is_decimal(into):
        # Arrow compares the precision with the integer type's widest value, not with the values in the array.
        values = values.cast(EVERY_INTEGER)
    read = text_values.find_text_reader(into) if _is_text_type(values.type) and _is_number_text(into) else None
    if read is not None:
        return read(values.cast(pa.string()))
    return to_float(values, into) if t.is_floating(into) else cast_digits(values, into)


def to_float(values: pa.Array, into: pa.DataType) -> pa.Array:
    """The nearest floats. Arrow's own cast is inexact for decimals (220.23 becomes 220.23000000000002), not for text."""
    return values.cast(pa.string()).cast(into) if t.is_decimal(values.type) else values.cast(into, safe=False)


def _drop_lossy(values: pa.Array, done: pa.Array) -> pa.Array:
    """`done`, null if the cast back gives another value."""
    if _is_text_type(values.type) or _is_text_type(done.type):
        return done
    back = _cast_array(done, values.type)
    same = pc.equal(back, values)
    if t.is_floating(values.type):
        same = pc.or_(same, pc.and_(pc.is_nan(back), pc.is_nan(values)))
    return pc.if_else(same, done, pa.scalar(None, done.type))


def _is_number_text(kind: pa.DataType) -> bool:
    """True for types in which Arrow reads some text wrongly: 0x10 as an integer, 1e400 as infinity, long decimals."""
    return bool(t.is_integer(kind) or t.is_floating(kind) or t.is_decimal(kind))


def _is_text_type(kind: pa.DataType) -> bool:
    return bool(t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind))
