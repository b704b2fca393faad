"""Avro that no Connect converter writes: schemas and bodies are refused with a reason, and memory stays within limits."""

from __future__ import annotations

import json
import tracemalloc
from io import BytesIO

import pytest
from confluent_kafka.schema_registry import Schema
from confluent_kafka.schema_registry.schema_registry_client import SchemaReference
from fastavro import parse_schema, schemaless_writer
from hypothesis import strategies as st

from adapters.arrow.record_errors import RecordLimits
from adapters.decoders.avro import FREE_BYTES, ValueSchema
from adapters.decoders.debezium_avro import LONGEST_SCHEMA, _read_body, read_registered_schema
from replicator.domain.errors import Reject
from replicator.testing.contract import for_all

LIMITS = RecordLimits()
TREE = {"type": "record", "name": "a.Tree", "fields": [{"name": "left", "type": ["null", "a.Tree"]}]}
LIST = {
    "type": "record",
    "name": "L",
    "namespace": "a",
    "fields": [{"name": "rest", "type": {"type": "array", "items": "L"}}],
}


def record(**fields: object) -> dict[str, object]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


def read_schema(schema: object, limits: RecordLimits = LIMITS) -> ValueSchema | Reject:
    return read_registered_schema(Schema(schema if isinstance(schema, str) else json.dumps(schema), "AVRO"), limits)


def read_refusal(schema: object, limits: RecordLimits = LIMITS) -> str:
    found = read_schema(schema, limits)
    assert isinstance(found, Reject)
    return str(found)


def make_nested_schema(levels: int) -> object:
    out: object = "int"
    for level in range(levels):
        out = {"type": "record", "name": f"N{level}", "fields": [{"name": "f", "type": ["null", out]}]}
    return out


def make_exponential_schema(levels: int) -> object:
    """Each type has ten fields of the previous type. They refer to it by name, so the schema is short."""
    fields = [{"name": "f0", "type": {"type": "record", "name": "T0", "fields": [{"name": "x", "type": "int"}]}}]
    for level in range(1, levels):
        inner = [{"name": f"g{i}", "type": f"T{level - 1}"} for i in range(10)]
        fields.append({"name": f"f{level}", "type": {"type": "record", "name": f"T{level}", "fields": inner}})
    return {"type": "record", "name": "R", "fields": fields}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (TREE, "MALFORMED: its Avro schema is recursive"),
        (LIST, "MALFORMED: its Avro schema is recursive"),
        (record(a={"type": "array", "items": "null"}), "names the type 'null'"),
        (record(a={"type": "array", "items": {**record(), "name": "S"}}), "a record without fields"),
        (record(a={"type": "fixed", "name": "F", "size": 0}), "a fixed without a size"),
        (record(a={"type": "enum", "name": "E", "symbols": []}), "an enum without symbols"),
        (record(a=["null", "int", "string"]), "a union of something else than null and one type"),
        (record(a=["null"]), "a union of something else"),
        (record(a=["null", ["null", "int"]]), "a union of something else"),
        (record(a="Nowhere"), "names the type 'Nowhere', which it does not define"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}] * 2}, "names a field twice"),
        (record(**{"a" * 2000: "int"}), "a field without a name, or with too long a one"),
        (make_nested_schema(100), "TOO_LARGE: its Avro schema is nested too deeply"),
        ("[" * 100_000, "TOO_LARGE: its Avro schema is nested too deeply"),
        (make_exponential_schema(9), "TOO_LARGE: its Avro schema has more types than a record may have"),
        ({}, "MALFORMED: its Avro schema has an invalid type"),
        ("7", "MALFORMED: its Avro schema has an invalid type"),
        ("{", "MALFORMED: its schema is no Avro schema"),
        ("", "MALFORMED: its schema is no Avro schema"),
        (record(a={"type": "array"}), "has an invalid type"),
    ],
)
def test_schemas_that_connect_does_not_write_are_refused(schema, reason):
    assert reason in read_refusal(schema)


def test_recursion_within_nested_types_is_refused():
    assert "recursive" in read_refusal(
        {**TREE, "fields": [{"name": "left", "type": {"type": {"type": "array", "items": "a.Tree"}}}]}
    )


def test_schema_with_references_or_too_long_is_refused():
    reference = SchemaReference("a.Tree", "trees", 1)
    found = read_registered_schema(Schema(json.dumps(record(a="int")), "AVRO", [reference]), LIMITS)
    assert isinstance(found, Reject) and "refers to other schemas" in str(found)
    assert read_refusal(json.dumps(record(a="int")) + " " * LONGEST_SCHEMA).startswith(
        "TOO_LARGE: its Avro schema is longer"
    )


def test_deeply_nested_record_within_the_limit_is_read():
    found = read_schema(make_nested_schema(60), RecordLimits(depth=500))
    assert isinstance(found, ValueSchema)
    assert isinstance(_read_body(found, b"\x02" * 60 + b"\x0e"), bytes)
    deeper = read_schema(make_nested_schema(120), RecordLimits(depth=500))
    assert isinstance(deeper, ValueSchema)
    assert isinstance(_read_body(deeper, b"\x02" * 120 + b"\x0e"), bytes)


def encode_long(value: int) -> bytes:
    out, left = b"", ((value << 1) ^ (value >> 63)) & (2**64 - 1)
    while left >= 0x80:
        out, left = out + bytes([left & 0x7F | 0x80]), left >> 7
    return out + bytes([left])


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        (record(a={"type": "array", "items": "int"}), encode_long(50_000_000)),
        (record(a={"type": "array", "items": "int"}), encode_long(-50_000_000) + encode_long(1)),
        (record(a={"type": "map", "values": "int"}), encode_long(2**62) + encode_long(0)),
        (record(a="string"), encode_long(2**62) + b"abc"),
        (record(a="bytes"), encode_long(-5) + b"abcdefgh"),
        (record(a="long"), b"\xff" * 5000),
        (record(a="double"), b"\0" * 7),
        (record(a=["null", "int"]), encode_long(7)),
        (record(a={"type": "enum", "name": "E", "symbols": ["x"]}), encode_long(3)),
    ],
)
def test_bodies_that_claim_too_much_use_little_memory(schema, body):
    found = read_schema(schema)
    assert isinstance(found, ValueSchema)
    tracemalloc.start()
    result = _read_body(found, body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(result, Reject) and result.code in ("MALFORMED", "TOO_LARGE")
    assert peak < 2 * 1024 * 1024


@pytest.mark.parametrize("items", [record(b="boolean"), {"type": "array", "items": "int"}, {"type": "map", "values": "int"}])
def test_small_items_that_become_large_are_rejected(items):
    found = read_schema(
        {"type": "record", "name": "Top", "fields": [{"name": "a", "type": {"type": "array", "items": items}}]}
    )
    assert isinstance(found, ValueSchema)
    most = FREE_BYTES * 16
    tracemalloc.start()
    result = _read_body(found, encode_long(most) + b"\0" * (most + 1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(result, Reject) and result.code == "TOO_LARGE", result
    assert peak < 200 * 1024 * 1024


def test_long_array_of_numbers_is_read():
    found = read_schema(record(a={"type": "array", "items": "int"}))
    assert isinstance(found, ValueSchema)
    assert isinstance(_read_body(found, encode_long(1_000_000) + b"\2" * 1_000_000 + b"\0"), bytes)


PAIR = [{"name": "key", "type": "int"}, {"name": "value", "type": "float"}]
ENTRY = {"type": "record", "name": "MapEntry", "namespace": "io.confluent.connect.avro", "fields": PAIR}
WHOLE = {
    "type": "record",
    "name": "Whole",
    "fields": [
        {"name": "i", "type": "int"},
        {"name": "s", "type": ["null", "string"]},
        {"name": "d", "type": {"type": "array", "items": ["null", "double"]}},
        {"name": "m", "type": {"type": "map", "values": {"type": "bytes", "logicalType": "decimal", "scale": 2}}},
        {"name": "p", "type": {"type": "array", "items": ENTRY}},
        {"name": "e", "type": {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}},
        {"name": "f", "type": {"type": "fixed", "name": "Four", "size": 4}},
    ],
}  # fmt: skip


def plain(schema: object) -> object:
    """The schema without logical types, so that bytes are written as they are."""
    if isinstance(schema, dict):
        return {k: plain(v) for k, v in schema.items() if k not in ("logicalType", "scale")}
    return [plain(one) for one in schema] if isinstance(schema, list) else schema


def make_whole_body() -> bytes:
    out = BytesIO()
    value = {
        "i": 7, "s": "text", "d": [0.5, None, float("nan")], "m": {"a": b"\1\2"}, "p": [{"key": 1, "value": float("inf")}],
        "e": "BLUE", "f": b"\0\1\2\3",
    }  # fmt: skip
    schemaless_writer(out, parse_schema(plain(WHOLE)), value)
    return out.getvalue()


def test_valid_body_is_read():
    found = read_schema(WHOLE)
    assert isinstance(found, ValueSchema)
    result = _read_body(found, make_whole_body())
    assert isinstance(result, bytes)
    payload = {"i": 7, "s": "text", "d": [0.5, None, "NaN"], "m": {"a": "AQI="}, "p": [[1, "Infinity"]], "e": "BLUE"}
    assert json.loads(result)["payload"] == {**payload, "f": "AAECAw=="}
    names = {f["field"]: (f["type"], f.get("name")) for f in json.loads(result)["schema"]["fields"]}
    assert names == {
        "i": ("int32", None), "s": ("string", None), "d": ("array", None), "m": ("map", None), "p": ("map", None),
        "e": ("string", "Colour"), "f": ("bytes", "Four"),
    }  # fmt: skip


def test_decimal_with_negative_scale_is_read():
    """Avro's own library does not accept such a scale."""
    decimal = {"type": "bytes", "logicalType": "decimal", "scale": -2, "precision": 64, "connect.version": 1}
    found = read_schema(record(a={**decimal, "connect.name": "org.apache.kafka.connect.data.Decimal"}))
    assert isinstance(found, ValueSchema)
    result = json.loads(_read_body(found, b"\2\1"))
    assert result["payload"] == {"a": "AQ=="}
    (field,) = result["schema"]["fields"]
    assert (field["parameters"], field["version"]) == ({"scale": "-2"}, 1)


def test_mutated_bodies_are_read_or_refused():
    found, body = read_schema(WHOLE), make_whole_body()
    assert isinstance(found, ValueSchema)

    @for_all(at=st.integers(0, len(body)), junk=st.binary(max_size=12), cut=st.integers(0, 4))
    def check(at, junk, cut):
        result = _read_body(found, body[:at] + junk + body[at + cut :])
        assert isinstance(result, Reject) or json.loads(result)["payload"].keys() == {f["name"] for f in WHOLE["fields"]}
