"""Arrow columns as text for PostgreSQL's input functions, a whole column at a time.

`text_column` returns a column that `pyarrow.csv` writes correctly: numbers stay numbers, everything else is
text.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from ..arrow.columns import rebase_offsets, slice_items
from .json_text import json_text
from .temporal_text import date_text, duration_text, instant_text, time_text

ARRAY_FORM, JSON_FORM, PLAIN_FORM = "array", "json", "plain"


def text_column(column: pa.Array, form: str = PLAIN_FORM) -> pa.Array:
    """`column` as an array literal, as JSON text, or as the plain input of a scalar type. NULL stays NULL."""
    if form == ARRAY_FORM:
        return array_literal(column)
    if form == JSON_FORM and not _is_text(column.type):
        return _keep_nulls(column, json_text(column))
    return plain_text(column)


def plain_text(column: pa.Array) -> pa.Array:
    """Scalars. Floats have their shortest exact form, with `nan`, `inf` and `-inf`, which PostgreSQL accepts."""
    if pa.types.is_dictionary(column.type):
        return plain_text(column.dictionary_decode())
    for holds, make in PLAIN:
        if holds(column.type):
            return make(column)
    return column


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def bytes_text(column: pa.Array) -> pa.Array:
    r"""Bytes in the hex form, `\x0aff`. One call encodes all values: their offsets in the buffer double."""
    if not len(column):
        return column.cast(pa.string())
    places = pa.Array.from_buffers(pa.int32(), len(column) + 1, [None, column.buffers()[1]], offset=column.offset)
    first, last = places[0].as_py(), places[-1].as_py()
    data = column.buffers()[2].slice(first, last - first).to_pybytes() if last > first else b""
    doubled = pc.multiply_checked(rebase_offsets(places), pa.scalar(2, pa.int32()))
    hexed = pa.py_buffer(data.hex().encode())
    text = pa.Array.from_buffers(pa.string(), len(column), [None, doubled.buffers()[1], hexed])
    return _keep_nulls(column, pc.binary_join_element_wise(pa.scalar("\\x"), text, pa.scalar("")))


def array_literal(column: pa.Array) -> pa.Array:
    """Lists of scalars as `{1,NULL,3}`. Everything but numbers and booleans is quoted."""
    lists = column.cast(pa.list_(column.type.value_type))
    offsets, values = slice_items(lists)
    items = plain_text(values)
    if _is_text(items.type):
        escaped = pc.replace_substring(pc.replace_substring(items, "\\", "\\\\"), '"', '\\"')
        items = pc.binary_join_element_wise(pa.scalar('"'), escaped, pa.scalar('"'), pa.scalar(""))
    items = items.cast(pa.string()).fill_null("NULL")
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, items), ",")
    return _keep_nulls(column, pc.binary_join_element_wise(pa.scalar("{"), joined, pa.scalar("}"), pa.scalar("")))


def _keep_nulls(column: pa.Array, text: pa.Array) -> pa.Array:
    return pc.if_else(column.is_valid(), text, pa.scalar(None, pa.string()))


def _is_bytes(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind) or t.is_binary_view(kind))


PLAIN: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.Array]], ...] = (
    (pa.types.is_timestamp, instant_text),
    (pa.types.is_date, lambda c: date_text(c.cast(pa.date32()))),
    (pa.types.is_time, time_text),
    (pa.types.is_duration, duration_text),
    (_is_bytes, lambda c: bytes_text(c.cast(pa.binary()))),
    (pa.types.is_float16, lambda c: c.cast(pa.float32())),
    (lambda k: pa.types.is_null(k) or _is_text(k), lambda c: c.cast(pa.string())),
)
"""Types that CSV writes in another form than PostgreSQL reads. All others stay as they are."""
