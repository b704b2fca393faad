"""Copies rows into a staging table with COPY in CSV. It is as fast as binary where it matters (measured), and
correct for every type.

NULL is an empty field, and an empty text is quoted, so both stay distinct.
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
"""The server counts the data it has read per message. `answer_timeout` uses this count to distinguish slow
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
