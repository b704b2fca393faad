"""Every type that Kafka Connect and Debezium send, and the column it becomes (the table in the package's docstring)."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from replicator.domain.errors import RejectCode

from ..json import decimals, nested, nodes, temporal
from ..json.faults import Unfit
from ..json.nodes import Node
from .schema import STRUCT, ConnectSchema

MS, US, NS = 1_000, 1_000_000, 1_000_000_000

PHYSICAL: dict[str, Callable[[], Node]] = {
    "int8": lambda: nodes.integer(pa.int8()),
    "int16": lambda: nodes.integer(pa.int16()),
    "int32": lambda: nodes.integer(pa.int32()),
    "int64": lambda: nodes.integer(pa.int64()),
    "float": lambda: nodes.floating(pa.float32()),
    "float32": lambda: nodes.floating(pa.float32()),
    "double": lambda: nodes.floating(pa.float64()),
    "float64": lambda: nodes.floating(pa.float64()),
    "boolean": nodes.boolean,
    "string": nodes.text,
    "bytes": nodes.binary,
}

LOGICAL: dict[tuple[str, str], Callable[[], Node]] = {
    ("io.debezium.time.Date", "int32"): temporal.date,
    ("org.apache.kafka.connect.data.Date", "int32"): temporal.date,
    ("io.debezium.time.Time", "int32"): lambda: temporal.time(MS),
    ("org.apache.kafka.connect.data.Time", "int32"): lambda: temporal.time(MS),
    ("io.debezium.time.MicroTime", "int64"): lambda: temporal.time(US),
    ("io.debezium.time.NanoTime", "int64"): lambda: temporal.time(NS),
    ("io.debezium.time.Timestamp", "int64"): lambda: temporal.timestamp(MS),
    ("org.apache.kafka.connect.data.Timestamp", "int64"): lambda: temporal.timestamp(MS),
    ("io.debezium.time.MicroTimestamp", "int64"): lambda: temporal.timestamp(US),
    ("io.debezium.time.NanoTimestamp", "int64"): lambda: temporal.timestamp(NS),
    ("io.debezium.time.ZonedTimestamp", "string"): lambda: temporal.iso_timestamp(temporal.UTC_US),
    ("io.debezium.time.IsoTimestamp", "string"): lambda: temporal.marked(temporal.iso_timestamp(temporal.LOCAL_US)),
    ("io.debezium.time.IsoDate", "string"): lambda: temporal.marked(temporal.iso_date()),
    ("io.debezium.time.IsoTime", "string"): lambda: temporal.marked(temporal.iso_time()),
    ("io.debezium.data.VariableScaleDecimal", STRUCT): decimals.variable_decimal,
}
"""Logical types that are more than their physical type; any other name keeps the physical type."""

DECIMAL = "org.apache.kafka.connect.data.Decimal"


def node_of(schema: ConnectSchema, *, numeric: bool = False) -> Node:
    """How values of `schema` are decoded. `numeric`: decimals may be JSON numbers. Raises Unfit for an unknown type."""
    known = LOGICAL.get((schema.name or "", schema.type))
    if known:
        return known()
    if schema.name == DECIMAL and schema.type == "bytes":
        return _decimal(schema, numeric)
    if schema.type in PHYSICAL:
        return PHYSICAL[schema.type]()
    return _nested(schema, numeric)


def _decimal(schema: ConnectSchema, numeric: bool) -> Node:
    parameters = schema.parameters or {}
    try:
        precision = parameters.get("connect.decimal.precision")
        return decimals.decimal(None if precision is None else int(precision), int(parameters["scale"]), numeric=numeric)
    except (KeyError, ValueError):
        raise Unfit(RejectCode.MALFORMED, "its schema has a decimal without a scale") from None


def _nested(schema: ConnectSchema, numeric: bool) -> Node:
    if schema.type == "array" and schema.items:
        return nested.array(node_of(schema.items, numeric=numeric))
    if schema.type == "map" and schema.keys and schema.values:
        return nested.mapping(node_of(schema.keys), node_of(schema.values, numeric=numeric))
    if schema.type == STRUCT and schema.fields:
        return nested.struct({f.field or "": node_of(f, numeric=numeric) for f in schema.fields})
    raise Unfit(RejectCode.MALFORMED, f"its schema has a field of the unknown type {schema.type[:40]!r}")


def holds_decimals(schema: ConnectSchema) -> bool:
    """Whether JSON numbers may stand where the schema says bytes (`decimal.format=NUMERIC`)."""
    return schema.name == DECIMAL or any(holds_decimals(child) for child in schema.children)
