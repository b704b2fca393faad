"""A few rows as one JSON parameter of the statement that writes them, without a staging table or another round
trip.

PostgreSQL's json_populate_record converts each value to the type of the target's column, with the same input
functions as COPY.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import pyarrow as pa

from ...postgres.literals import JSON_FORM, text_column
from ...postgres.types import ColumnConversion

INLINE_ROWS = 200
INLINE_BYTES = 256 << 10


def rows_to_json(rows: pa.Table, fits: Mapping[str, ColumnConversion]) -> str | None:
    """The target's columns of `rows` as a JSON array of objects.

    None when there are too many rows, or when they hold invalid JSON or JSON's null.
    """
    if rows.num_rows > INLINE_ROWS or rows.nbytes > INLINE_BYTES:
        return None
    columns = []
    for name, fit in fits.items():
        texts = text_column(rows[name].combine_chunks(), fit.form).cast(pa.string()).to_pylist()
        label = json.dumps(name)
        try:
            columns.append([f"{label}:{_to_json_value(text, fit)}" for text in texts])
        except ValueError:
            return None
    return "[" + ",".join("{" + ",".join(row) + "}" for row in zip(*columns, strict=True)) + "]"


def _to_json_value(text: str | None, fit: ColumnConversion) -> str:
    """A value as JSON. A JSON value is parsed first: invalid text could end the row and start another."""
    if text is None:
        return "null"
    if fit.form != JSON_FORM:
        return json.dumps(text)
    if json.loads(text) is None:
        raise ValueError("JSON's null would become NULL")
    return text
