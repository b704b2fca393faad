"""Casts that lose nothing, value by value."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from replicator.domain.sequence_elements import to_plain_type

from ..arrow import text_values
from ..arrow.decimals import cast_digits
from ..arrow.record_errors import ValueMisfit

Cast = tuple[pa.ChunkedArray, pa.ChunkedArray]
"""The values, null where there is none; and where that is so for a value that there was."""

EVERY_INTEGER = pa.decimal256(20, 0)


def cast_values(values: pa.ChunkedArray, into: pa.DataType) -> Cast:
    """The values in another type, into which there is a cast (`domain.transform.casts.is_castable`). One that would not
    come back as it was has none; of text it is enough that it can be read."""
    kind = to_plain_type(values.type)
    whole = (values if kind == values.type else values.cast(kind)).combine_chunks()
    if isinstance(whole, pa.ChunkedArray):  # Of no chunks.
        whole = pa.array([], kind)
    done = pa.chunked_array(_cast_halves(whole, into), into)
    return done, pc.and_(pc.is_valid(pa.chunked_array([whole], kind)), pc.is_null(done))


def _cast_halves(values: pa.Array, into: pa.DataType) -> list[pa.Array]:
    """Arrow refuses all values for one of them, so they are halved until it is found."""
    try:
        return [_drop_lossy(values, _cast_array(values, into))]
    except (pa.ArrowInvalid, ValueMisfit):
        if len(values) == 1:
            return [pa.nulls(1, into)]
    half = len(values) // 2
    return [*_cast_halves(values.slice(0, half), into), *_cast_halves(values.slice(half), into)]


def _cast_array(values: pa.Array, into: pa.DataType) -> pa.Array:
    if t.is_integer(values.type) and t.is_decimal(into):
        # Arrow compares the widest value of the integer type with the precision, not the values there are.
        values = values.cast(EVERY_INTEGER)
    read = text_values.find_text_reader(into) if _is_text_type(values.type) and _is_number_text(into) else None
    if read is not None:
        return read(values.cast(pa.string()))
    return to_float(values, into) if t.is_floating(into) else cast_digits(values, into)


def to_float(values: pa.Array, into: pa.DataType) -> pa.Array:
    """The nearest floats. Of decimals Arrow's own cast gives others (220.23 becomes 220.23000000000002), but not of text."""
    return values.cast(pa.string()).cast(into) if t.is_decimal(values.type) else values.cast(into, safe=False)


def _drop_lossy(values: pa.Array, done: pa.Array) -> pa.Array:
    """`done`, null where the way back leads to another value."""
    if _is_text_type(values.type) or _is_text_type(done.type):
        return done
    back = _cast_array(done, values.type)
    same = pc.equal(back, values)
    if t.is_floating(values.type):
        same = pc.or_(same, pc.and_(pc.is_nan(back), pc.is_nan(values)))
    return pc.if_else(same, done, pa.scalar(None, done.type))


def _is_number_text(kind: pa.DataType) -> bool:
    """Of text Arrow itself would read 0x10 as a whole number, 1e400 as infinity, and many digits as another decimal."""
    return bool(t.is_integer(kind) or t.is_floating(kind) or t.is_decimal(kind))


def _is_text_type(kind: pa.DataType) -> bool:
    return bool(t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind))
