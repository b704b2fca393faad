"""Rows of Parquet files as JSON objects with the types of their columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from replicator.domain.errors import ConfigProblem

from ....decoders.json.type_names import TypedRowLayout, to_json_values
from ..file_list import ArchiveFile

PLAIN: tuple[tuple[Any, Any], ...] = (
    (t.is_large_string, pa.string()),
    (t.is_string_view, pa.string()),
    (t.is_large_binary, pa.binary()),
    (t.is_fixed_size_binary, pa.binary()),
    (t.is_date64, pa.date32()),
    (t.is_time, pa.time64("us")),
    (t.is_float16, pa.float32()),
    (t.is_null, pa.string()),
)
"""Types that are read as an equivalent type."""
KNOWN = (
    *(t.is_integer, t.is_floating, t.is_boolean, t.is_string, t.is_binary),
    *(t.is_decimal128, t.is_decimal256, t.is_date32, t.is_time64, t.is_timestamp),
)


def refuse_columns(file: ArchiveFile, schema: pa.Schema, step: str) -> None:
    """Raise ConfigProblem for a column with an unsupported type, with the next step `step`, and for duplicate names."""
    for field in schema:
        if find_read_type(field.type) is None:
            raise ConfigProblem(
                f"column {field.name!r} of {file.path} is of type {field.type}, which cannot be read", next_step=step
            )
    if len(set(schema.names)) < len(schema.names):
        raise ConfigProblem(f"{file.path} names a column twice")


def slice_to_json(chunk: pa.RecordBatch) -> tuple[bytes, dict[str, list[Any]]]:
    """The common beginning of these rows' records (a brace ends them), and the JSON values of their columns. Times are in
    microseconds; a time that does not fit is written so that decoders reject it."""
    schema = pa.schema([(field.name, find_read_type(field.type)) for field in chunk.schema])
    columns = {f.name: _column_to_json(column, f.type) for column, f in zip(chunk.columns, schema, strict=True)}
    return TypedRowLayout(schema).prefix, columns


def _column_to_json(column: pa.Array, kind: pa.DataType) -> list[Any]:
    plain = column.cast(kind, safe=False)
    found = to_json_values(pa.chunked_array([plain]), kind)
    if column.type.equals(kind) or not t.is_temporal(kind):
        return found
    lost = pc.fill_null(pc.not_equal(plain.cast(column.type, safe=False), column), False)
    for place in pc.indices_nonzero(lost).to_pylist():
        found[place] = column[place].cast(pa.string()).as_py()
    return found


def find_read_type(arrow: pa.DataType) -> pa.DataType | None:
    """The type as which values of `arrow` are read; None if there is none."""
    if t.is_dictionary(arrow):
        return find_read_type(arrow.value_type)
    if t.is_timestamp(arrow):
        return pa.timestamp("us", "UTC" if arrow.tz else None)
    found = next((plain for applies, plain in PLAIN if applies(arrow)), arrow)
    return found if any(applies(found) for applies in KNOWN) else None
