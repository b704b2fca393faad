"""Rows straight into a target in COPY's binary format, which the server takes in with half the work that CSV is."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from pgpq import ArrowToPostgresBinaryEncoder
from psycopg import sql

from ...postgres.copy import get_rows_per_slice, send_copy_data

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
"""Types whose every value has a form of as many bytes in the type of PostgreSQL that is called alike."""
FIRST, LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
"""Instants between these are the same in both; beyond, the calendars end, and special values begin, in different places."""


def can_copy_binary(rows: pa.Table) -> bool:
    """Whether a column of PostgreSQL that is called like the type takes every value, as it is, in the binary format."""
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
    """Send `rows` into a relation, whose name is given in its parts, and whose columns of these names have the types of the
    rows; `can_copy_binary` has to hold."""
    encoder = ArrowToPostgresBinaryEncoder(rows.schema)
    columns = sql.SQL(", ").join(map(sql.Identifier, rows.column_names))
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(sql.Identifier(*relation), columns)
    with cursor.copy(statement) as copy:
        copy.write(encoder.write_header())
        for batch in rows.to_batches(max_chunksize=get_rows_per_slice(rows)):
            send_copy_data(copy, encoder.write_batch(batch))
        copy.write(encoder.finish())
