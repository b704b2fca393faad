"""Parquet rows as JSON text in the form of Connect's JsonConverter, with their schema.

A sink writes rows with their Avro schema, which it stores in the file (`parquet.avro.schema`): it is Connect's schema.
Other modules import this one when they read such a file: only the extra `avro` installs fastavro.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from replicator.domain.errors import ConfigProblem

from ...decoders.avro import NO_SCHEMA, Mend
from .avro_files import STEP, describe_reason, read_cached_schema
from .file_list import ArchiveFile

SCHEMAS = (b"parquet.avro.schema", b"avro.schema")
"""Metadata names of the schema, from new and old Avro writers of Parquet."""
KNOWN = (t.is_boolean, t.is_integer, t.is_floating, t.is_string, t.is_binary, t.is_fixed_size_binary, t.is_decimal)
EXACT = Context(prec=100)
"""More digits than Parquet's decimals have."""


def refuse_parquet(file: ArchiveFile, schema: pa.Schema) -> None:
    """Raise ConfigProblem for a file that is not a sink's file of structs."""
    said = _read_schema(schema)
    if said is None:
        raise ConfigProblem(f"{file.path} does not name the schema of its records (parquet.avro.schema)", next_step=STEP)
    try:
        names = [field["field"] for field in read_cached_schema(said).connect.get("fields", ())]
    except NO_SCHEMA as error:
        raise ConfigProblem(f"{file.path} cannot be read: {describe_reason(error)}", next_step=STEP) from None
    if names != schema.names:
        raise ConfigProblem(f"{file.path} has other columns than the schema that it names", next_step=STEP)
    for field in schema:
        if _avro_type(field.type) is None:
            raise ConfigProblem(
                f"column {field.name!r} of {file.path} is of type {field.type}, which Connect does not have",
                next_step=STEP,
            )


def to_messages(chunk: pa.RecordBatch) -> list[bytes]:
    """The messages of rows from an accepted file."""
    written = read_cached_schema(_read_schema(chunk.schema) or b"")
    columns = []
    for column in chunk.columns:
        values, mend = column.cast(_avro_type(column.type)).to_pylist(), _make_mend(column.type)
        columns.append(values if mend is None else list(map(mend, values)))
    rows = (dict(zip(chunk.schema.names, row, strict=True)) for row in zip(*columns, strict=True))
    return [written.to_text(row) for row in rows]


def _read_schema(schema: pa.Schema) -> bytes | None:
    return next((said for name in SCHEMAS if (said := (schema.metadata or {}).get(name)) is not None), None)


def _avro_type(kind: pa.DataType) -> pa.DataType | None:
    """The type with integers for dates and times, as in Avro. None for a type that Connect does not have, such as times
    in other units than milliseconds."""
    if t.is_date32(kind) or kind == pa.time32("ms"):
        return pa.int32()
    if t.is_timestamp(kind):
        return pa.int64() if kind.unit == "ms" else None
    if t.is_struct(kind):
        fields = [(kind.field(i).name, _avro_type(kind.field(i).type)) for i in range(kind.num_fields)]
        return pa.struct(fields) if all(inner is not None for _, inner in fields) else None
    if t.is_list(kind):
        items = _avro_type(kind.value_type)
        return None if items is None else pa.list_(items)
    if t.is_map(kind):
        key, item = _avro_type(kind.key_type), _avro_type(kind.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    return kind if any(applies(kind) for applies in KNOWN) else None


def _make_mend(kind: pa.DataType) -> Mend | None:
    """The conversion from Arrow's values of a type to Avro's; None if they are equal."""
    if t.is_decimal(kind):
        return _keep_null(lambda value: _to_unscaled(value, kind.scale))
    if t.is_list(kind):
        one = _make_mend(kind.value_type)
        return None if one is None else _keep_null(lambda values: [one(value) for value in values])
    if t.is_map(kind):
        of_item = _make_mend(kind.item_type) or (lambda value: value)
        return _keep_null(lambda pairs: {key: of_item(value) for key, value in pairs})
    if not t.is_struct(kind):
        return None
    inner = [kind.field(i) for i in range(kind.num_fields)]
    mends = [(field.name, mend) for field in inner if (mend := _make_mend(field.type)) is not None]
    if not mends:
        return None

    def of_struct(value: dict[str, Any]) -> dict[str, Any]:
        return value | {name: mend(value[name]) for name, mend in mends}

    return _keep_null(of_struct)


def _keep_null(mend: Mend) -> Callable[[Any], Any]:
    return lambda value: None if value is None else mend(value)


def _to_unscaled(value: Decimal, scale: int) -> bytes:
    number = int(value.scaleb(scale, EXACT))
    size = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return number.to_bytes(size, "big", signed=True)
