"""Private columns of rows that ExtractNewRecordState flattened: what is stored is the change event of the row, masked."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from support.debezium_events import (
    ID,
    encode_with_schema,
    make_change_event,
    make_column,
    make_event_key,
    make_payload,
    make_raw_records,
)
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

from adapters.decoders.debezium_json import DebeziumJsonDecoder

TEXT = ("email", "note", "__deleted", "__op", "__transaction_id")
TYPES = {"id": ID, "day": make_column("day", "int32"), **{name: make_column(name, "string") for name in TEXT}}
DECLARED = {"public.t": {"id": "int64", "email": "string", "day": "int32"}}
ROW = {"id": 47110815, "email": "alice@example.com", "day": 7}
MORE = {"__deleted": "false", "__op": "u", "__source_lsn": 9, "__source_ts_ms": 5}
PRIVATE = ("alice@example", "bob@example", "47110815")
BOTH = pytest.mark.parametrize("schema", [True, False])


def flat(schema: bool, **row: Any) -> bytes:
    fields = [TYPES.get(name) or make_column(name, "string" if isinstance(row[name], str) else "int64") for name in row]
    whole = {"type": "struct", "fields": fields, "optional": False, "name": "cdc.public.t.Value"}
    return encode_with_schema(whole, row) if schema else json.dumps(row).encode()


def make_key(schema: bool, **values: Any) -> bytes:
    return make_event_key(**values) if schema else json.dumps(values).encode()


def decoder(masks: Any, **more: Any) -> Any:
    private = {"private": {"public.t": masks, "public.other": {}}}
    made = DebeziumJsonDecoder({"flattened": True, "keys": {"public.t": ["id"]}, "schema": DECLARED, **private, **more})
    return pickle.loads(pickle.dumps(made))


def rows(schema: bool) -> list[bytes | None]:
    return [
        flat(schema, **ROW, **MORE),
        flat(schema, **ROW | {"email": "__debezium_unavailable_value"}, **MORE | {"__source_lsn": 10}),
        flat(schema, **ROW | {"email": None}, **MORE | {"__source_lsn": 11, "__op": "c"}),
        flat(schema, **ROW, **MORE | {"__source_lsn": 12, "__op": "d", "__deleted": "true"}),
        make_change_event([ID, TYPES["email"], TYPES["day"]], after=ROW, at=13),
        json.dumps(make_payload("c", ROW, at=14)).encode(),
    ]


@BOTH
def test_masked_row_decodes_like_the_original(schema: bool) -> None:
    by = decoder({"id": HMAC, "email": CUT})
    records = make_raw_records(rows(schema), [make_key(schema, id=ROW["id"])] * 6)
    veiled = by.mask_records(records)
    assert list_visible_values(PRIVATE, veiled) == []
    assert decode_changes(veiled, by) == decode_changes(records, by)
    assert by.mask_records(veiled).equals(veiled)
    assert {row["id"] for row in decode_changes(veiled, by)} == {compute_hmac("47110815")}
    assert [compute_hmac("47110815").encode() in told for told in veiled["key"].to_pylist()] == [True] * 6


@BOTH
@pytest.mark.parametrize("masks", [{"email": FIXED}, {"email": NOTHING}, {"email": HMAC, "day": HMAC}, {"day": FIXED}])
def test_each_mask(schema: bool, masks: Any) -> None:
    by = decoder(masks)
    records = make_raw_records([flat(schema, **ROW, **MORE)], [make_key(schema, id=ROW["id"])])
    (row,) = decode_changes(by.mask_records(records), by)
    assert [row] == decode_changes(records, by)
    kept = {FIXED: "*", NOTHING: None}
    for name, mask in masks.items():
        assert row[name] == kept.get(mask, compute_hmac(str(ROW[name])))


@BOTH
def test_unknown_added_fields_are_redacted(schema: bool) -> None:
    """Texts that are no order, table or operation may repeat values; a column must be declared to stay."""
    more = {
        **MORE,
        "__source_query": "... alice@example.com",
        "__query": "... alice@example.com",
        "__mine": "bob@example.com",
    }
    row = flat(schema, **ROW, **more)
    headers = {0: {"__source_query": b"alice@example.com", "email": b"alice@example.com", "__source_txId": b"7"}}
    records = make_raw_records([row], [make_key(schema, id=ROW["id"])], headers)
    by = decoder({"id": HMAC, "email": HMAC})
    veiled = by.mask_records(records)
    assert list_visible_values(PRIVATE, veiled) == []
    assert decode_changes(veiled, by) == decode_changes(records, by)
    assert not {"__query", "__mine"} & decode_changes(records, by)[0].keys()
    told = decoder({"id": HMAC, "email": HMAC}, schema={"public.t": DECLARED["public.t"] | {"__mine": "string"}})
    assert decode_changes(told.mask_records(records), told)[0]["__mine"] == "bob@example.com"


def test_undeclared_fields_are_redacted_without_a_schema() -> None:
    records = make_raw_records([flat(False, **ROW, **MORE, note="alice@example.com")], [make_key(False, id=ROW["id"])])
    by = decoder({"id": HMAC, "email": HMAC})
    assert list_visible_values(PRIVATE, by.mask_records(records)) == []
    with_note = make_raw_records([flat(True, **ROW, **MORE, note="a column")], [make_key(True, id=ROW["id"])])
    assert decode_changes(by.mask_records(with_note), by)[0]["note"] == "a column"


def test_private_column_with_a_metadata_name_is_masked() -> None:
    by = decoder({"__name": HMAC}, schema={"public.t": DECLARED["public.t"] | {"__name": "string"}})
    row = flat(False, **ROW | {"email": None}, **MORE, __name="alice@example.com")
    assert list_visible_values(PRIVATE[:1], by.mask_records(make_raw_records([row]))) == []


@BOTH
def test_value_of_another_type_is_rejected_after_masking_too(schema: bool) -> None:
    by = decoder({"id": HMAC})
    for wrong in ("alice@example.com", 2**70, 1.5):
        records = make_raw_records([flat(schema, **ROW | {"id": wrong, "email": None}, **MORE)], [make_key(schema, id=1)])
        veiled = by.mask_records(records)
        assert list_visible_values(PRIVATE, veiled) == []
        assert [row["_error"] is None for row in decode_changes(veiled, by)] == [False], wrong


@pytest.mark.parametrize(
    "value", [b"alice@example.com", b'{"email": "alice@example.com"', b'["alice@example.com"]', b'"alice@example.com"']
)
def test_unreadable_records_are_redacted(value: bytes) -> None:
    found = get_stored_record(make_raw_records([value]), decoder({"email": HMAC}))
    assert b"withheld" in found["value"]
    assert b"example" not in found["value"]


def test_other_tables_and_control_records_are_unchanged() -> None:
    by = decoder({"email": HMAC})
    other = make_raw_records([flat(False, **ROW, __mine="x")], topic="cdc.public.other")
    assert by.mask_records(other).equals(other)
    beat = make_raw_records([b'{"ts_ms":1}'], [None], topic="__debezium-heartbeat.cdc")
    assert by.mask_records(beat)["value"].to_pylist() == beat["value"].to_pylist()
    ddl = make_raw_records(
        [b'{"source":{},"databaseName":"a","ddl":"alice@example.com","tableChanges":[]}'], [None], topic="cdc"
    )
    assert list_visible_values(PRIVATE, by.mask_records(ddl)) == []


@BOTH
def test_old_keys_and_tombstones_are_masked(schema: bool) -> None:
    by = decoder({"id": HMAC})
    old = {0: {"__debezium.oldkey": make_key(schema, id=47110815)}}
    moved = flat(schema, **ROW | {"id": 2}, **MORE | {"__op": "c"})
    records = make_raw_records([moved, None], [make_key(schema, id=2), make_key(schema, id=47110815)], old)
    veiled = by.mask_records(records)
    assert list_visible_values(PRIVATE[2:], veiled) == []
    assert decode_changes(veiled.slice(0, 1), by) == decode_changes(records.slice(0, 1), by)
    assert decode_changes(veiled.slice(0, 1), by)[0]["_moved_from"] == {"id": compute_hmac("47110815")}
    deleting = decoder({"id": HMAC}, tombstones="delete")
    assert [row["id"] for row in decode_changes(deleting.mask_records(records), deleting)] == [
        compute_hmac("2"),
        compute_hmac("47110815"),
    ]


@BOTH
def test_hash_of_a_date_is_that_of_its_text(schema: bool) -> None:
    """Also of a key: in the row, in the message key and in the header with the old key."""
    date = make_column("day", "int32", "io.debezium.time.Date", optional=False)
    by = decoder({"day": HMAC}, schema={"public.t": {"day": "date32", "email": "string"}}, keys={"public.t": ["day"]})
    row = {"day": 19782, "email": "a", "__op": "c", "__source_lsn": 9}
    fields = [date, make_column("email", "string"), make_column("__op", "string"), make_column("__source_lsn", "int64")]
    whole = {"type": "struct", "fields": fields, "optional": False, "name": "cdc.public.t.Value"}
    value, of_key = json.dumps(row).encode(), json.dumps({"day": 19782}).encode()
    if schema:
        value, of_key = encode_with_schema(whole, row), make_event_key([date], day=19782)
    records = make_raw_records([value], [of_key], {0: {"__debezium.oldkey": json.dumps({"day": 19783}).encode()}})
    veiled = by.mask_records(records)
    (found,) = decode_changes(veiled, by)
    assert [found] == decode_changes(records, by)
    assert (found["day"], found["_moved_from"]) == (compute_hmac("2024-02-29"), {"day": compute_hmac("2024-03-01")})
    assert compute_hmac("2024-02-29").encode() in veiled["key"][0].as_py()
