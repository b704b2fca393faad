"""All types of Kafka Connect and Debezium, and their columns (the table in the package's docstring)."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from replicator.domain.errors import RejectCode

from ...arrow import decimals, temporal_values, value_readers
from ...arrow.record_errors import ValueMisfit
from ...arrow.value_readers import ValueReader
from ..json import nested_values
from .schema import STRUCT, ConnectSchema

MS, US, NS = 1_000, 1_000_000, 1_000_000_000

PHYSICAL: dict[str, Callable[[], ValueReader]] = {
    "int8": lambda: value_readers.integer_reader(pa.int8()),
    "int16": lambda: value_readers.integer_reader(pa.int16()),
    "int32": lambda: value_readers.integer_reader(pa.int32()),
    "int64": lambda: value_readers.integer_reader(pa.int64()),
    "float": lambda: value_readers.float_reader(pa.float32()),
    "float32": lambda: value_readers.float_reader(pa.float32()),
    "double": lambda: value_readers.float_reader(pa.float64()),
    "float64": lambda: value_readers.float_reader(pa.float64()),
    "boolean": value_readers.boolean_reader,
    "string": value_readers.text_reader,
    "bytes": value_readers.binary_reader,
}

LOGICAL: dict[tuple[str, str], Callable[[], ValueReader]] = {
    ("io.debezium.time.Date", "int32"): temporal_values.date_reader,
    ("org.apache.kafka.connect.data.Date", "int32"): temporal_values.date_reader,
    ("io.debezium.time.Time", "int32"): lambda: temporal_values.time_reader(MS),
    ("org.apache.kafka.connect.data.Time", "int32"): lambda: temporal_values.time_reader(MS),
    ("io.debezium.time.MicroTime", "int64"): lambda: temporal_values.time_reader(US),
    ("io.debezium.time.NanoTime", "int64"): lambda: temporal_values.time_reader(NS),
    ("io.debezium.time.Timestamp", "int64"): lambda: temporal_values.timestamp_reader(MS),
    ("org.apache.kafka.connect.data.Timestamp", "int64"): lambda: temporal_values.timestamp_reader(MS),
    ("io.debezium.time.MicroTimestamp", "int64"): lambda: temporal_values.timestamp_reader(US),
    ("io.debezium.time.NanoTimestamp", "int64"): lambda: temporal_values.timestamp_reader(NS),
    ("io.debezium.time.ZonedTimestamp", "string"): lambda: temporal_values.iso_timestamp_reader(temporal_values.UTC_US),
    ("io.debezium.time.IsoTimestamp", "string"): lambda: temporal_values.zulu_reader(
        temporal_values.iso_timestamp_reader(temporal_values.LOCAL_US)
    ),
    ("io.debezium.time.IsoDate", "string"): lambda: temporal_values.zulu_reader(temporal_values.iso_date_reader()),
    ("io.debezium.time.IsoTime", "string"): lambda: temporal_values.zulu_reader(temporal_values.iso_time_reader()),
    ("io.debezium.data.VariableScaleDecimal", STRUCT): decimals.variable_decimal_reader,
}
"""Logical types with their own reader. `DECIMAL` has one too. Other scalars have the reader of their physical type;
arrays, maps and structs are read by the readers of their items."""

DECIMAL = "org.apache.kafka.connect.data.Decimal"


def find_schema_reader(schema: ConnectSchema, *, numeric: bool = False) -> ValueReader:
    """The reader of values with `schema`. `numeric`: decimals may be numbers. Raises ValueMisfit for an unknown type."""
    known = LOGICAL.get((schema.name or "", schema.type))
    if known:
        return known()
    if schema.name == DECIMAL and schema.type == "bytes":
        return _decimal_reader(schema, numeric)
    if schema.type in PHYSICAL:
        return PHYSICAL[schema.type]()
    return _nested_reader(schema, numeric)


def _decimal_reader(schema: ConnectSchema, numeric: bool) -> ValueReader:
    parameters = schema.parameters or {}
    try:
        precision = parameters.get("connect.decimal.precision")
        return decimals.decimal_reader(
            None if precision is None else int(precision), int(parameters["scale"]), numeric=numeric
        )
    except (KeyError, ValueError):
        raise ValueMisfit(RejectCode.MALFORMED, "its schema has a decimal without a scale") from None


def _nested_reader(schema: ConnectSchema, numeric: bool) -> ValueReader:
    if schema.type == "array" and schema.items:
        return nested_values.array_reader(find_schema_reader(schema.items, numeric=numeric))
    if schema.type == "map" and schema.keys and schema.values:
        return nested_values.map_reader(find_schema_reader(schema.keys), find_schema_reader(schema.values, numeric=numeric))
    if schema.type == STRUCT and schema.fields:
        return nested_values.struct_reader({f.field or "": find_schema_reader(f, numeric=numeric) for f in schema.fields})
    raise ValueMisfit(RejectCode.MALFORMED, f"its schema has a field of the unknown type {schema.type[:40]!r}")


def holds_decimals(schema: ConnectSchema) -> bool:
    """True if the schema has decimals, which records may hold as JSON numbers (`decimal.format=NUMERIC`)."""
    return schema.name == DECIMAL or any(holds_decimals(child) for child in schema.children)
