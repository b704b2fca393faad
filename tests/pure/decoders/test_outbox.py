"""Events of an outbox table in each form of a record, and the resulting events."""

import json

import pyarrow as pa
import pytest

from adapters.decoders.debezium_outbox import DebeziumOutboxDecoder
from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem

ROW = {"id": "e1", "aggregatetype": "order", "aggregateid": 7, "type": "OrderPlaced", "payload": '{"a": 1.50}'}
SOURCE = {
    "connector": "postgresql",
    "name": "shop",
    "db": "shop",
    "schema": "public",
    "table": "outbox",
    "ts_us": 1,
    "txId": 9,
}
FIELDS = ("id", "aggregatetype", "aggregateid", "type", "payload")
SCHEMA = {"type": "string", "optional": True, "name": "io.debezium.data.Json", "version": 1}


def change(op="c", schema=True, **row):
    payload = {"before": None, "after": ROW | row, "source": SOURCE, "op": op}
    return {"schema": {"type": "struct"}, "payload": payload} if schema else payload


def frame(*records):
    rows = [{"topic": "t", "partition": 0, "offset": n, "timestamp": 5} | record for n, record in enumerate(records)]
    return pa.Table.from_pylist(rows, RAW)


def raw(value):
    return {"value": json.dumps(value).encode()}


def make_routed_record(value, key=b'"7"', topic="outbox.event.order", **headers):
    names = [{"name": name, "value": text.encode()} for name, text in {"id": "e1", **headers}.items()]
    return {"topic": topic, "key": key, "value": value, "headers": names}


def events(*records, **options):
    """What each record becomes: its table and row, or the kind or reason."""
    decoder, raws = DebeziumOutboxDecoder(options), frame(*records)
    found = []
    for place, route in enumerate(decoder.route(raws).to_pylist()):
        if route["table"] is None:
            found.append(route["ignored"] or route["error"])
            continue
        spec = decoder.learn(raws, route["table"], route["fingerprint"])
        [row] = decoder.decode(raws.slice(place, 1), spec).to_pylist()
        assert row["_error"] is None and row["event_offset"] == row["_offset"] == place
        found.append((route["table"], tuple(row[name] for name in FIELDS)))
    return found


PLACED = ("outbox.event.order", ("e1", "order", "7", "OrderPlaced", '{"a": 1.50}'))


@pytest.mark.parametrize("schema", [True, False])
@pytest.mark.parametrize("op", ["c", "r"])
def test_row_of_the_outbox_table_is_an_event(op, schema):
    assert events(raw(change(op, schema))) == [PLACED]


def test_json_value_is_an_unchanged_payload():
    text = json.dumps(change(schema=False)).replace('"{\\"a\\": 1.50}"', '{"a":  1.50, "b": [12345678901234567890]}')
    [(_, row)] = events({"value": text.encode()})
    assert row[-1] == '{"a":  1.50, "b": [12345678901234567890]}'


BELOW_SCHEMA = json.dumps({"schema": SCHEMA, "payload": '{"a": 1.50}'}).encode()
EXPANDED = b'{"schema":{"type":"struct","fields":[]},"payload":{"a": 1.50}}'


@pytest.mark.parametrize("value", [BELOW_SCHEMA, EXPANDED, b'{"a": 1.50}', b'"{\\"a\\": 1.50}"'])
@pytest.mark.parametrize("key", [b"7", b'"7"', b'{"schema":{"type":"string"},"payload":"7"}'])
@pytest.mark.parametrize("header", [{"type": "OrderPlaced"}, {"eventType": '"OrderPlaced"'}])
def test_event_router_record_is_the_same_event(value, key, header):
    assert events(make_routed_record(value, key, **header)) == [PLACED]


def test_event_without_payload_has_none():
    assert events(make_routed_record(None, None)) == [("outbox.event.order", ("e1", "order", None, None, None))]
    assert [row[-1] for _, row in events(raw(change(payload=None)), make_routed_record(b"null"))] == [None, None]


@pytest.mark.parametrize("payload", ['{"schema": null, "payload": 1}', '{"schema": "v1", "payload": {"a": 1}}'])
def test_payload_that_looks_like_a_message_with_schema(payload):
    [(_, row)] = events(make_routed_record(payload.encode()))
    assert row[-1] == payload


def test_deletes_and_truncates_of_the_table_are_ignored():
    gone = {"payload": {"before": ROW, "after": None, "source": SOURCE, "op": "d"}, "schema": {"type": "struct"}}
    emptied = {"before": None, "after": None, "source": SOURCE, "op": "t"}
    assert events(raw(gone), raw(emptied), {"value": None}) == ["outbox delete", "outbox truncate", "tombstone"]


REJECTED = [
    (raw(change("u")), "UNKNOWN_OPERATION: it is an update of an outbox row: an event never changes"),
    (raw(change("x")), "UNKNOWN_OPERATION: it is no insert of an outbox row"),
    (raw(change(payload="{secret")), "MALFORMED: its payload is not JSON"),
    (raw(change(payload="")), "MALFORMED: its payload is not JSON"),
    (raw(change(id=None)), "NULL_KEY: the event has no id"),
    (raw(change(id="")), "NULL_KEY: the event has no id"),
    (raw(change(type=True)), "MALFORMED: column 'type' of its outbox table is neither text nor a whole number"),
    (raw(change(aggregateid=1.5)), "MALFORMED: column 'aggregateid' of its outbox table is neither text nor a whole number"),
    *((raw(change(aggregatetype=name)), "MALFORMED: its aggregatetype is NULL, or cannot be part of a table's name")
      for name in (None, "", "../x", "a b", "a..b", ".a", "a.", "a" * 201, 'a"b')),
    (raw({"op": "c", "source": {}, "after": None}), "MALFORMED: it carries no row: its after image is null"),
    (raw({"op": "c", "source": {}, "after": {"id": 1}}),
     "MALFORMED: its row has no column 'aggregatetype', which every outbox table needs"),
    (raw({"a": 1}), "MALFORMED: it is no change event of an outbox table, and has no header id as EventRouter's have"),
    (make_routed_record(b"secret"), "MALFORMED: its payload is not JSON"),
    (make_routed_record(b'"secret"'), "MALFORMED: its payload is not JSON"),
    (make_routed_record(b"{}", id=""), "NULL_KEY: the event has no id"),
    (make_routed_record(b"{}", key=b"\xff"), "MALFORMED: its key, or its header of the id or the type, is not text"),
]  # fmt: skip


@pytest.mark.parametrize(("record", "reason"), REJECTED)
def test_invalid_events_are_rejected(record, reason):
    assert events(record) == [reason]


def test_configured_table_and_column_names():
    row = {"event_id": 5, "kind": "Order.v1", "ref": "x", "name": "n", "body": "[1]"}
    names = {"id": "event_id", "aggregatetype": "kind", "aggregateid": "ref", "type": "name", "payload": "body"}
    one = {"op": "c", "source": SOURCE, "after": row}
    outbox = {"route_to": "events.{aggregatetype}.v1", "columns": names}
    told = events(
        raw(one), make_routed_record(b"{}", topic="events.a.b.v1"), make_routed_record(b"{}", topic="other"), outbox=outbox
    )
    assert told[0] == ("events.Order.v1.v1", ("5", "Order.v1", "x", "n", "[1]"))
    assert [(table, values[1]) for table, values in told[1:]] == [("events.a.b.v1", "a.b"), ("other", None)]


@pytest.mark.parametrize("route", ["outbox", "a.{aggregatetype}.{aggregatetype}", "{aggregatetype}.{id}"])
def test_route_must_have_the_aggregate_once(route):
    with pytest.raises(ConfigProblem, match=r"must hold \{aggregatetype\} once"):
        DebeziumOutboxDecoder({"outbox": {"route_to": route}})


def test_repeated_event_has_the_sequence_of_the_first():
    decoder, raws = DebeziumOutboxDecoder({"epoch": 3}), frame(raw(change()), raw(change()), make_routed_record(b"{}"))
    spec = decoder.learn(raws, "outbox.event.order", "outbox")
    changes = decoder.decode(raws, spec).to_pylist()
    assert spec.keys == ("id",) and [c["_seq_1"] for c in changes] == [0, 0, 0]
    assert [c["_ts"].timestamp() for c in changes] == [1e-06, 1e-06, 0.005] and changes[0]["_tx"] == "9"


def test_envelope_has_rows_and_payloads():
    row, payload, bad = (
        DebeziumOutboxDecoder()
        .envelope(frame(raw(change()), make_routed_record(b'{"a": 1}'), make_routed_record(b"x")))
        .to_pylist()
    )
    assert (row["source"], row["table"], row["op"], json.loads(row["after"])) == ("shop", "outbox.event.order", "c", ROW)
    assert (payload["table"], payload["after"], payload["error"]) == ("outbox.event.order", '{"a": 1}', None)
    assert bad["error"] == "MALFORMED: its payload is not JSON" and bad["table"] is None
