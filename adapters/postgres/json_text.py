"""Arrow columns as JSON text, with kernels over whole columns; for structs, maps and lists that become jsonb."""

from __future__ import annotations

import base64

import pyarrow as pa
import pyarrow.compute as pc

from ..arrow.columns import slice_items
from .temporal_text import date_text, instant_text, time_text

EMPTY = pa.scalar("")


def json_text(column: pa.Array) -> pa.Array:
    """One JSON value per row, `null` for NULL.

    Bytes are base64, timestamps ISO 8601, decimals numbers. A float that JSON does not have (NaN, infinity) is
    text.
    """
    return _value(column).fill_null("null")


def _value(column: pa.Array) -> pa.Array:
    kind, t = column.type, pa.types
    if t.is_struct(kind):
        return _object(column)
    if t.is_map(kind):
        return _map(column)
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        return _list(column.cast(pa.list_(kind.value_type)))
    if t.is_floating(kind):
        return _float(column)
    if t.is_boolean(kind) or t.is_integer(kind) or t.is_decimal(kind) or t.is_null(kind):
        return column.cast(pa.string())
    return _quote_text(_text(column))


def _text(column: pa.Array) -> pa.Array:
    kind, t = column.type, pa.types
    if t.is_timestamp(kind):
        return _iso_text(column)
    if t.is_date(kind):
        return date_text(column.cast(pa.date32()))
    if t.is_time(kind):
        return time_text(column)
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind):
        return pa.array([None if v is None else base64.b64encode(v).decode() for v in column.to_pylist()], pa.string())
    return column.cast(pa.string())


def _iso_text(column: pa.Array) -> pa.Array:
    text = pc.replace_substring(instant_text(column), " ", "T", max_replacements=1)
    return pc.binary_join_element_wise(text, pa.scalar("Z"), EMPTY) if column.type.tz else text


def _quote_text(text: pa.Array) -> pa.Array:
    """RFC 8259: backslash, quote and control characters are escaped."""
    text = pc.replace_substring(pc.replace_substring(text, "\\", "\\\\"), '"', '\\"')
    if pc.any(pc.match_substring_regex(text, "[\\x00-\\x1f]")).as_py():
        for code in range(0x20):
            text = pc.replace_substring(text, chr(code), f"\\u{code:04x}")
    return pc.binary_join_element_wise(pa.scalar('"'), text, pa.scalar('"'), EMPTY)


def _float(column: pa.Array) -> pa.Array:
    wide = column.cast(pa.float64()) if pa.types.is_float16(column.type) else column
    text = wide.cast(pa.string())
    for arrows, words in ((r"^nan$", "NaN"), (r"inf$", "Infinity")):
        text = pc.replace_substring_regex(text, arrows, words)
    return pc.if_else(pc.is_finite(wide), text, _quote_text(text))


def _list(column: pa.Array) -> pa.Array:
    offsets, values = slice_items(column)
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, json_text(values)), ",")
    return _keep_nulls(column, pc.binary_join_element_wise(pa.scalar("["), joined, pa.scalar("]"), EMPTY))


def _map(column: pa.Array) -> pa.Array:
    offsets, entries = slice_items(column.cast(pa.list_(pa.struct([column.type.key_field, column.type.item_field]))))
    pairs = pc.binary_join_element_wise(_quote_text(_text(entries.field(0))), json_text(entries.field(1)), ":")
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, pairs), ",")
    return _keep_nulls(column, pc.binary_join_element_wise(pa.scalar("{"), joined, pa.scalar("}"), EMPTY))


def _object(column: pa.Array) -> pa.Array:
    pieces: list[pa.Array | pa.Scalar] = [pa.scalar("{")]
    for i, name in enumerate(f.name for f in column.type):
        label = _quote_text(pa.array([name]))[0].as_py()
        pieces += [pa.scalar(f"{',' if i else ''}{label}:"), json_text(column.field(i))]
    text = pc.binary_join_element_wise(*pieces, pa.scalar("}"), EMPTY) if column.type.num_fields else None
    return _keep_nulls(column, text if text is not None else pa.array(["{}"] * len(column)))


def _keep_nulls(column: pa.Array, text: pa.Array) -> pa.Array:
    return pc.if_else(column.is_valid(), text, pa.scalar(None, pa.string()))
