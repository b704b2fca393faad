"""MongoDB documents as rows of declared columns."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from support.debezium_events import encode_with_schema, get_error_code, make_column, make_raw_records

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from replicator.domain.errors import ConfigProblem

OID = '{"$oid": "596e275826f08b2730779e1f"}'
TEXT = make_column("x", "string", "io.debezium.data.Json")
DECLARED = {"_id": "int64", "name": "string", "n": "int32"}


def schema_of_documents() -> dict[str, Any]:
    source = {"type": "struct", "fields": [make_column("collection", "string")], "optional": False, "field": "source"}
    fields = [{**TEXT, "field": "before"}, {**TEXT, "field": "after"}, source, make_column("op", "string", optional=False)]
    return {"type": "struct", "fields": fields, "optional": False, "name": "cdc.shop.people.Envelope"}


def document(op: str, *, schema: bool = False, **payload: Any) -> bytes:
    images = {k: None if v is None else v if isinstance(v, str) else json.dumps(v) for k, v in payload.items()
              if k in ("before", "after", "patch")}  # fmt: skip
    source = {
        "version": "2.7.0.Final", "connector": "mongodb", "name": "cdc", "ts_ms": 5000, "snapshot": "false", "db": "shop",
        "rs": "rs0", "collection": "people", "ord": 3,
    }  # fmt: skip
    event = {**payload, **images, "op": op, "source": source, "transaction": None}
    return encode_with_schema(schema_of_documents(), event) if schema else json.dumps(event).encode()


def key(text: str = '{"$numberLong": "1"}', *, schema: bool = False) -> bytes:
    said = {"type": "struct", "fields": [make_column("id", "string", optional=False)], "name": "cdc.shop.people.Key"}
    return encode_with_schema(said, {"id": text}) if schema else json.dumps({"id": text}).encode()


def changes(values: list[bytes | None], keys: list[bytes | None] | None = None, declared: Any = None, **options: Any) -> Any:
    frame = make_raw_records(values, keys or [key()] * len(values), topic="cdc.shop.people")
    decoder = DebeziumJsonDecoder({"schema": {"shop.people": declared or DECLARED}, **options})
    route = decoder.route(frame).to_pylist()[0]
    assert route["table"] == "shop.people"
    spec = decoder.learn(frame, "shop.people", route["fingerprint"])
    assert spec.keys == ("_id",)
    return decoder.decode(frame, spec).to_pylist()


@pytest.mark.parametrize("schema", [True, False])
def test_whole_document_is_a_row(schema: bool) -> None:
    whole = {"_id": {"$numberLong": "1"}, "name": "Ann", "n": 5, "other": {"a": [1]}}
    said: list[tuple[str, dict[str, Any]]] = [
        ("c", {"after": whole}), ("r", {"after": {"_id": 1}}), ("u", {"after": {"_id": 1, "name": "Bo"}, "before": whole}),
        ("d", {"after": None}), ("d", {"before": whole}),
    ]  # fmt: skip
    values: list[bytes | None] = [document(op, schema=schema, **payload) for op, payload in said]
    found = changes(values, [key(schema=schema)] * 5)
    assert [(c["_op"], c["_id"], c["name"], c["n"]) for c in found] == [
        ("c", 1, "Ann", 5), ("r", 1, None, None), ("u", 1, "Bo", None), ("d", 1, None, None), ("d", 1, "Ann", 5),
    ]  # fmt: skip
    assert [(c["_unsent"], c["_error"]) for c in found] == [(None, None)] * 5
    assert [(c["_seq_1"], c["_seq_2"], c["_seq_3"]) for c in found] == [(5, 3, i) for i in range(5)]


def update(updated: Any = None, removed: Any = None, truncated: Any = None, **more: Any) -> bytes:
    said = {
        "updatedFields": updated if updated is None or isinstance(updated, str) else json.dumps(updated),
        "removedFields": removed,
        "truncatedArrays": truncated,
    }
    return document("u", **({"after": None} | more), updateDescription=said)


def test_update_description_is_a_partial_row() -> None:
    values: list[bytes | None] = [
        update({"name": "Bo", "other.part": 1}), update(None, ["n", "other.part", "gone"]), update({}, [], []),
        update({"n": {"$numberInt": "7"}}, ["name"], [{"field": "other", "size": 2}]),
        update({"name": "x"}, after={"_id": 1, "name": "later", "n": 1}),
    ]  # fmt: skip
    found = changes(values)
    assert [(c["_id"], c["name"], c["n"], c["_unsent"]) for c in found] == [
        (1, "Bo", None, ["n"]), (1, None, None, ["name"]), (1, None, None, ["name", "n"]), (1, None, 7, None),
        (1, "later", 1, None),
    ]  # fmt: skip
    assert [c["_error"] for c in found] == [None] * 5


@pytest.mark.parametrize("bad", [
    update({"name.first": "x"}), update(None, ["name.first"]), update({"name.0": 1, "n": 2}),
    update({}, [], [{"field": "name", "size": 2}]), update({}, [], [{"field": "name.first", "size": 2}]),
])  # fmt: skip
def test_update_of_a_part_of_a_column_is_rejected(bad: bytes) -> None:
    before, refused, after = changes([update({"n": 1}), bad, update({"n": 3})])
    assert get_error_code(refused) == "INCOMPLETE"
    assert "'name'" in refused["_error"] and "change_streams_update_full" in refused["_error"]
    assert (before["n"], after["n"], before["_error"], after["_error"]) == (1, 3, None, None)


VALUES = [
    (OID, "string", "596e275826f08b2730779e1f"),
    ('{"$numberLong": "1004"}', "int64", 1004), ('{"$numberInt":"5"}', "int16", 5), ("5.0", "int32", 5),
    ("7", "double", 7.0), ('{"$numberDecimal": "7"}', "int64", 7),
    ('{"$numberDouble": "1.5"}', "double", 1.5), ('{"$numberDouble": "-Infinity"}', "double", float("-inf")),
    ('{"$numberDecimal": "12.30"}', "decimal(10,2)", Decimal("12.30")), ("1.5", "decimal(10,2)", Decimal("1.50")),
    ('{"$numberDecimal": "1E+3"}', "double", 1000.0), ('{"$numberDecimal": "12.30"}', "string", "12.30"),
    ('{"$date": 1700000000123}', "timestamp[us]", datetime(2023, 11, 14, 22, 13, 20, 123000)),
    ('{"$date": 1700000000123}', "timestamp[ms]", datetime(2023, 11, 14, 22, 13, 20, 123000)),
    ('{"$date": {"$numberLong": "-1"}}', "timestamp[us, UTC]", datetime(1969, 12, 31, 23, 59, 59, 999000, UTC)),
    ('{"$date": "2019-08-11T17:54:14.692Z"}', "timestamp", datetime(2019, 8, 11, 17, 54, 14, 692000)),
    ('{"$date": "2019-08-11T00:00:00+02:00"}', "string", "2019-08-10T22:00:00.000Z"),
    ('{"$date": 1699920000000}', "date32", date(2023, 11, 14)), ('{"$date": 1}', "date32", "OUT_OF_RANGE"),
    ('{"$binary": "AQE=", "$type": "00"}', "binary", b"\x01\x01"),
    ('{"$binary": {"base64": "AQE=", "subType": "04"}}', "string", "AQE="),
    ('{"$symbol": "s"}', "string", "s"), ('{"$undefined": true}', "string", None), ("null", "int32", None),
    ('{"a": {"$numberLong" : "1"}, "b": [1, 2.50]}', "string", '{"a":{"$numberLong":"1"},"b":[1,2.50]}'),
    ('[ 1, {"$oid": "a"} ]', "string", '[1,{"$oid":"a"}]'), ("true", "string", "true"), ("true", "bool", True),
    ('[{"$numberLong":"1"}, null, 3]', "list<int64>", [1, None, 3]), ("null", "list<int64>", None),
    ('{"$regex": "a", "$options": "i"}', "string", '{"$regex":"a","$options":"i"}'), ("[1]", "int32", "MALFORMED"),
    ('{"a": 1}', "double", "MALFORMED"), (OID, "int64", "OUT_OF_RANGE"), ('"x"', "int32", "OUT_OF_RANGE"),
    ('{"$numberLong": "x"}', "int64", "MALFORMED"), ('{"$numberInt": "70000"}', "int16", "OUT_OF_RANGE"),
    ('{"$date": "soon"}', "timestamp", "MALFORMED"), ('{"$numberLong": "' + "9" * 40 + '"}', "int64", "not none"),
    ('{"$date": {"$numberLong": "9223372036854775807"}}', "timestamp[us, UTC]", "OUT_OF_RANGE"),
    ('{"$numberDecimal": "1E+6000"}', "double", "OUT_OF_RANGE"), ('{"$numberDouble": "1e999"}', "double", "MALFORMED"),
    ('{"$binary": {"subType": "04"}}', "binary", "MALFORMED"),
]  # fmt: skip


@pytest.mark.parametrize(("sent", "said", "expected"), VALUES)
def test_values_of_extended_json(sent: str, said: str, expected: Any) -> None:
    neighbour = document("c", after={"_id": 1, "v": None})
    first, found = changes(
        [neighbour, document("c", after=f'{{"_id": 1, "v": {sent}}}')], declared={"_id": "int64", "v": said}
    )
    assert first["_error"] is None
    if expected == "not none":
        assert get_error_code(found) is not None
    elif expected in ("OUT_OF_RANGE", "MALFORMED"):
        assert get_error_code(found) == expected
    else:
        assert (found["v"], found["_error"]) == (expected, None)


@pytest.mark.parametrize(("sent", "said", "expected"), [
    (OID, "string", "596e275826f08b2730779e1f"), ('"abc"', "string", "abc"), ("1004", "int64", 1004),
    ('{"$numberLong": "1004"}', "int64", 1004), ('{"b" : 1, "a": "x"}', "string", '{"b":1,"a":"x"}'),
])  # fmt: skip
def test_delete_takes_the_key_of_its_message(sent: str, said: str, expected: Any) -> None:
    values: list[bytes | None] = [document("c", after=f'{{"_id": {sent}, "n": 1}}'), document("d"), update({"n": 2})]
    found = changes(values, [key(sent)] * 3, {"_id": said, "n": "int32"})
    assert [(c["_op"], c["_id"], c["n"]) for c in found] == [("c", expected, 1), ("d", expected, None), ("u", expected, 2)]


@pytest.mark.parametrize("bad", [b"?", b'{"id":5}', b'{"id":"{"}', b"[]", None, b'{"id":"null"}'])
def test_document_with_unreadable_key_is_rejected_alone(bad: bytes | None) -> None:
    frame = make_raw_records([document("c", after={"_id": 1}), document("d")], [key(), bad], topic="cdc.shop.people")
    decoder = DebeziumJsonDecoder({"schema": {"shop.people": DECLARED}})
    spec = decoder.learn(frame, "shop.people", decoder.route(frame)["fingerprint"][0].as_py())
    good, refused = decoder.decode(frame, spec).to_pylist()
    assert good["_error"] is None
    assert get_error_code(refused) in ("MALFORMED", "NULL_KEY")


@pytest.mark.parametrize("bad", [
    document("c", after="{"), document("c", after="5"), document("u", after=None), document("u", patch={"$set": {"n": 1}}),
    document("x", after={"_id": 1}), document("c", after={"n": 1}),
    document("c", after={"_id": 1}).replace(b'"{\\"_id\\": 1}"', b'{"_id": 1}'),
])  # fmt: skip
def test_unreadable_document_is_rejected_alone(bad: bytes) -> None:
    found = changes([document("c", after={"_id": 1, "n": 1}), bad, document("c", after={"_id": 1, "n": 2})])
    assert [c["n"] for c in found][::2] == [1, 2]
    assert get_error_code(found[1]) in ("MALFORMED", "UNKNOWN_OPERATION", "NULL_KEY")
    assert [c["_error"] for c in found][::2] == [None, None]


def test_tombstones_delete_documents_if_configured() -> None:
    found = changes([document("c", after={"_id": 1}), None], tombstones="delete")
    assert [(c["_op"], c["_id"], c["_seq_1"]) for c in found] == [("c", 1, 0), ("d", 1, 1)]
    frame = make_raw_records([document("c", after={"_id": 1}), None], [key()] * 2, topic="cdc.shop.people")
    decoder = DebeziumJsonDecoder({"schema": {"shop.people": DECLARED}, "tombstones": "delete"})
    spec = decoder.learn(frame, "shop.people", "x")
    assert [(c["_op"], c["_id"]) for c in decoder.decode(frame.slice(1), spec).to_pylist()] == [("d", 1)]


def test_tombstone_among_unreadable_records_is_a_delete() -> None:
    decoder = DebeziumJsonDecoder({"schema": {"shop.people": DECLARED}, "tombstones": "delete"})
    whole = make_raw_records([document("c", after={"_id": 1})], [key()], topic="cdc.shop.people")
    spec = decoder.learn(whole, "shop.people", decoder.route(whole)["fingerprint"][0].as_py())
    found = decoder.decode(make_raw_records([None, b"{"], [key()] * 2, topic="cdc.shop.people"), spec).to_pylist()
    assert [(c["_op"], c["_id"], get_error_code(c)) for c in found] == [("d", 1, None), (None, None, "MALFORMED")]


@pytest.mark.parametrize("declared", [{}, {"name": "string"}])
def test_documents_need_declared_columns(declared: dict[str, str]) -> None:
    frame = make_raw_records([document("c", after={"_id": 1}, schema=True)], [key()])
    decoder = DebeziumJsonDecoder({"schema": {"shop.people": declared}} if declared else {})
    with pytest.raises(ConfigProblem, match=r"collection shop\.people .*schema: \{_id: string"):
        decoder.learn(frame, "shop.people", decoder.route(frame)["fingerprint"][0].as_py())


@pytest.mark.parametrize("schema", [True, False])
def test_event_log_stores_documents_unchanged(schema: bool) -> None:
    text = '{"_id" : {"$numberLong" : "1"}}'
    row = (
        DebeziumJsonDecoder({})
        .envelope(make_raw_records([document("c", after=text, schema=schema)], [key()]))
        .to_pylist()[0]
    )
    assert (row["table"], row["after"], row["before"], row["op"], row["error"]) == ("shop.people", text, None, "c", None)
    assert (row["seq_1"], row["seq_2"], row["seq_3"]) == (5, 3, 0)


def test_table_with_a_key_named_id_is_no_collection() -> None:
    payload = {"before": None, "after": {"_id": 3, "id": 4}, "op": "c", "source": {
        "connector": "mysql", "db": "shop", "table": "people", "file": "b.1", "pos": 4, "row": 0}}  # fmt: skip
    frame = make_raw_records([json.dumps(payload).encode()], [b'{"_id":3}'])
    decoder = DebeziumJsonDecoder({"schema": {"shop.people": {"_id": "int64", "id": "int64"}}})
    spec = decoder.learn(frame, "shop.people", "x")
    assert [(c["_id"], c["id"]) for c in decoder.decode(frame, spec).to_pylist()] == [(3, 4)]
    assert pa.types.is_int64(spec.column("_id").type)
