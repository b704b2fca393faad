"""Converts Arrow schemas to Spark schemas, and back.

Spark lacks the same types as Delta, so values have the types of Delta tables (`adapters.delta.types`). If that
is another type, the field's metadata contains the original one.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import DataType, StructField, StructType

from replicator.domain.sequence import ElementForm, get_element

from ..arrow.frame_slices import slice_items
from ..delta.types import restore_type, storage_type, to_storable

STANDS_FOR = "arrow"


def spark_schema(schema: pa.Schema) -> StructType:
    """The Spark schema for rows of `schema`."""
    fields = []
    for field in schema:
        stored_type, metadata = storage_type(field.type), {}
        if not stored_type.equals(field.type):
            serialized = pa.schema([pa.field("", field.type)]).serialize().to_pybytes()
            metadata[STANDS_FOR] = b64encode(serialized).decode()
        fields.append(StructField(field.name, spark_type(stored_type), nullable=True, metadata=metadata))
    return StructType(fields)


def spark_type(kind: pa.DataType) -> DataType:
    """The Spark type for values of `kind`."""
    return from_arrow_type(storage_type(kind), prefer_timestamp_ntz=True)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that `schema` represents."""
    fields = []
    for field in schema:
        if STANDS_FOR in field.metadata:
            serialized = pa.py_buffer(b64decode(field.metadata[STANDS_FOR]))
            kind = pa.ipc.read_schema(serialized).field(0).type
        else:
            kind = to_arrow_type(field.dataType)
            if pa.types.is_timestamp(kind) and kind.tz:
                kind = pa.timestamp("us", "UTC")
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)


def struct_names(schema: StructType, name: str) -> list[str]:
    """The field names of a struct column."""
    inner: Any = schema[name].dataType
    return list(inner.fieldNames())


def to_spark(table: pa.Table) -> pa.Table:
    """`table` in Spark's types. It must have no value of `delta.types.mask_impossible`."""
    return to_storable(table)


def from_spark(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows from Spark in the types of `schema`."""
    return pa.table([_restore_column(table[f.name], f.type) for f in schema], schema=schema)


def _restore_column(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """The reverse of `to_spark`. `adapters.delta.types.restore_type` does it for columns that are not nested."""
    if column.type.equals(kind):
        return column
    if pa.types.is_nested(kind):
        return pa.chunked_array([_restore_nested(array, kind) for array in column.chunks], kind)
    return pc.cast(restore_type(column, kind), kind)


def _restore_nested(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A list, struct or map in its original type."""
    if pa.types.is_struct(kind):
        parts = [_restore_items(column.field(i), field.type) for i, field in enumerate(kind)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=pc.is_null(column))
    is_map = pa.types.is_map(column.type)
    item_type = pa.struct([column.type.key_field, column.type.item_field]) if is_map else column.type.value_type
    offsets, items = slice_items(column.cast(pa.list_(item_type)))
    marked = pc.if_else(pa.concat_arrays([pc.is_null(column), pa.array([False])]), pa.scalar(None, pa.int32()), offsets)
    if pa.types.is_map(kind):
        keys, values = _restore_items(items.field(0), kind.key_type), _restore_items(items.field(1), kind.item_type)
        return pa.MapArray.from_arrays(marked, keys, values, type=kind)
    return pa.ListArray.from_arrays(marked, _restore_items(items, kind.value_type)).cast(kind)


def _restore_items(column: pa.Array, kind: pa.DataType) -> pa.Array:
    items = _restore_column(pa.chunked_array([column]), kind).combine_chunks()
    return items if isinstance(items, pa.Array) else pa.array([], kind)


# Elements of a sequence, converted back to their values: `adapters.arrow.sequence_elements` as SQL expressions.


def value_expression(element: Column, kind: pa.DataType) -> Column:
    """The values of these elements, in Spark's types. `kind`: a type of
    `domain.sequence.get_display_type`."""
    sequence = get_element(kind)
    match sequence.form if sequence else None:
        case ElementForm.HEX:
            return sf.unhex(element)
        case ElementForm.UNSCALED:
            # The product of two numbers with 18 digits has at most 38, so Spark computes it exactly.
            unit = sf.lit(Decimal(1).scaleb(-max(kind.scale, 0)))
            return (element.cast("decimal(18,0)") * unit).cast(spark_type(kind))
        case ElementForm.DAY:
            return sf.date_from_unix_date(element.cast("int"))
        case ElementForm.MICROSECOND:
            return sf.timestamp_micros(element).cast(spark_type(kind))
    return element.cast(spark_type(kind))
