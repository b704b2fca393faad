"""Arrow columns as text for PostgreSQL's input functions, a whole column at a time, and COPY of such rows.

`text_column` returns a column that `pyarrow.csv` writes correctly: numbers stay numbers, everything else is
text."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from pgpq import ArrowToPostgresBinaryEncoder
from psycopg import sql
from pyarrow import csv

from replicator.domain.out_of_range import FIRST_DAY, FIRST_US, LAST_DAY, LAST_US

from ..arrow.decimals import cast_digits
from ..arrow.frame_slices import rebase_offsets, slice_items

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
    offsets = pa.Array.from_buffers(pa.int32(), len(column) + 1, [None, column.buffers()[1]], offset=column.offset)
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    data = column.buffers()[2].slice(first, last - first).to_pybytes() if last > first else b""
    doubled = pc.multiply_checked(rebase_offsets(offsets), pa.scalar(2, pa.int32()))
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
    item_lists = pc.binary_join(pa.ListArray.from_arrays(offsets, items), ",")
    return _keep_nulls(column, pc.binary_join_element_wise(pa.scalar("{"), item_lists, pa.scalar("}"), pa.scalar("")))


def _keep_nulls(column: pa.Array, text: pa.Array) -> pa.Array:
    return pc.if_else(column.is_valid(), text, pa.scalar(None, pa.string()))


def is_bytes(kind: pa.DataType) -> bool:
    """True for Arrow's binary types."""
    t = pa.types
    return bool(t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind) or t.is_binary_view(kind))


# Dates, times and durations as PostgreSQL writes them, also outside the years 1 to 9999.

DAY = 86_400_000_000
CYCLE_DAYS, CYCLE_YEARS = 146_097, 400
INFINITE_MICROS = {9_223_372_036_825_200_000: "infinity", -9_223_372_036_832_400_000: "-infinity"}
"""The values of the JDBC driver, and so of Debezium, for an infinite timestamp, in microseconds since 1970."""
INFINITE_DAYS = {2_147_483_647: "infinity", -2_147_483_648: "-infinity"}


def instant_text(column: pa.Array) -> pa.Array:
    """Timestamps as `2024-02-29 12:34:56.789`, without zone, because the session's time zone is UTC.

    Nanoseconds are kept, for text columns.
    """
    local = column.cast(pa.timestamp(column.type.unit))
    if column.type.unit == "ns":
        return local.cast(pa.string())
    micros = local.cast(pa.timestamp("us")).cast(pa.int64())
    return _replace_rare(local.cast(pa.timestamp("us")), micros, FIRST_US, LAST_US, distant_instant)


def date_text(column: pa.Array) -> pa.Array:
    """Days as `2024-02-29`."""
    return _replace_rare(column, column.cast(pa.int32()), FIRST_DAY, LAST_DAY, distant_date)


def _replace_rare(column: pa.Array, numbers: pa.Array, first: int, last: int, rare: Callable[[int], str]) -> pa.Array:
    """Arrow's own text where PostgreSQL has the same, and the result of `rare` for each other value."""
    bounds = pc.min_max(numbers)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is None or (low >= first and high <= last):
        return column.cast(pa.string())
    outside = pc.fill_null(pc.or_(pc.less(numbers, first), pc.greater(numbers, last)), False)
    inside = pc.if_else(outside, pa.scalar(None, column.type), column).cast(pa.string())
    texts = pa.array([rare(n) for n in numbers.filter(outside).to_pylist()], pa.string())
    return pc.replace_with_mask(inside, outside, texts)


def distant_instant(micros: int) -> str:
    """A timestamp outside the years 1 to 9999, or an infinite one."""
    if micros in INFINITE_MICROS:
        return INFINITE_MICROS[micros]
    days, rest = divmod(micros, DAY)
    year_month_day, era = _calendar(days)
    seconds, fraction = divmod(rest, 1_000_000)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:06d}"
    return f"{year_month_day} {clock}{era}"


def distant_date(days: int) -> str:
    """A day outside the years 1 to 9999, or an infinite one."""
    return INFINITE_DAYS[days] if days in INFINITE_DAYS else "".join(_calendar(days))


def _calendar(days: int) -> tuple[str, str]:
    """`yyyy-mm-dd` and the era of a day since 1970, moved by whole 400-year cycles into Python's calendar."""
    cycles, within = divmod(days, CYCLE_DAYS)
    near = date(1970, 1, 1) + timedelta(days=within)
    year = near.year + cycles * CYCLE_YEARS
    return f"{year if year > 0 else 1 - year:04d}-{near:%m-%d}", " BC" if year <= 0 else ""


def time_text(column: pa.Array) -> pa.Array:
    """Times of day, including 24:00:00, which PostgreSQL has and Arrow writes as out of range."""
    if column.type.unit == "ns":
        return column.cast(pa.string())
    micros = column.cast(pa.time64("us")).cast(pa.int64())
    midnight = pc.fill_null(pc.equal(micros, DAY), False)
    within = pc.if_else(midnight, pa.scalar(0, pa.int64()), micros).cast(pa.time64("us")).cast(pa.string())
    return pc.if_else(midnight, pa.scalar("24:00:00"), within)


def duration_text(column: pa.Array) -> pa.Array:
    """Durations as an interval of microseconds."""
    micros = column.cast(pa.duration("us")).cast(pa.int64()).cast(pa.string())
    return pc.binary_join_element_wise(micros, pa.scalar(" microseconds"), pa.scalar(""))


PLAIN: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.Array]], ...] = (
    (pa.types.is_timestamp, instant_text),
    (pa.types.is_date, lambda c: date_text(c.cast(pa.date32()))),
    (pa.types.is_time, time_text),
    (pa.types.is_duration, duration_text),
    (pa.types.is_decimal, lambda c: cast_digits(c, pa.string())),
    (is_bytes, lambda c: bytes_text(c.cast(pa.binary()))),
    (pa.types.is_float16, lambda c: c.cast(pa.float32())),
    (lambda k: pa.types.is_null(k) or _is_text(k), lambda c: c.cast(pa.string())),
)
"""Types that CSV writes in another form than PostgreSQL reads. All others stay as they are."""


# JSON text, with kernels over whole columns: structs, maps and lists become jsonb.

EMPTY = pa.scalar("")


def json_text(column: pa.Array) -> pa.Array:
    """One JSON value per row, `null` for NULL.

    Bytes are base64, timestamps ISO 8601, decimals numbers. A float that JSON does not have (NaN, infinity) is
    text.
    """
    kind, t = column.type, pa.types
    if t.is_struct(kind):
        text = _object(column)
    elif t.is_map(kind):
        offsets, entries = slice_items(column.cast(pa.list_(pa.struct([kind.key_field, kind.item_field]))))
        pairs = pc.binary_join_element_wise(_quote_text(_text(entries.field(0))), json_text(entries.field(1)), ":")
        items = pc.binary_join(pa.ListArray.from_arrays(offsets, pairs), ",")
        text = _keep_nulls(column, pc.binary_join_element_wise(pa.scalar("{"), items, pa.scalar("}"), EMPTY))
    elif t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        lists = column.cast(pa.list_(kind.value_type))
        offsets, values = slice_items(lists)
        items = pc.binary_join(pa.ListArray.from_arrays(offsets, json_text(values)), ",")
        text = _keep_nulls(lists, pc.binary_join_element_wise(pa.scalar("["), items, pa.scalar("]"), EMPTY))
    elif t.is_floating(kind):
        wide = column.cast(pa.float64()) if t.is_float16(kind) else column
        text = wide.cast(pa.string())
        for arrows, words in ((r"^nan$", "NaN"), (r"inf$", "Infinity")):
            text = pc.replace_substring_regex(text, arrows, words)
        text = pc.if_else(pc.is_finite(wide), text, _quote_text(text))
    elif t.is_boolean(kind) or t.is_integer(kind) or t.is_decimal(kind) or t.is_null(kind):
        text = column.cast(pa.string())
    else:
        text = _quote_text(_text(column))
    return text.fill_null("null")


def _text(column: pa.Array) -> pa.Array:
    kind, t = column.type, pa.types
    if t.is_timestamp(kind):
        text = pc.replace_substring(instant_text(column), " ", "T", max_replacements=1)
        return pc.binary_join_element_wise(text, pa.scalar("Z"), EMPTY) if kind.tz else text
    if t.is_date(kind):
        return date_text(column.cast(pa.date32()))
    if t.is_time(kind):
        return time_text(column)
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind):
        return pa.array([None if v is None else base64.b64encode(v).decode() for v in column.to_pylist()], pa.string())
    return column.cast(pa.string())


def _quote_text(text: pa.Array) -> pa.Array:
    """RFC 8259: backslash, quote and control characters are escaped."""
    text = pc.replace_substring(pc.replace_substring(text, "\\", "\\\\"), '"', '\\"')
    if pc.any(pc.match_substring_regex(text, "[\\x00-\\x1f]")).as_py():
        for code in range(0x20):
            text = pc.replace_substring(text, chr(code), f"\\u{code:04x}")
    return pc.binary_join_element_wise(pa.scalar('"'), text, pa.scalar('"'), EMPTY)


def _object(column: pa.Array) -> pa.Array:
    pieces: list[pa.Array | pa.Scalar] = [pa.scalar("{")]
    for i, name in enumerate(f.name for f in column.type):
        label = _quote_text(pa.array([name]))[0].as_py()
        pieces += [pa.scalar(f"{',' if i else ''}{label}:"), json_text(column.field(i))]
    text = pc.binary_join_element_wise(*pieces, pa.scalar("}"), EMPTY) if column.type.num_fields else None
    return _keep_nulls(column, text if text is not None else pa.array(["{}"] * len(column)))


# COPY in CSV, into a staging table. It is as fast as binary where it matters (measured), and
# correct for every type.
#
# NULL is an empty field, and an empty text is quoted, so both stay distinct.

CHUNK_ROWS = 8192
CHUNK_BYTES = 16 << 20
MESSAGE_BYTES = 64 << 10
"""The server counts the data it has read per message. `connection.TimeoutConnection` uses this count to distinguish slow
networks from dead ones."""
OPTIONS = csv.WriteOptions(include_header=False, quoting_style="needed")


def copy_statement(relation: Sequence[str], names: Sequence[str]) -> sql.Composed:
    """COPY into the named columns of a relation, given by the parts of its name."""
    columns = sql.SQL(", ").join(map(sql.Identifier, names))
    return sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(sql.Identifier(*relation), columns)


def copy_rows(cursor: psycopg.Cursor, statement: sql.Composed, rows: pa.Table, forms: Sequence[str]) -> None:
    """Copies `rows`, whose columns are those of the statement, in the literal forms `forms`.

    One slice is encoded while the server reads the slice before it.
    """
    with cursor.copy(statement) as copy:
        for batch in rows.to_batches(max_chunksize=get_rows_per_slice(rows)):
            send_copy_data(copy, to_csv(batch, forms))


def send_copy_data(copy: psycopg.Copy, data: bytes | memoryview) -> None:
    """Sends a part of the data."""
    for start in range(0, len(data), MESSAGE_BYTES):
        copy.write(data[start : start + MESSAGE_BYTES])


def get_rows_per_slice(rows: pa.Table) -> int:
    """The number of rows to encode at once."""
    width: int = max(1, rows.nbytes // max(1, rows.num_rows))
    return max(1, min(CHUNK_ROWS, CHUNK_BYTES // width))


def to_csv(batch: pa.RecordBatch, forms: Sequence[str]) -> memoryview:
    """An Arrow batch as CSV."""
    columns = [text_column(column, form) for column, form in zip(batch.columns, forms, strict=True)]
    out = pa.BufferOutputStream()
    csv.write_csv(pa.record_batch(columns, names=batch.schema.names), out, OPTIONS)
    return memoryview(out.getvalue())


# COPY in PostgreSQL's binary format, straight into a target. The server needs half the work that it needs for
# CSV.

ALIKE = frozenset(
    {
        pa.bool_(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.list_(pa.string()),
        pa.time64("us"),
    }
)
"""Arrow types whose values all have the same binary form in the PostgreSQL type of the same name."""
FIRST, LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
"""Dates and times between these are equal in Arrow and PostgreSQL. Beyond them, ranges and special values differ."""


def can_copy_binary(rows: pa.Table) -> bool:
    """True when PostgreSQL columns of these types accept every value unchanged in the binary format."""
    return all(column.type in ALIKE or _is_common(column) for column in rows.columns)


def _is_common(column: pa.ChunkedArray) -> bool:
    kind = column.type
    if pa.types.is_date32(kind):
        first, last = pa.scalar(FIRST.date(), kind), pa.scalar(LAST.date(), kind)
    elif pa.types.is_timestamp(kind) and kind.unit == "us":
        first, last = (pa.scalar(at if kind.tz else at.replace(tzinfo=None), kind) for at in (FIRST, LAST))
    else:
        return False
    bounds = pc.min_max(column)
    return not bounds["min"].is_valid or bool(first.value <= bounds["min"].value and bounds["max"].value <= last.value)


def copy_binary(cursor: psycopg.Cursor, relation: Sequence[str], rows: pa.Table) -> None:
    """Copies `rows` into a relation, given by the parts of its name.

    The relation's columns of these names must have the types of `rows`, and `can_copy_binary` must be true.
    """
    encoder = ArrowToPostgresBinaryEncoder(rows.schema)
    columns = sql.SQL(", ").join(map(sql.Identifier, rows.column_names))
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(sql.Identifier(*relation), columns)
    with cursor.copy(statement) as copy:
        copy.write(encoder.write_header())
        for batch in rows.to_batches(max_chunksize=get_rows_per_slice(rows)):
            send_copy_data(copy, encoder.write_batch(batch))
        copy.write(encoder.finish())
