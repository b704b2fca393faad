"""Rows into a staging table with COPY, as CSV: measured as fast as binary where it counts, and right for every type.

NULL is an empty field, an empty text is quoted, so both arrive as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
import pyarrow as pa
from psycopg import sql
from pyarrow import csv

from .literals import text_column

CHUNK_ROWS = 8192
CHUNK_BYTES = 16 << 20
MESSAGE_BYTES = 64 << 10
"""The server counts what it has read by messages, and `pg_answers` tells a slow network from a dead one by that count."""
OPTIONS = csv.WriteOptions(include_header=False, quoting_style="needed")


def copy_statement(relation: Sequence[str], names: Sequence[str]) -> sql.Composed:
    """COPY into the named columns of a relation, whose name is given in its parts."""
    columns = sql.SQL(", ").join(map(sql.Identifier, names))
    return sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(sql.Identifier(*relation), columns)


def copy_rows(cursor: psycopg.Cursor, statement: sql.Composed, rows: pa.Table, forms: Sequence[str]) -> None:
    """Send `rows`, whose columns are those of the statement, in the literal forms `forms`. Encoding one chunk overlaps with
    the server reading the one before."""
    with cursor.copy(statement) as copy:
        for batch in rows.to_batches(max_chunksize=get_rows_per_slice(rows)):
            send_copy_data(copy, to_csv(batch, forms))


def send_copy_data(copy: psycopg.Copy, data: bytes | memoryview) -> None:
    """Some of the payload."""
    for start in range(0, len(data), MESSAGE_BYTES):
        copy.write(data[start : start + MESSAGE_BYTES])


def get_rows_per_slice(rows: pa.Table) -> int:
    """How many rows are encoded at once."""
    width: int = max(1, rows.nbytes // max(1, rows.num_rows))
    return max(1, min(CHUNK_ROWS, CHUNK_BYTES // width))


def to_csv(batch: pa.RecordBatch, forms: Sequence[str]) -> memoryview:
    """One piece of the payload."""
    columns = [text_column(column, form) for column, form in zip(batch.columns, forms, strict=True)]
    out = pa.BufferOutputStream()
    csv.write_csv(pa.record_batch(columns, names=batch.schema.names), out, OPTIONS)
    return memoryview(out.getvalue())
