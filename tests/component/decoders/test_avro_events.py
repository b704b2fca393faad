"""Debezium events in Avro: types, frames, keys and answers of a registry."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema
from servers.schema_registry import API
from support.avro_of_connect import Avro, decode_runs, decode_without_fingerprints
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

from adapters.decoders.debezium_avro import DebeziumAvroDecoder
from adapters.decoders.debezium_json import DebeziumJsonDecoder
from replicator.domain.errors import ConfigProblem, Reject

PLACEHOLDER = "__debezium_unavailable_value"


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


CODED = b64(PLACEHOLDER.encode())
DRAFT = "http://json-schema.org/draft-07/schema#"
DECIMAL = "org.apache.kafka.connect.data.Decimal"
STRUCT = {"type": "struct", "optional": True}
VARIABLE = [make_column("scale", "int32", optional=False), make_column("value", "bytes", optional=False)]
POINT = [make_column("x", "double"), make_column("y", "double"), make_column("wkb", "bytes"), make_column("srid", "int32")]


def item(kind: str, name: str | None = None) -> dict[str, object]:
    return {"type": kind, "optional": True, **({"name": name, "version": 1} if name else {})}


TYPES = [
    (make_column("c", "int8"), [1, -128, None]),
    (make_column("c", "int16"), [1, -32768]),
    (make_column("c", "int32"), [2**31 - 1]),
    (make_column("c", "int64"), [-(2**63), 2**63 - 1]),
    (make_column("c", "float"), [0.5, "NaN", "Infinity", "-Infinity", 3.4028234663852886e38]),
    (make_column("c", "double"), [0.1, "NaN", "-Infinity", 1e300]),
    (make_column("c", "boolean"), [True, False]),
    (make_column("c", "string"), ["", "é漢🎉", PLACEHOLDER, "a\u0000b"]),
    (make_column("c", "bytes"), [b64(b""), b64(b"\x00\xff"), CODED]),
    (make_column("c", "int32", "io.debezium.time.Date"), [0, 19_000, 2**31 - 1]),
    (make_column("c", "int32", "org.apache.kafka.connect.data.Date"), [19_000, -719_163]),
    (make_column("c", "int32", "io.debezium.time.Time"), [86_399_999, -1]),
    (make_column("c", "int32", "org.apache.kafka.connect.data.Time"), [1]),
    (make_column("c", "int64", "io.debezium.time.MicroTime"), [1, 86_400_000_000]),
    (make_column("c", "int64", "io.debezium.time.NanoTime"), [1]),
    (make_column("c", "int64", "io.debezium.time.Timestamp"), [1_700_000_000_123]),
    (make_column("c", "int64", "org.apache.kafka.connect.data.Timestamp"), [1_700_000_000_123, -1]),
    (make_column("c", "int64", "io.debezium.time.MicroTimestamp"), [1, 9_223_372_036_825_200_000]),
    (make_column("c", "int64", "io.debezium.time.NanoTimestamp"), [1, 2**63 - 1]),
    (make_column("c", "string", "io.debezium.time.ZonedTimestamp"), ["2024-02-29T23:59:59.123456Z", "infinity"]),
    (make_column("c", "string", "io.debezium.time.IsoDate"), ["2017-09-15Z"]),
    (make_column("c", "string", "io.debezium.data.Uuid"), ["0b7c39a5-2b3c-4e0e-8a0c-3a3f2c5b7a11"]),
    (make_column("c", "string", "io.debezium.data.Enum", parameters={"allowed": "a,b"}), ["a"]),
    (make_column("c", "string", "io.debezium.data.EnumSet", parameters={"allowed": "a,b"}), ["a,b"]),
    (make_column("c", "bytes", "io.debezium.data.Bits", parameters={"length": "9"}), [b64(b"\x01\x02")]),
    (
        make_column("c", "bytes", DECIMAL, parameters={"scale": "2", "connect.decimal.precision": "10"}),
        [b64(b"\x04\xd2"), CODED],
    ),
    (
        make_column("c", "bytes", DECIMAL, parameters={"scale": "2", "connect.decimal.precision": "4"}),
        [b64(b"\x7f\xff\xff")],
    ),
    (make_column("c", "bytes", DECIMAL, parameters={"scale": "0", "connect.decimal.precision": "64"}), [b64(b"\x01")]),
    (make_column("c", "bytes", DECIMAL, parameters={"scale": "3"}), [b64(b"\xff")]),
    (
        {**STRUCT, "name": "io.debezium.data.VariableScaleDecimal", "version": 1, "fields": VARIABLE, "field": "c"},
        [{"scale": 2, "value": b64(b"\x04\xd2")}, {"scale": 0, "value": CODED}],
    ),
    (
        {**STRUCT, "name": "io.debezium.data.geometry.Point", "version": 1, "fields": POINT, "field": "c"},
        [{"x": 1.5, "y": "NaN", "wkb": b64(b"\x01"), "srid": None}, None],
    ),
    (make_column("c", "array", items=item("int32")), [[1, None, 3], [], [*PLACEHOLDER.encode()]]),
    (make_column("c", "array", items=item("string")), [["a", None], [PLACEHOLDER]]),
    (make_column("c", "array", items=item("double")), [[0.5, "NaN", None]]),
    (make_column("c", "array", items=item("string", "io.debezium.data.Uuid")), [["0b7c39a5-2b3c-4e0e-8a0c-3a3f2c5b7a11"]]),
    (
        make_column("c", "map", keys={"type": "string", "optional": False}, values=item("string")),
        [{"a": "1", "b": None}, {PLACEHOLDER: PLACEHOLDER}],
    ),
    (
        make_column("c", "map", keys={"type": "string", "optional": False}, values=item("double")),
        [{"a": "Infinity", "b": 0.5}],
    ),
    (make_column("c", "map", keys={"type": "int32", "optional": False}, values=item("double")), [[[1, 0.5], [2, "NaN"]]]),
    (make_column("c", "int32", default=7, optional=False), [7, 8]),
    (make_column("c", "string", default="x"), ["x", None]),
    (make_column("c", "bytes", DECIMAL, parameters={"scale": "2"}, default=b64(b"\x01")), [b64(b"\x01"), None]),
]


@pytest.fixture
def url(registry: str) -> str:
    return f"{registry}{API}"


def decoder(url: str, **options: object) -> DebeziumAvroDecoder:
    return DebeziumAvroDecoder({"registry": {"url": url}, **options})


@pytest.mark.parametrize(
    ("kind", "values"), TYPES, ids=lambda v: str(v.get("name", v["type"])) if isinstance(v, dict) else ""
)
def test_every_type_decodes_as_in_json(kind, values, url):
    rows = [{"id": 1, "c": value} for value in values]
    texts = [make_change_event([ID, kind], after=row, at=9 + i) for i, row in enumerate(rows)]
    texts += [
        make_change_event([ID, kind], op="u", before=rows[0], after=rows[-1], at=90),
        make_change_event([ID, kind], op="d", before=rows[0], at=91),
    ]
    frame = make_raw_records([*texts, make_change_event([ID, kind], op="t", at=92), None])
    assert decode_without_fingerprints(decoder(url), Avro(url).frame(frame)) == decode_without_fingerprints(
        DebeziumJsonDecoder({}), frame
    )


def test_columns_named_like_a_source_block_are_columns(url):
    columns = [ID, make_column("db", "string"), make_column("table", "string")]
    frame = make_raw_records([make_change_event(columns, after={"id": 1, "db": "other", "table": "other"})])
    assert decode_without_fingerprints(decoder(url), Avro(url).frame(frame)) == decode_without_fingerprints(
        DebeziumJsonDecoder({}), frame
    )


def test_key_changes_are_recognised_by_headers(url):
    texts = [make_change_event([ID], op="d", before={"id": 1}), None, make_change_event([ID], after={"id": 2})]
    headers = {0: {"__debezium.newkey": b'{"id":2}'}, 2: {"__debezium.oldkey": b'{"id":1}'}}
    frame = make_raw_records(texts, [make_event_key(id=1), make_event_key(id=1), make_event_key(id=2)], headers)
    found = decode_without_fingerprints(decoder(url), Avro(url).frame(frame))
    assert found == decode_without_fingerprints(DebeziumJsonDecoder({}), frame)
    assert "'_moved_to': True" in found[1][0][3] and "'_moved_from': {'id': 1}" in found[1][0][3]


def test_heartbeats_are_ignored_and_transactions_are_reported(url):
    beat = {"type": "struct", "name": "io.debezium.connector.common.Heartbeat", "fields": [make_column("ts_ms", "int64")]}
    collection = [
        make_column("data_collection", "string", optional=False),
        make_column("event_count", "int64", optional=False),
    ]
    ended = {
        "type": "struct",
        "name": "io.debezium.connector.common.TransactionMetadataValue",
        "fields": [
            make_column("status", "string", optional=False),
            make_column("id", "string", optional=False),
            make_column(
                "data_collections",
                "array",
                items={**STRUCT, "optional": False, "name": "event.collection", "fields": collection},
            ),
            make_column("ts_ms", "int64"),
        ],
    }
    end = {"status": "END", "id": "7:8", "data_collections": [{"data_collection": "public.t", "event_count": 2}], "ts_ms": 5}
    frame = make_raw_records([encode_with_schema(beat, {"ts_ms": 1}), encode_with_schema(ended, end)], [None, None])
    found = decode_without_fingerprints(decoder(url), Avro(url).frame(frame))
    assert found == decode_without_fingerprints(DebeziumJsonDecoder({}), frame)
    assert [row["ignored"] for row in found[0]] == ["heartbeat", "transaction"]
    assert [(mark.tx, mark.ended, dict(mark.events)) for mark in found[3]] == [("7", True, {"public.t": 2})]


# -- frames ------------------------------------------------------------------------------------------------------------


def make_framed_event(url: str) -> pa.Table:
    return Avro(url).frame(make_raw_records([make_change_event([ID], after={"id": 1})]))


def list_errors(
    url: str, values: list[bytes], keys: list[bytes] | None = None, headers=None, **options: object
) -> list[str]:
    frame = make_raw_records(values, keys or [None] * len(values), headers)
    found = decoder(url, **options).route(frame)["error"].to_pylist()
    whole = decoder(url, **options).envelope(frame)["error"].to_pylist()
    assert keys or whole == found
    return found


def test_other_framing_is_malformed_with_a_hint(url):
    framed = make_framed_event(url)["value"][0].as_py()
    body = framed[5:]
    found = list_errors(
        url,
        [make_change_event([ID], after={"id": 1}), b"", body, b"\0" + (1).to_bytes(8, "big") + body, b"\0\0\0", body],
        headers={2: {"apicurio.value.globalId": b"\0" * 8}, 5: {"__value_schema_id": b"\1"}},
    )
    assert {text.partition(":")[0] for text in found} == {"MALFORMED"}
    assert "looks like `format: debezium_json`" in found[0]
    assert "does not begin with a zero byte" in found[1] and "does not begin" in found[4]
    assert "header apicurio.value.globalId" in found[2] and "Apicurio" in found[2]
    assert "an id of 8 bytes" in found[3]
    assert "header __value_schema_id" in found[5]


def test_unknown_schema_id_is_rejected(url):
    framed = make_framed_event(url)
    unknown = b"\0" + (999_999).to_bytes(4, "big") + framed["value"][0].as_py()[5:]
    (found,) = list_errors(url, [unknown])
    assert found == "UNKNOWN_SCHEMA: the schema registry has no schema of the id 999999, which the record names"
    (found,) = list_errors(url, [framed["value"][0].as_py()], [unknown])
    assert found.startswith("UNKNOWN_SCHEMA: its key: ")
    declared = decoder(url, keys={"public.t": ["id"]})
    assert declared.route(make_raw_records([framed["value"][0].as_py()], [unknown]))["error"].to_pylist() == [None]


def test_null_record_with_unreadable_key_is_rejected_as_a_delete(url):
    unknown = make_raw_records([None], [b"\0" + (999_999).to_bytes(4, "big") + b"\2"])
    ignoring, deleting = (
        decoder(url).route(unknown).to_pylist(),
        decoder(url, tombstones="delete").route(unknown).to_pylist(),
    )
    assert ignoring[0]["ignored"] == "tombstone"
    assert deleting[0]["ignored"] is None and get_error_code({"_error": deleting[0]["error"]}) == "UNKNOWN_SCHEMA"


def test_json_keys_of_avro_values_are_read(url):
    frame = make_raw_records([make_change_event([ID], after={"id": 1})])
    mixed = frame.set_column(frame.column_names.index("value"), frame.schema.field("value"), make_framed_event(url)["value"])
    ((_, table, changes),) = decode_runs(decoder(url), mixed)
    assert table.keys == ("id",) and changes["id"].to_pylist() == [1]


def test_truncated_or_extended_record_is_rejected_alone(url):
    avro = Avro(url)
    columns = [ID, make_column("c", "string"), make_column("d", "double")]
    text = avro.one(make_change_event(columns, after={"id": 1, "c": "abc", "d": 0.5}), "t")
    assert text is not None
    values = [text, *(text[:at] for at in range(5, len(text))), text + b"\0", text]
    found = list_errors(url, values)
    assert found[0] is found[-1] is None
    assert {str(e).partition(":")[0] for e in found[1:-1]} == {"MALFORMED"} and "has 1 byte after" in found[-2]
    frame = make_raw_records(values, [avro.one(make_event_key(id=1), "k")] * len(values))
    spec = decoder(url).learn(frame, "public.t", decoder(url).route(frame)["fingerprint"][0].as_py())
    changes = decoder(url).decode(frame, spec).to_pylist()
    assert [c["_offset"] for c in changes] == list(range(len(values)))
    assert changes[0]["c"] == changes[-1]["c"] == "abc" and all(c["_error"] for c in changes[1:-1])


def test_size_limit_applies_to_the_bytes_of_the_record(url):
    text = make_framed_event(url)["value"][0].as_py()
    assert 3 * len(text) < len(make_change_event([ID], after={"id": 1}))
    assert list_errors(url, [text], limits={"message_bytes": len(text)}) == [None]
    (found,) = list_errors(url, [text], limits={"message_bytes": len(text) - 1})
    assert get_error_code({"_error": found}) == "TOO_LARGE"


def test_text_that_is_not_utf8_is_rejected(url):
    text = Avro(url).one(make_change_event([ID, make_column("c", "string")], after={"id": 1, "c": "hello"}), "t")
    assert text is not None
    (found,) = list_errors(url, [text.replace(b"hello", b"he\xff\xfeo")])
    assert found == "MALFORMED: it holds text that is not UTF-8"


def test_schema_that_is_not_avro_is_rejected(url):
    client = Avro(url).client
    number = client.register_schema(
        "json-t", Schema(json.dumps({"$schema": DRAFT, "type": "object", "properties": {}}), "JSON")
    )
    (found,) = list_errors(url, [b"\0" + number.to_bytes(4, "big") + b"{}"])
    assert "of the type 'JSON', not AVRO" in found


def test_flattened_rows_are_rejected_as_in_json(url):
    flat = {"type": "struct", "name": "cdc.public.t.Value", "fields": [ID, make_column("__op", "string")]}
    frame = make_raw_records(
        [
            encode_with_schema(flat, {"id": 1, "__op": "c"}),
            encode_with_schema(make_envelope_schema([ID]), make_payload(op="x")),
        ]
    )
    found = decode_without_fingerprints(decoder(url), Avro(url).frame(frame))
    assert (
        found == decode_without_fingerprints(DebeziumJsonDecoder({}), frame)
        and "ExtractNewRecordState" in found[0][0]["error"]
    )


def test_wrong_options_are_reported_without_their_values():
    with pytest.raises(ConfigProblem, match="options of debezium_avro: registry") as missing:
        DebeziumAvroDecoder({})
    assert missing.value.next_step
    with pytest.raises(ConfigProblem, match=r"registry\.pasword") as wrong:
        DebeziumAvroDecoder({"registry": {"url": "http://h", "pasword": "hunter2"}})
    assert "hunter2" not in str(wrong.value)


def test_rejects_can_be_parsed(url):
    found = list_errors(url, [b"\0\0\0\0\0" + Path(__file__).read_bytes()[:20], b"\0\xff\xff\xff\xff"])
    assert [Reject.parse(text).code for text in found] == ["MALFORMED", "UNKNOWN_SCHEMA"]
