"""COPY in PostgreSQL's binary format, straight into a target. The server needs half the work that it needs for
CSV."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from pgpq import ArrowToPostgresBinaryEncoder
from psycopg import sql

from ...postgres.literals import get_rows_per_slice, send_copy_data

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
    found = pc.min_max(column)
    return not found["min"].is_valid or bool(first.value <= found["min"].value and found["max"].value <= last.value)


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
