"""Avro schemas and values as Kafka Connect's Avro converter writes them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from math import isfinite
from typing import Any, TypeAlias

import msgspec
from fastavro import parse_schema, schemaless_reader
from fastavro.schema import SchemaParseException

from replicator.domain.errors import RejectCode

from ..arrow.record_errors import UNREADABLE, RecordLimits, ValueMisfit
from .json.schema_frames import CLOSING, MARK, OPENING

# Avro schemas with the JSON text that Connect's JsonConverter writes for their values.


NO_SCHEMA = (*UNREADABLE, SchemaParseException, TypeError, KeyError)
"""Errors of `read_schema` for text that is not an Avro schema. ValueMisfit is among them, for a refused schema."""


@dataclass(frozen=True)
class ValueSchema:
    """One schema. `avro`: the schema for reading values. `connect`: their Connect schema. `opening`: the text before a
    payload, which contains it. `columns`: the limit for `read_datum`."""

    avro: Any
    connect: dict[str, Any]
    opening: bytes
    mend: Mend | None
    columns: int | None

    def to_text(self, value: Any) -> bytes:
        """The JSON text of a value with its schema."""
        mended = value if self.mend is None else self.mend(value)
        return self.opening + msgspec.json.encode(mended) + CLOSING


def read_schema(text: str | bytes, limits: RecordLimits) -> ValueSchema:
    """The value schema of an Avro schema. Raises one of NO_SCHEMA."""
    node = SchemaTranslator(limits.columns, limits.depth).translate(msgspec.json.decode(text))
    opening = OPENING + msgspec.json.encode(node.connect) + MARK
    return ValueSchema(parse_schema(node.avro), node.connect, opening, node.mend, limits.columns if node.nests else None)


# Avro schemas of Connect's AvroConverter, translated back to Connect schemas.
#
# | Avro | Connect |
# | --- | --- |
# | boolean, int, long, float, double, bytes, string | boolean, int32, int64, float, double, bytes, string |
# | int with `connect.type` int8 or int16 | int8, int16 |
# | `connect.name`, `connect.version`, `connect.parameters`, `connect.default` | name, version, parameters, default |
# | `logicalType` date, time-millis, timestamp-millis, decimal | Connect's Date, Time, Timestamp, Decimal, if not named |
# | enum; fixed | string; bytes |
# | a union of null and one more | that, optional |
# | array of records `MapEntry`; map | map; map with keys of text |
# | record | struct, of that name unless it is Connect's own for one without a name |
#
# All other schemas are refused: unions of several types, recursive schemas and records without fields. Connect's converter
# does not write them for tables.


PRIMITIVES = {
    "boolean": "boolean",
    "int": "int32",
    "long": "int64",
    "float": "float",
    "double": "double",
    "bytes": "bytes",
    "string": "string",
}
NARROW = ("int8", "int16")
CONNECT = "org.apache.kafka.connect.data"
LOGICAL_NAMES = {
    ("int", "date"): f"{CONNECT}.Date",
    ("int", "time-millis"): f"{CONNECT}.Time",
    ("long", "timestamp-millis"): f"{CONNECT}.Timestamp",
    ("bytes", "decimal"): f"{CONNECT}.Decimal",
    ("fixed", "decimal"): f"{CONNECT}.Decimal",
}
NO_PRECISION = 64
"""The precision that the converter writes for a decimal without one."""
OWN = "io.confluent.connect.avro."
NAMELESS = f"{OWN}ConnectDefault"
MAP_ENTRY = f"{OWN}MapEntry"
LONGEST_NAME = 1_024
NODES, NODES_PER_COLUMN = 1_024, 16
"""The most types in a schema. A type that is used again by its name counts each time."""
AROUND = 8
"""Levels that an event has above its row."""


def schema_error(sentence: str, code: str = RejectCode.MALFORMED) -> ValueMisfit:
    """The error of a schema that cannot be read."""
    return ValueMisfit(code, f"its Avro schema {sentence}")


class SchemaTranslator:
    """Translates one schema. `columns` and `depth` are the limits of a record."""

    def __init__(self, columns: int, depth: int) -> None:
        self._left = NODES + NODES_PER_COLUMN * columns
        self._depth = depth + AROUND
        self._named: dict[str, tuple[Mapping[str, Any], str]] = {}
        self._open: list[str] = []
        self._made = 0

    def translate(self, schema: Any, namespace: str = "", depth: int = 0) -> ConnectType:
        """The Connect type of an Avro type. Raises ValueMisfit for a refused type."""
        self._left -= 1
        if self._left < 0:
            raise schema_error("has more types than a record may have", RejectCode.TOO_LARGE)
        if depth > self._depth:
            raise schema_error("is nested too deeply", RejectCode.TOO_LARGE)
        if isinstance(schema, list):
            others = [one for one in schema if one != "null"]
            if len(others) != 1 or len(schema) > 2 or isinstance(others[0], list):
                raise schema_error("has a union of something else than null and one type")
            node = self.translate(others[0], namespace, depth)
            if len(schema) == 1:
                return ConnectType([node.avro], node.connect, node.mend, node.nests)
            union = ["null", node.avro] if schema[0] == "null" else [node.avro, "null"]
            return ConnectType(union, node.connect | {"optional": True}, _keep_null(node.mend), node.nests)
        if isinstance(schema, str):
            return self._translate_named(schema, {}, namespace, depth)
        if not isinstance(schema, dict) or "type" not in schema:
            raise schema_error("has an invalid type")
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.translate(kind, namespace, depth + 1)
        return self._translate_named(kind, schema, namespace, depth)

    def _translate_named(self, kind: str, schema: Mapping[str, Any], namespace: str, depth: int) -> ConnectType:
        if kind in PRIMITIVES:
            narrow = schema.get("connect.type")
            connect = self._describe(narrow if kind == "int" and narrow in NARROW else PRIMITIVES[kind], schema, kind)
            return ConnectType(kind, connect, to_json_number if kind in ("float", "double") else None)
        if kind == "array":
            items = self.translate(schema.get("items"), namespace, depth + 1)
            fields = {field["field"]: field for field in items.connect.get("fields", ())}
            if items.is_pair and fields.keys() == {"key", "value"}:
                return pair_list_type(items, fields, self._describe("map", schema, ""))
            return array_type(items, self._describe("array", schema, ""))
        if kind == "map":
            items = self.translate(schema.get("values"), namespace, depth + 1)
            return map_type(items, self._describe("map", schema, ""))
        if kind in ("record", "enum", "fixed"):
            return self._translate_definition(kind, schema, namespace, depth)
        # A type that the schema defined before, by its name.
        full = kind if "." in kind or not namespace else f"{namespace}.{kind}"
        name = full if full in self._named else kind
        if name in self._open:
            raise schema_error("is recursive")
        if name not in self._named:
            raise schema_error(f"names the type {name[:60]!r}, which it does not define")
        definition, space = self._named[name]
        return self._translate_definition(str(definition["type"]), definition, space, depth)

    def _describe(self, connect: str, schema: Mapping[str, Any], kind: str, name: str | None = None) -> dict[str, Any]:
        """A Connect schema with the name, version and parameters in `schema`."""
        out: dict[str, Any] = {"type": connect, "optional": False}
        logical = LOGICAL_NAMES.get((kind, str(schema.get("logicalType"))))
        name = schema.get("connect.name") or logical or name
        if isinstance(name, str):
            out["name"] = name
        if "connect.default" in schema:
            out["default"] = schema["connect.default"]
        if isinstance(schema.get("connect.version"), int):
            out["version"] = schema["connect.version"]
        parameters = schema.get("connect.parameters")
        text_parameters = {str(k): str(v) for k, v in parameters.items()} if isinstance(parameters, dict) else {}
        if logical == LOGICAL_NAMES["bytes", "decimal"] == name:
            scale, precision = schema.get("scale", 0), schema.get("precision", NO_PRECISION)
            digits = {} if precision == NO_PRECISION else {"connect.decimal.precision": str(precision)}
            text_parameters = {"scale": str(scale), **digits} | text_parameters
        return out | ({"parameters": text_parameters} if text_parameters else {})

    def _translate_definition(self, kind: str, schema: Mapping[str, Any], namespace: str, depth: int) -> ConnectType:
        name = schema.get("name")
        if not isinstance(name, str) or len(name) > LONGEST_NAME:
            raise schema_error(f"has a {kind} without a name, or with too long a one")
        space = schema.get("namespace", namespace) if "." not in name else name.rpartition(".")[0]
        full = name if "." in name or not space else f"{space}.{name}"
        if full in self._open:
            raise schema_error("is recursive")
        self._named[full] = (schema, namespace)
        self._open.append(full)
        try:
            return self._translate_kind(kind, schema, full, str(space or ""), depth)
        finally:
            self._open.pop()

    def _translate_kind(self, kind: str, schema: Mapping[str, Any], full: str, space: str, depth: int) -> ConnectType:
        self._made += 1
        head = {"type": kind, "name": f"t{self._made}"}
        if kind == "enum":
            symbols = schema.get("symbols")
            if not isinstance(symbols, list) or not symbols or not all(isinstance(one, str) for one in symbols):
                raise schema_error("has an enum without symbols")
            return ConnectType(head | {"symbols": symbols}, self._describe("string", schema, kind, full))
        if kind == "fixed":
            size = schema.get("size")
            if not isinstance(size, int) or size < 1:
                raise schema_error("has a fixed without a size")
            return ConnectType(head | {"size": size}, self._describe("bytes", schema, kind, full))
        if not isinstance(schema.get("fields"), list) or not schema["fields"]:
            raise schema_error("has a record without fields")
        fields: dict[str, ConnectType] = {}
        for field in schema["fields"]:
            name = field.get("name") if isinstance(field, dict) else None
            if not isinstance(name, str) or len(name) > LONGEST_NAME:
                raise schema_error("has a field without a name, or with too long a one")
            if name in fields:
                raise schema_error("names a field twice")
            fields[name] = self.translate(field.get("type"), space, depth + 1)
        connect = self._describe("struct", schema, kind, None if full.startswith(NAMELESS) else full)
        is_pair = full == MAP_ENTRY or schema.get("connect.internal.type") == "MapEntry"
        return record_type(head, fields, connect, is_pair=is_pair)


def _keep_null(mend: Mend | None) -> Mend | None:
    return None if mend is None else lambda value: None if value is None else mend(value)


# Connect types of Avro types, with conversions of their values to the JSON of Connect's JsonConverter.


Mend: TypeAlias = Callable[[Any], Any]
"""Converts an Avro value to a value that can be written as JSON."""


@dataclass(frozen=True)
class ConnectType:
    """An Avro type and its Connect type.

    - `avro`: the type for reading, without names, defaults and logical types.
    - `connect`: the Connect schema.
    - `mend`: the conversion to JSON values, None if none is needed.
    - `nests`: items of arrays or maps in it are containers themselves.
    - `is_pair`: a record that is an entry of a map.
    """

    avro: Any
    connect: dict[str, Any]
    mend: Mend | None = None
    nests: bool = False
    is_pair: bool = False

    @property
    def is_container(self) -> bool:
        """True if a value can be much larger than its bytes."""
        return self.connect["type"] in ("struct", "array", "map")


def to_json_number(value: float) -> float | str:
    """The number, or its text if JSON has no such number."""
    if isfinite(value):
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"  # noqa: PLR0124 - true for NaN


def array_type(items: ConnectType, connect: dict[str, Any]) -> ConnectType:
    """The type of an array."""
    one = items.mend
    return ConnectType(
        {"type": "array", "items": items.avro},
        connect | {"items": items.connect},
        None if one is None else lambda values: [one(v) for v in values],
        items.nests or items.is_container,
    )


def map_type(items: ConnectType, connect: dict[str, Any]) -> ConnectType:
    """The type of a map with string keys."""
    one = items.mend
    return ConnectType(
        {"type": "map", "values": items.avro},
        connect | {"keys": {"type": "string", "optional": False}, "values": items.connect},
        None if one is None else lambda values: {k: one(v) for k, v in values.items()},
        items.nests or items.is_container,
    )


def pair_list_type(items: ConnectType, fields: Mapping[str, dict[str, Any]], connect: dict[str, Any]) -> ConnectType:
    """The type of a map with records as entries: an object if keys are strings, otherwise a list of pairs."""
    keys, values = ({k: v for k, v in fields[name].items() if k != "field"} for name in ("key", "value"))
    one = items.mend or (lambda entry: entry)

    def as_object(entries: Any) -> Any:
        return {e["key"]: e["value"] for e in map(one, entries)}

    def as_pairs(entries: Any) -> Any:
        return [[e["key"], e["value"]] for e in map(one, entries)]

    avro = {"type": "array", "items": items.avro}
    mend = as_object if keys["type"] == "string" else as_pairs
    return ConnectType(avro, connect | {"keys": keys, "values": values}, mend, nests=True)


def record_type(
    head: dict[str, Any], fields: Mapping[str, ConnectType], connect: dict[str, Any], *, is_pair: bool
) -> ConnectType:
    """The type of a record."""
    avro = head | {"fields": [{"name": name, "type": node.avro} for name, node in fields.items()]}
    schema = connect | {"fields": [node.connect | {"field": name} for name, node in fields.items()]}
    mends = [(name, node.mend) for name, node in fields.items() if node.mend is not None]

    def mend(value: dict[str, Any]) -> dict[str, Any]:
        for name, one in mends:
            value[name] = one(value[name])
        return value

    return ConnectType(avro, schema, mend if mends else None, any(node.nests for node in fields.values()), is_pair)


# Avro bodies to values, with limits against hostile bytes.
#
# The schema must be checked before: not recursive, no items without bytes, and limited nesting.


FREE_BYTES = 64 * 1024
"""Size up to which a record needs no limit: an item of an array or map takes at least a byte, so there are few."""
READS, READS_PER_COLUMN = 50_000, 100
"""The most reads from a longer record: one for each byte of a number and for each text. A value needs few reads."""
FAULTS = (EOFError, IndexError, KeyError, ValueError, OverflowError, TypeError, MemoryError, StopIteration, struct.error)
"""Errors of fastavro for bytes that are not a record."""


class _CountedBytes(BytesIO):
    """Bytes with a limited number of reads. Every object that is built from them costs at least one."""

    def __init__(self, data: bytes, reads: int) -> None:
        super().__init__(data)
        self.left = reads

    def read(self, size: int | None = -1, /) -> bytes:
        """Raises ValueMisfit after too many calls."""
        self.left -= 1
        if self.left < 0:
            raise ValueMisfit(RejectCode.TOO_LARGE, "it holds more values than a record may have")
        return super().read(size)


def read_datum(data: bytes, schema: Any, columns: int | None, *, named: bool = False) -> tuple[Any, bytes]:
    """The value in `data` for the parsed `schema`, and the bytes after it. `columns`: the limit for schemas whose array
    items may be much larger than their bytes; None for others. `named`: include the names of union branches. Raises
    ValueMisfit for too many values, and one of FAULTS for bytes that do not fit the schema."""
    stream = _open_stream(data, columns)
    datum = schemaless_reader(stream, schema, None, return_record_name=named)
    return datum, data[stream.tell() :]


def read_data(block: bytes, count: int, schema: Any, columns: int | None) -> Iterator[Any]:
    """`count` consecutive values that fill `block`, each as from `read_datum`. Raises the same errors, and EOFError for
    bytes after the last value."""
    stream = _open_stream(block, columns)
    for _ in range(count):
        if isinstance(stream, _CountedBytes):
            stream.left = _max_reads(columns)
        yield schemaless_reader(stream, schema, None)
    if stream.tell() < len(block):
        raise EOFError("there are bytes behind the last value")


def _open_stream(data: bytes, columns: int | None) -> BytesIO:
    long = columns is not None and len(data) > FREE_BYTES
    return _CountedBytes(data, _max_reads(columns)) if long else BytesIO(data)


def _max_reads(columns: int | None) -> int:
    return READS + READS_PER_COLUMN * (columns or 0)
