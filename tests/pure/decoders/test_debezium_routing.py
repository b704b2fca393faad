"""Routing of records in every layout, and the rows of the event log."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from support.debezium_events import (
    ID,
    encode_with_schema,
    get_error_code,
    make_change_event,
    make_column,
    make_envelope_schema,
    make_event_key,
    make_payload,
    make_raw_records,
)

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from replicator.domain.errors import ConfigProblem
from replicator.ports.decoder import ENVELOPE, ROUTE

COLUMNS = [ID, make_column("name", "string")]
ROW = {"id": 1, "name": "a"}
DECLARED = {"schema": {"public.t": {"id": "int64", "name": "string"}}}


def route_rows(frame: pa.Table, options: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    routes = DebeziumJsonDecoder(options or {}).route(frame)
    assert routes.schema.equals(ROUTE)
    rows: list[dict[str, Any]] = routes.to_pylist()
    for row in rows:
        assert [row["table"] is None, row["ignored"] is None, row["error"] is None].count(False) == 1
        assert (row["table"] is None) == (row["fingerprint"] is None)
    return rows


def layouts() -> list[bytes]:
    """One change in every layout that JSON allows."""
    schema, payload = make_envelope_schema(COLUMNS), make_payload(after=ROW)
    compact = encode_with_schema(schema, payload)
    return [
        compact,
        compact + b"\n",
        json.dumps({"schema": schema, "payload": payload}).encode(),
        json.dumps({"payload": payload, "schema": schema}).encode(),
        json.dumps({"schema": schema, "extra": [1], "payload": payload}, indent=1).encode(),
        compact[:-1] + b',"x":1}',
        b" " + compact,
    ]


@pytest.mark.parametrize("text", layouts())
def test_every_layout_is_the_same_change(text: bytes) -> None:
    decoder = DebeziumJsonDecoder({})
    frame = make_raw_records([layouts()[0], text, layouts()[0]])
    first, route, _ = decoder.route(frame).to_pylist()
    assert route == first
    spec = decoder.learn(frame.slice(1, 1), route["table"], route["fingerprint"])
    one, two, _ = decoder.decode(frame, spec).to_pylist()
    assert {**two, "_offset": 0} == one
    assert one["_error"] is None


def test_events_without_schema_need_a_declaration() -> None:
    frame = make_raw_records([json.dumps(make_payload(after=ROW)).encode()], [b'{"id":1}'])
    (route,) = route_rows(frame)
    assert route["table"] == "public.t"
    with pytest.raises(ConfigProblem, match=r"schema: \{id: int64"):
        DebeziumJsonDecoder({}).learn(frame, "public.t", route["fingerprint"])
    decoder = DebeziumJsonDecoder(DECLARED)
    spec = decoder.learn(frame, "public.t", route["fingerprint"])
    assert (spec.keys, spec.column_names) == (("id",), ("id", "name"))
    assert decoder.decode(frame, spec)["name"].to_pylist() == ["a"]


def test_null_schema_is_no_schema() -> None:
    frame = make_raw_records(
        [json.dumps({"schema": None, "payload": make_payload(after=ROW)}).encode()], [b'{"schema":null,"payload":{"id":1}}']
    )
    decoder = DebeziumJsonDecoder(DECLARED)
    spec = decoder.learn(frame, "public.t", route_rows(frame)[0]["fingerprint"])
    assert decoder.decode(frame, spec).to_pylist()[0]["id"] == 1


@pytest.mark.parametrize(("name", "sent", "expected"), [
    ("decimal(10,2)", "12.34", "12.34"), ("decimal(10,2)", 12.3, "12.30"),
    ("decimal(20,0)", 12345678901234567890, "12345678901234567890"),
    ("decimal(10,2)", "NAN", "OUT_OF_RANGE"), ("decimal(3,2)", "12.34", "OUT_OF_RANGE"),
    ("decimal(10,2)", "1.005", "OUT_OF_RANGE"),
    ("timestamp[ms]", 1, "1970-01-01 00:00:00.001000"), ("timestamp[us]", 1, "1970-01-01 00:00:00.000001"),
    ("timestamp[us, UTC]", "2024-01-01T00:00:00Z", "2024-01-01 00:00:00+00:00"), ("date32", 1, "1970-01-02"),
    ("List<Int32>", [1, None], "[1, None]"), ("uint64", 2**64 - 1, str(2**64 - 1)), ("time64[us]", 1, "00:00:00.000001"),
    ("binary", "AQE=", "b'\\x01\\x01'"), ("list<decimal(5, 2)>", ["1.5", None], "[Decimal('1.50'), None]"),
])  # fmt: skip
def test_declared_types(name: str, sent: Any, expected: str) -> None:
    frame = make_raw_records([json.dumps(make_payload(after={"id": 1, "v": sent})).encode()], [b'{"id":1}'])
    decoder = DebeziumJsonDecoder({"schema": {"public.*": {"id": "int64", "v": name}}})
    spec = decoder.learn(frame, "public.t", "x")
    (change,) = decoder.decode(frame, spec).to_pylist()
    assert (get_error_code(change) or str(change["v"])) == expected


@pytest.mark.parametrize("name", ["integer!", "decimal(99,2)", "list<>", "", "decimal(a)"])
def test_unknown_declared_type_is_reported(name: str) -> None:
    frame = make_raw_records([json.dumps(make_payload(after=ROW)).encode()], [b'{"id":1}'])
    with pytest.raises(ConfigProblem, match=r"'v' of table public\.t"):
        DebeziumJsonDecoder({"schema": {"public.t": {"v": name}}}).learn(frame, "public.t", "x")


def test_several_tables_in_one_topic() -> None:
    def make_event(table: str, schema: str = "public") -> bytes:
        return make_change_event(COLUMNS, after=ROW, source={"table": table, "schema": schema})

    frame = make_raw_records(
        [
            make_event("t"),
            make_event("u"),
            make_event("t"),
            make_event('we"ird'),
            make_event("t", "Public"),
            make_event("t", "a.b"),
        ]
    )
    tables = [r["table"] for r in route_rows(frame)]
    assert tables == ["public.t", "public.u", "public.t", 'public.we"ird', "Public.t", "a.b.t"]
    assert len({r["fingerprint"] for r in route_rows(frame)}) == 1


@pytest.mark.parametrize(
    "name", ["häuser", "订单", "orders→2024", "😀", "ɠ$", "a.*b", "x{2}", "back\\slash", "(open", "\x7f\x1f"]
)
def test_table_may_have_any_name(name: str) -> None:
    sent = [make_change_event(COLUMNS, after=ROW, source={"table": t}) for t in (name, name, name + "2")]
    plain = [json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":")).encode() for text in sent]
    for texts in (sent, plain, sent[:2], plain[:2]):
        assert [r["table"] for r in route_rows(make_raw_records(texts))] == [
            f"public.{name}",
            f"public.{name}",
            f"public.{name}2",
        ][: len(texts)]


def test_row_that_looks_like_a_source_block_does_not_change_the_table() -> None:
    columns = [ID, make_column("schema", "string"), make_column("table", "string")]
    rows = [{"id": 1, "schema": "public", "table": "t"}] * 2
    texts = [make_change_event(columns, after=row, source={"table": t}) for row, t in zip(rows, ("t", "other"), strict=True)]
    assert [r["table"] for r in route_rows(make_raw_records(texts))] == ["public.t", "public.other"]


def test_mysql_tables_are_named_by_database() -> None:
    text = make_change_event(COLUMNS, after=ROW, source={"connector": "mysql", "schema": None, "db": "shop", "table": "t"})
    assert route_rows(make_raw_records([text]))[0]["table"] == "shop.t"


CONTROL = [
    ("__debezium-heartbeat.cdc", {"ts_ms": 1}, "heartbeat"),
    ("cdc.transaction", {"status": "END", "id": "1", "event_count": 1, "data_collections": None, "ts_ms": 1}, "transaction"),
    ("cdc", {"source": {}, "databaseName": "a", "ddl": "x", "tableChanges": []}, "schema_change"),
    ("cdc.notifications", {"id": "1", "aggregate_type": "a", "type": "b", "additional_data": {}}, "notification"),
    ("cdc.message", {"op": "m", "source": {"table": ""}, "message": {"prefix": "a"}}, "message"),
]  # fmt: skip


@pytest.mark.parametrize(("topic", "value", "kind"), CONTROL)
def test_control_records_without_schema(topic: str, value: dict[str, Any], kind: str) -> None:
    (route,) = route_rows(make_raw_records([json.dumps(value).encode()], topic=topic))
    assert route["ignored"] == kind
    (row,) = DebeziumJsonDecoder({}).envelope(make_raw_records([json.dumps(value).encode()], topic=topic)).to_pylist()
    assert row["error"] is None


@pytest.mark.parametrize(("name", "kind"), [
    ("io.debezium.connector.common.Heartbeat", "heartbeat"),
    ("io.debezium.connector.common.TransactionMetadataValue", "transaction"),
    ("io.debezium.connector.mysql.SchemaChangeValue", "schema_change"),
    ("io.debezium.connector.postgresql.MessageValue", "message"),
])  # fmt: skip
def test_control_records_by_schema_name(name: str, kind: str) -> None:
    schema = {"type": "struct", "fields": [make_column("ts_ms", "int64")], "optional": False, "name": name}
    assert route_rows(make_raw_records([encode_with_schema(schema, {"ts_ms": 1})], [None]))[0]["ignored"] == kind


FLAT = {"type": "struct", "fields": COLUMNS, "name": "cdc.public.t.Value"}
STRANGERS: list[tuple[bytes, str]] = [
    (b"", "not JSON"),
    (b"{", "not JSON"),
    (b"nonsense", "not JSON"),
    (b"[1]", "no object"),
    (b"5", "no object"),
    (b"null", "no object"),
    (b"{}", "no Debezium change event"),
    (b'{"a":"\xff"}', "MALFORMED"),
    (b'{"id":1,"__deleted":"false"}', "ExtractNewRecordState"),
    (encode_with_schema(FLAT, ROW), "ExtractNewRecordState"),
    (b'{"database":"d","table":"t","type":"insert","data":{}}', "maxwell_json"),
    (encode_with_schema({"type": "int32"}, 1), "no op, source and after"),
    (encode_with_schema({"no": "schema"}, {}), "not a Kafka Connect schema"),
    (encode_with_schema({"type": "struct", "fields": 5}, {}), "not a Kafka Connect schema"),
    (encode_with_schema(make_envelope_schema([ID, ID]), {}), "twice"),
    (encode_with_schema(make_envelope_schema([]), {}), "without columns"),
    (encode_with_schema(make_envelope_schema(COLUMNS), None), "names no table|not JSON|another type"),
    (json.dumps({**make_payload(after=ROW), "source": {"table": 5}}).encode(), "another type"),
]


@pytest.mark.parametrize(("text", "said"), STRANGERS)
def test_record_of_another_format_is_rejected_with_a_hint(text: bytes, said: str) -> None:
    good = make_change_event(COLUMNS, after=ROW)
    before, route, after = route_rows(make_raw_records([good, text, good]))
    assert route["error"].startswith("MALFORMED: ")
    assert any(part in route["error"] for part in said.split("|"))
    assert before == after
    assert before["table"] == "public.t"
    assert DebeziumJsonDecoder({}).envelope(make_raw_records([text]))["error"][0].as_py()[:9] in ("MALFORMED", None)


def test_limits() -> None:
    good = make_change_event(COLUMNS, after=ROW)
    deep = b'{"op":"c","source":' + b'{"a":' * 70 + b"1" + b"}" * 70 + b"}"
    nested: dict[str, Any] = {"type": "string"}
    for _ in range(70):
        nested = {"type": "array", "items": nested}
    frame = make_raw_records([good, make_change_event(COLUMNS, after={"id": 1, "name": "x" * 5_000}), deep])
    codes = [(r["error"] or "ok").split(":")[0] for r in route_rows(frame, {"limits": {"message_bytes": 4_000}})]
    assert codes == ["ok", "TOO_LARGE", "TOO_LARGE"]
    many = [ID, *(make_column(f"c{i}", "int32") for i in range(20))]
    frame = make_raw_records(
        [make_change_event(many, after={}), make_change_event([ID, {**nested, "field": "v"}], after={})]
    )
    assert [r["error"].split(":")[0] for r in route_rows(frame, {"limits": {"columns": 20}})] == ["TOO_LARGE"] * 2


@pytest.mark.parametrize("bad", [b"", b"x", b"5", b"[]", b"{}", b'"a"', encode_with_schema({"type": "int32"}, 1)])
def test_key_without_columns_is_rejected(bad: bytes) -> None:
    good = make_change_event(COLUMNS, after=ROW)
    routes = route_rows(make_raw_records([good, good], [make_event_key(id=1), bad]))
    assert [bool(r["table"]) for r in routes] == [True, False]
    assert "key" in routes[1]["error"]


def test_key_with_a_malformed_payload_is_routed_by_its_schema() -> None:
    """Only its schema is read if the value has the row: keys of one schema are not read one by one."""
    good, broken = make_change_event(COLUMNS, after=ROW), make_event_key(id=1).replace(b'{"id":1}', b"}")
    strangers = [
        json.dumps({"payload": {"id": i}, "schema": json.loads(make_event_key(id=1))["schema"]}).encode() for i in range(20)
    ]
    (alone,) = route_rows(make_raw_records([good], [broken]))
    crowded = route_rows(make_raw_records([good] * 21, [*strangers, broken]))
    assert alone["table"] == "public.t" and alone == crowded[-1] == crowded[0]


def test_truncate_has_the_schema_of_its_table() -> None:
    good, truncate = make_change_event(COLUMNS, after=ROW), make_change_event(COLUMNS, op="t")
    decoder = DebeziumJsonDecoder({})
    mixed = decoder.route(make_raw_records([truncate, good], [None, make_event_key(id=1)]))["fingerprint"].to_pylist()
    later = decoder.route(make_raw_records([truncate], [None]))["fingerprint"].to_pylist()
    assert len({*mixed, *later}) == 1
    assert later[0].endswith(route_rows(make_raw_records([good]))[0]["fingerprint"].split(".")[1])


def test_tombstones_are_ignored_unless_they_delete() -> None:
    good = make_change_event(COLUMNS, after=ROW)
    frame = make_raw_records([good, None], [make_event_key(id=1), make_event_key(id=1)])
    assert [r["ignored"] for r in route_rows(frame)] == [None, "tombstone"]
    decoder = DebeziumJsonDecoder({"tombstones": "delete", "epoch": 1})
    routes = decoder.route(frame).to_pylist()
    assert routes[0] == routes[1]
    spec = decoder.learn(frame, "public.t", routes[0]["fingerprint"])
    assert spec.sequence == 1
    changes = decoder.decode(frame, spec).to_pylist()
    assert [(c["_op"], c["_seq_1"], c["id"], c["_error"]) for c in changes] == [
        ("c", 1 << 56, 1, None),
        ("d", (1 << 56) + 1, 1, None),
    ]


@pytest.mark.parametrize("bare", [True, False])
def test_compacted_topic_with_tombstones_only(bare: bool) -> None:
    frame = make_raw_records([None, None, None], [b'{"id":5}' if bare else make_event_key(id=5), None, b"?"])
    options = {**DECLARED, "tombstones": {"public.t": "delete"}}
    decoder = DebeziumJsonDecoder(options)
    routes = decoder.route(frame).to_pylist()
    assert [r["table"] for r in routes] == ["public.t", None, None]
    assert [r["ignored"] for r in routes] == [None, "tombstone", "tombstone"]
    spec = decoder.learn(frame.slice(0, 1), "public.t", routes[0]["fingerprint"])
    changes = decoder.decode(frame, spec).to_pylist()
    assert [get_error_code(c) for c in changes] == [None, "MALFORMED", "MALFORMED"]
    assert (spec.keys, spec.partial, changes[0]["_op"], changes[0]["id"]) == (("id",), True, "d", 5)


def test_envelope_stores_images_unchanged() -> None:
    text = make_change_event(COLUMNS, op="u", after="@", before=None, transaction={"id": "x", "total_order": 3})
    text = text.replace(b'"@"', b'{"id": 1.50 , "name":"\\u00e9"}')
    envelope = DebeziumJsonDecoder({"epoch": 1}).envelope(make_raw_records([text, None, b"{"], [None] * 3))
    assert envelope.schema.equals(ENVELOPE)
    row, tombstone, broken = envelope.to_pylist()
    assert (row["after"], row["before"]) == ('{"id": 1.50 , "name":"\\u00e9"}', None)
    assert (row["source"], row["connector"], row["db"], row["table"], row["op"]) == (
        "cdc",
        "postgresql",
        "shop",
        "public.t",
        "u",
    )
    assert (row["seq_1"], row["seq_2"], row["seq_3"], row["seq_4"], row["tx"]) == (999 + (1 << 56), 1000, 3, None, "7")
    assert set(tombstone.values()) == {None}
    assert {k for k, v in broken.items() if v} == {"error"}


def test_envelope_is_read_with_fields_behind_the_payload() -> None:
    usual = make_change_event(COLUMNS, after=ROW)
    first, second = DebeziumJsonDecoder({}).envelope(make_raw_records([usual, usual[:-1] + b',"more":1}'])).to_pylist()
    assert first["op"] == "c"
    assert first == second


@pytest.mark.parametrize("value", [layouts()[0], b"not json", None])
def test_record_rejected_by_the_source_keeps_its_reason(value: bytes | None) -> None:
    frame = make_raw_records([layouts()[0], value, layouts()[0]])
    told = [None, [{"name": "a", "value": b"b"}, {"name": "replicator.error", "value": b"TOO_LARGE: line 7"}], None]
    headers = pa.array(told, frame.schema.field("headers").type)
    frame = frame.set_column(frame.schema.get_field_index("headers"), frame.schema.field("headers"), headers)
    assert [row["error"] for row in route_rows(frame)] == [None, "TOO_LARGE: line 7", None]
