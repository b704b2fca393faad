"""Masked outbox events: they decode like the original events."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from support.masked_records import (
    CUT,
    FIXED,
    HMAC,
    NOTHING,
    compute_hmac,
    decode_changes,
    get_stored_record,
    list_visible_values,
)

from adapters.decoders.debezium_outbox import DebeziumOutboxDecoder
from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem

ORDER = "outbox.event.order"
MASKS = {"aggregateid": HMAC, "payload.email": HMAC, "payload.phone": CUT, "payload.card": NOTHING, "payload.name": FIXED}
PAYLOAD = {
    **{"email": "alice@example.com", "phone": "0176-5511", "card": {"number": "4711-4711"}, "name": "Alice Meier"},
    **{"total": 1.50, "none": None},
}
SECRETS = ("alice@example.com", "0176-5511", "4711-4711", "Alice Meier", "47110815")
SOURCE = {"connector": "postgresql", "name": "shop", "db": "shop", "table": "outbox", "ts_us": 1, "txId": 9}


def decoder(masks: Any = MASKS, **options: Any) -> Any:
    made = DebeziumOutboxDecoder({"private": {ORDER: masks, "outbox.event.open": {}}, **options})
    return pickle.loads(pickle.dumps(made))


def frame(*records: Any) -> pa.Table:
    rows = [{"topic": "t", "partition": 0, "offset": n, "timestamp": 5} | record for n, record in enumerate(records)]
    return pa.Table.from_pylist(rows, RAW)


def change(payload: Any = PAYLOAD, op: str = "c", schema: bool = True, text: bool = True, **more: Any) -> dict[str, Any]:
    """A row of the outbox table, with a column that is none of an event."""
    row = {"id": "e1", "aggregatetype": "order", "aggregateid": 47110815, "type": "Placed", "note": "alice@example.com"}
    row |= {"payload": json.dumps(payload) if text else payload, **more}
    images = {"before": row, "after": None} if op == "d" else {"before": None, "after": row}
    whole = {**images, "source": {**SOURCE, "query": "... alice@example.com"}, "op": op, "more": "alice@example.com"}
    key = {"schema": {"type": "struct"}, "payload": {"id": "e1", "owner": "alice@example.com"}}
    value = {"schema": {"type": "struct", "doc": "alice@example.com"}, "payload": whole} if schema else whole
    return {"value": json.dumps(value).encode(), "key": json.dumps(key).encode()}


def make_routed_event(
    payload: Any = PAYLOAD, topic: str = ORDER, key: bytes | None = b'"47110815"', **headers: str
) -> dict[str, Any]:
    """An event of EventRouter."""
    names = {"id": "e1", "eventType": "Placed", "identity": "alice@example.com", **headers}
    told = [{"name": name, "value": text.encode()} for name, text in names.items()]
    value = payload if payload is None or isinstance(payload, bytes) else json.dumps(payload).encode()
    return {"topic": topic, "key": key, "value": value, "headers": told}


def wrap_payload(payload: Any) -> bytes:
    return json.dumps({"schema": {"type": "struct", "doc": "alice@example.com"}, "payload": payload}).encode()


FORMS = [
    *(change(schema=schema, text=text) for schema in (True, False) for text in (True, False)),
    change(op="r"),
    make_routed_event(),
    make_routed_event(json.dumps(PAYLOAD)),
    make_routed_event(wrap_payload(PAYLOAD)),
    make_routed_event(wrap_payload(json.dumps(PAYLOAD))),
]


@pytest.mark.parametrize("record", FORMS)
def test_masked_event_decodes_like_the_original(record: Any) -> None:
    by, records = decoder(), frame(record)
    veiled = by.mask_records(records)
    assert list_visible_values(SECRETS, veiled) == []
    (row,) = decode_changes(veiled, by)
    assert [row] == decode_changes(records, by)
    assert by.mask_records(veiled).equals(veiled)
    assert (row["id"], row["aggregateid"], row["type"]) == ("e1", compute_hmac("47110815"), "Placed")
    assert json.loads(row["payload"]) == {
        **{
            "email": compute_hmac("alice@example.com"),
            "phone": f"01-{compute_hmac('0176-5511')[:16]}",
            "card": None,
            "name": "*",
        },
        **{"total": 1.5, "none": None},
    }
    assert (
        list_visible_values(
            SECRETS, pa.table({"key": by.envelope(records)["after"].cast(pa.binary()), "value": veiled["value"]})
        )
        == []
    )


@pytest.mark.parametrize(
    "record", [change({"email": 1.50, "phone": 7, "name": True}), make_routed_event({"email": 1.5, "phone": None})]
)
def test_values_of_other_types_are_masked_by_their_json_text(record: Any) -> None:
    by = decoder()
    (row,) = decode_changes(frame(record), by)
    found = json.loads(row["payload"])
    assert found["email"] == compute_hmac("1.5")
    assert found["phone"] in (None, f"7-{compute_hmac('7')[:16]}")


@pytest.mark.parametrize(
    "masks", [{"id": HMAC}, {"type": HMAC, "payload": NOTHING}, {"type": NOTHING}, {"aggregateid": CUT, "type": FIXED}]
)
def test_whole_columns(masks: Any) -> None:
    by, records = decoder(masks), frame(change(), make_routed_event())
    veiled = by.mask_records(records)
    rows = decode_changes(veiled, by)
    assert rows == decode_changes(records, by)
    assert by.mask_records(veiled).equals(veiled)
    kept = {"id": compute_hmac("e1"), "type": compute_hmac("Placed")}
    for row in rows:
        for name, mask in masks.items():
            expected = {HMAC: kept.get(name), NOTHING: None, FIXED: "*", CUT: f"47-{compute_hmac('47110815')[:16]}"}[mask]
            assert row[name] == expected
    if "payload" in masks:
        assert list_visible_values(SECRETS[:4], veiled) == []


@pytest.mark.parametrize("payload", [["alice@example.com"], '"alice@example.com"', 47110815])
@pytest.mark.parametrize("make", [change, make_routed_event])
def test_payload_without_fields_is_rejected_before_and_after_masking(payload: Any, make: Any) -> None:
    by, records = decoder(), frame(make(payload))
    veiled = by.mask_records(records)
    assert list_visible_values(SECRETS, veiled) == []
    (row,), (again,) = decode_changes(records, by), decode_changes(veiled, by)
    assert row["_error"] == again["_error"] and "no JSON object" in row["_error"]
    assert by.mask_records(veiled).equals(veiled)


@pytest.mark.parametrize("make", [change, make_routed_event])
def test_event_without_payload_stays_without_payload(make: Any) -> None:
    by, records = decoder(), frame(make(None))
    (row,) = decode_changes(by.mask_records(records), by)
    assert (row["payload"], row["aggregateid"]) == (None, compute_hmac("47110815"))
    assert [row] == decode_changes(records, by)


def test_deletes_and_truncates_are_redacted() -> None:
    by = decoder()
    for op in ("d", "t"):
        found = get_stored_record(frame(change(op=op)), by)
        assert list_visible_values(SECRETS, by.mask_records(frame(change(op=op)))) == []
        assert by.route(frame(found))["ignored"].to_pylist() == by.route(frame(change(op=op)))["ignored"].to_pylist()
    gone = get_stored_record(frame({"key": b"alice@example.com", "value": None}), by)
    assert (b"withheld" in gone["key"], gone["value"]) == (True, None)


@pytest.mark.parametrize(
    "record",
    [
        *(change(op="u"), change(aggregatetype=None), change(id=None)),
        *({"value": b"alice@example.com"}, make_routed_event(b"alice@example.com"), make_routed_event(id="")),
        *(
            {"value": b'{"op":"c","source":{},"after":{"payload":"alice@example.com"}'},
            make_routed_event(b"x", topic="elsewhere"),
        ),
    ],
)
def test_unreadable_records_are_redacted(record: Any) -> None:
    by = decoder()
    veiled = by.mask_records(frame(record))
    assert list_visible_values(SECRETS, veiled) == []
    assert b"withheld" in veiled["value"][0].as_py()
    assert decode_changes(veiled, by)[0]["_error"]


def test_records_of_other_tables_are_unchanged() -> None:
    by = decoder()
    for record in (
        make_routed_event(topic="outbox.event.open"),
        make_routed_event(b"?", topic="outbox.event.open"),
        change(aggregatetype="open"),
    ):
        assert by.mask_records(frame(record)).equals(frame(record))


def test_mask_of_an_unknown_or_key_column_is_refused() -> None:
    for masks, told in (({"email": HMAC}, "does not have"), ({"id": CUT}, "masks a key column")):
        with pytest.raises(ConfigProblem, match=told):
            decoder(masks).learn(frame(change()), ORDER, "outbox")
