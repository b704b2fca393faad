"""The Delta type of each Arrow type, and rows in the types of a table. Only this module decides them.

Delta has no unsigned integers, no time of day, no duration, decimals of at most 38 digits and timestamps in
microseconds. Such values are stored without loss in another type:

| Arrow | Delta | form |
| --- | --- | --- |
| uint8, uint16, uint32 | short, integer, long | the number |
| uint64 | decimal(20,0) | the number |
| float16 | float | the number |
| time32, time64 | string | `HH:MM:SS`, and the fraction in the digits of its unit; sorts as time does |
| duration | long | the number of its units |
| timestamp(ns) | string | `YYYY-MM-DD HH:MM:SS.nnnnnnnnn`, with `Z` when it has a zone (then UTC) |
| other timestamps | timestamp (UTC), timestamp_ntz without a zone | microseconds |
| date64 | date | the day |
| decimal, negative scale | decimal(p-s, 0) | the number |
| decimal, scale above precision | decimal(s, s) | the number |
| decimal of more than 38 digits | string | the number, with all its digits and no exponent |
| fixed-size and large binary, views | binary | the bytes |
| large string, views, dictionary, extension | as the type they represent | |
| null | string | always null |

Lists, structs and maps stay what they are, with inner types by the same rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from replicator.domain.errors import Fatal
from replicator.domain.sequence import is_bytes, is_text

from ..apply.conform import conform_to_schema, out_of_range_reason, to_refused
from ..arrow.decimals import cast_digits

EXACT_DECIMAL_DIGITS = 15
"""delta-rs writes decimal statistics as JSON floats, which are exact only up to this number of digits. Beyond,
readers skip rows."""

_LATEST = {"s": "24:00:00", "ms": "24:00:00.000", "us": "24:00:00.000000", "ns": "24:00:00.000000000"}

_INTEGERS = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0)}


def storage_type(arrow: pa.DataType) -> pa.DataType:
    """The Arrow type of the Delta column that stores values of `arrow` (table above). Raises Fatal for other
    types."""
    for applies, to_stored in _RULES:
        if applies(arrow):
            return to_stored(arrow)
    raise Fatal(
        f"a Delta table cannot store values of type {arrow}", next_step="Leave the column out with `columns: {NAME: drop}`."
    )


def _decimal(arrow: pa.DataType) -> pa.DataType:
    precision, scale = arrow.precision, arrow.scale
    if scale < 0:
        precision, scale = precision - scale, 0
    precision = max(precision, scale)
    return pa.decimal128(precision, scale) if precision <= 38 else pa.string()


def _timestamp(arrow: pa.DataType) -> pa.DataType:
    if arrow.unit == "ns":
        return pa.string()
    return pa.timestamp("us", "UTC" if arrow.tz else None)


def _list(arrow: pa.DataType) -> pa.DataType:
    return pa.list_(storage_type(arrow.value_type))


def _struct(arrow: pa.DataType) -> pa.DataType:
    return pa.struct([pa.field(f.name, storage_type(f.type)) for f in arrow])


def _map(arrow: pa.DataType) -> pa.DataType:
    return pa.map_(storage_type(arrow.key_type), storage_type(arrow.item_type))


def _same(arrow: pa.DataType) -> pa.DataType:
    return arrow


def _is_list(arrow: pa.DataType) -> bool:
    return bool(t.is_list(arrow) or t.is_large_list(arrow) or t.is_fixed_size_list(arrow))


_RULES: tuple[tuple[Callable[[Any], bool], Callable[[Any], pa.DataType]], ...] = (
    (lambda a: isinstance(a, pa.BaseExtensionType), lambda a: storage_type(a.storage_type)),
    (t.is_dictionary, lambda a: storage_type(a.value_type)),
    (lambda a: a in _INTEGERS, _INTEGERS.__getitem__),
    (lambda a: t.is_signed_integer(a) or t.is_boolean(a), _same),
    (t.is_float16, lambda _: pa.float32()),
    (t.is_floating, _same),
    (t.is_decimal, _decimal),
    (is_text, lambda _: pa.string()),
    (is_bytes, lambda _: pa.binary()),
    (t.is_date, lambda _: pa.date32()),
    (t.is_time, lambda _: pa.string()),
    (t.is_timestamp, _timestamp),
    (t.is_duration, lambda _: pa.int64()),
    (t.is_null, lambda _: pa.string()),
    (_is_list, _list),
    (t.is_struct, _struct),
    (t.is_map, _map),
)


def has_exact_statistics(stored_type: pa.DataType) -> bool:
    """True when files can safely be skipped by delta-rs's statistics for a column of this stored type.

    False for decimals with more digits than a float, and for floats, because NaN has no order.
    """
    if t.is_decimal(stored_type):
        return bool(stored_type.precision <= EXACT_DECIMAL_DIGITS)
    plain = t.is_integer(stored_type) or t.is_string(stored_type) or t.is_date(stored_type) or t.is_timestamp(stored_type)
    return bool(plain)


def can_accept(stored_type: pa.DataType, arrow: pa.DataType) -> bool:
    """True when an existing column of type `stored_type` can store values of `arrow`, each without loss or else
    rejected."""
    new = storage_type(arrow)
    if stored_type.equals(new) or t.is_null(arrow):
        return True
    whole = t.is_integer(new) or t.is_decimal(new)
    if t.is_decimal(stored_type) or t.is_integer(stored_type):
        return bool(whole)
    if t.is_floating(stored_type):
        return bool(t.is_integer(new) or (t.is_float32(new) and t.is_float64(stored_type)))
    if t.is_string(stored_type):
        return bool(whole or t.is_boolean(new) or t.is_date(new))
    return bool(t.is_list(stored_type) and t.is_list(new) and can_accept(stored_type.value_type, new.value_type))


def to_storage(column: pa.ChunkedArray, stored_type: pa.DataType) -> pa.ChunkedArray:
    """`column` converted towards `stored_type` where Arrow's own cast would refuse or damage values that fit.

    `adapters.apply.conform` does the rest, and rejects values that do not fit.
    """
    arrow = column.type
    if isinstance(arrow, pa.BaseExtensionType):
        column, arrow = pc.cast(column, arrow.storage_type), arrow.storage_type
    if t.is_integer(arrow) and t.is_decimal(stored_type):
        # Arrow compares the precision with the range of the integer type, not with the actual values.
        return pc.cast(column, pa.decimal128(20 if arrow == pa.uint64() else 19, 0))
    if t.is_time(arrow) and t.is_string(stored_type):
        text = pc.cast(column, pa.string())
        # 24:00:00 is a time in PostgreSQL, but Arrow has no text for it.
        at_end = pc.equal(_to_ticks(column), _midnight(arrow))
        return pc.if_else(at_end, pa.scalar(_LATEST[arrow.unit]), text) if pc.any(at_end).as_py() else text
    return column


def restore_type(column: pa.ChunkedArray, arrow: pa.DataType) -> pa.ChunkedArray:
    """The reverse of `to_storage`: converts `column`, stored for `arrow`, so far that Arrow's own cast does the
    rest.

    That cast also fails for values that cannot be converted back. For rows from Spark, which may be nested:
    `_restore_column` in `adapters.spark.types`.
    """
    if isinstance(arrow, pa.BaseExtensionType):
        return restore_type(column, arrow.storage_type)
    if t.is_time(arrow) and t.is_string(column.type):
        # Arrow parses no time of day, so the text is parsed as a timestamp, and 24:00:00 not at all.
        at_end = pc.starts_with(column, "24:")
        if pc.any(at_end).as_py():
            midnight = pa.scalar(_midnight(arrow), pa.int32() if t.is_time32(arrow) else pa.int64()).cast(arrow)
            return pc.if_else(at_end, midnight, restore_type(pc.if_else(at_end, None, column), arrow))
        return pc.cast(pc.cast(pc.binary_join_element_wise("1970-01-01", column, " "), pa.timestamp(arrow.unit)), arrow)
    if t.is_null(arrow):
        return pa.chunked_array([pa.nulls(len(column))]) if column.null_count == len(column) else column
    return column


def to_storable(rows: pa.Table) -> pa.Table:
    """The rows in types that a Delta table can store."""
    kinds = [pa.field(f.name, storage_type(f.type)) for f in rows.schema]
    columns = [cast_digits(to_storage(column, f.type), f.type) for column, f in zip(rows.columns, kinds, strict=True)]
    return pa.Table.from_arrays(columns, schema=pa.schema(kinds))


def mask_impossible(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """True for times of day outside 00:00:00 to 24:00:00, which Arrow allows; None when there are none."""
    if not t.is_time(column.type):
        return None
    number = _to_ticks(column)
    beyond = pc.or_(pc.less(number, 0), pc.greater(number, _midnight(column.type)))
    return pc.fill_null(beyond, False) if pc.any(beyond).as_py() else None


def _to_ticks(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.cast(column, pa.int32() if t.is_time32(column.type) else pa.int64())


def _midnight(time: pa.DataType) -> int:
    return 86_400 * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[str(time.unit)]


def conform_to_table(rows: pa.Table, schema: pa.Schema) -> tuple[pa.Table, pa.Table]:
    """Rows (with `_place`) in the types of `schema`, and the rest as `REJECTED`.

    No value changes silently: it keeps its meaning (table above), or its row is rejected as OUT_OF_RANGE.
    """
    rejects = []
    for field in schema:
        mask = mask_impossible(rows[field.name]) if field.name in rows.column_names else None
        if mask is not None:
            rejects.append(
                to_refused(rows.filter(mask), out_of_range_reason(f"the value of column {field.name!r} is no time of day"))
            )
            rows = rows.filter(pc.invert(mask))
    for i, name in enumerate(rows.column_names):
        if name in schema.names:
            rows = rows.set_column(i, name, to_storage(rows[name], schema.field(name).type))
    good, bad = conform_to_schema(rows, schema)
    return good, pa.concat_tables([*rejects, bad])
