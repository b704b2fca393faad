"""Metadata of records does not repeat private values: keys, headers, source blocks, and records that are not changes."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from servers.schema_registry import API
from support.avro_of_connect import Avro
from support.debezium_events import make_change_event, make_column, make_event_key, make_payload
from support.masked_records import HMAC, compute_hmac, read_all_text

from adapters.decoders.debezium_avro import DebeziumAvroDecoder
from adapters.decoders.debezium_json import DebeziumJsonDecoder
from replicator.domain.change import RAW
from replicator.domain.transform.columns import Mask

ID, EMAIL = make_column("id", "int32", optional=False), make_column("email", "string")
ROW = {"id": 1, "email": "sentinel-1"}
TYPED = make_change_event([ID, EMAIL], after=ROW)
BARE = json.dumps(make_payload("c", ROW)).encode()
KEY = make_event_key([ID], id=1)
MASKS = {"public.t": {"email": HMAC}, "public.*": {}}


def decoder(private: dict[str, dict[str, Mask]] | None = None, **more: Any) -> DebeziumJsonDecoder:
    return DebeziumJsonDecoder({"private": private or MASKS, **more})


def frame(value: Any, key: bytes | None = KEY, topic: str = "cdc.public.t", headers: Any = None) -> pa.Table:
    text = json.dumps(value).encode() if isinstance(value, dict) else value
    place = {"topic": topic, "partition": 0, "offset": 0, "timestamp": None, "headers": headers}
    return pa.Table.from_pylist([place | {"key": key, "value": text}], RAW)


def store_record(records: pa.Table, by: Any = None) -> dict[str, Any]:
    """The stored record, which contains no sentinel. Storing it again changes nothing, except for records without a
    schema, which do not show that they are masked."""
    by = by or decoder()
    masked = by.mask_records(records)
    assert b"sentinel" not in read_all_text(masked) + repr(by.envelope(masked).to_pylist()).encode()
    assert by.mask_records(masked).equals(masked) or not (masked["value"][0].as_py() or b"").startswith(b'{"schema"')
    (row,) = masked.to_pylist()
    found: dict[str, Any] = row
    return found


@pytest.mark.parametrize("value", [TYPED, BARE], ids=["typed", "bare"])
@pytest.mark.parametrize(
    "wrong",
    [
        b'{"payload":"sentinel"}',
        b'{"payload":{"email":"sentinel"}}',
        b'{"customer":"sentinel"}',
        b'{"id":1,"mail":"sentinel"}',
        b'{"schema":null,"payload":{"mail":"sentinel"}}',
        make_event_key([make_column("mail", "string")], mail="sentinel"),
        b'{"ema\\u0069l":"sentinel","x":1}',
    ],
)
def test_key_with_more_than_columns_is_not_stored(value: bytes, wrong: bytes) -> None:
    """Transforms such as ValueToKey and ReplaceField write such keys."""
    assert store_record(frame(value, wrong))["key"] is None


@pytest.mark.parametrize("mine", [KEY, b'{"id": 1}', b'{"schema":null,"payload":{"id":1}}'])
def test_key_of_columns_is_stored(mine: bytes) -> None:
    assert store_record(frame(TYPED, mine))["key"] == mine
    masked = f'{{"email":"{compute_hmac("sentinel")}"}}'.encode()
    assert store_record(frame(BARE, b'{"email":"sentinel"}'))["key"] == masked


def test_null_record_has_only_a_key_of_the_columns_of_its_topic() -> None:
    """While the columns of the topic are unknown, a key of plain values is stored."""
    assert store_record(frame(None, b'{"id":1}'))["key"] == b'{"id":1}'
    assert store_record(frame(None, b'{"x":{"email":"sentinel"}}'))["key"] is None
    assert store_record(frame(None, b'{"payload":"sentinel"}'))["key"] is None
    by = decoder()
    store_record(frame(TYPED), by)
    assert store_record(frame(None, b'{"id":1}'), by)["key"] == b'{"id":1}'
    assert store_record(frame(None, b'{"mail":"sentinel"}'), by)["key"] is None


@pytest.mark.parametrize("where", ["typed", "bare"])
def test_statements_in_source_blocks_are_not_stored(where: str) -> None:
    """Oracle's connector repeats values in `redo_sql`, those of MySQL and MariaDB in `query`. Other unknown fields are
    dropped too. Fields for order and position stay."""
    fields = {"redo_sql": "... 'sentinel'", "query": "'sentinel'", "later": {"a": "sentinel"}, "scn": "77"}
    value = (
        make_change_event([ID, EMAIL], after=ROW, source=fields)
        if where == "typed"
        else make_payload("c", ROW, source=fields)
    )
    whole = json.loads(store_record(frame(value))["value"])
    block = (whole["payload"] if where == "typed" else whole)["source"]
    before = make_payload("c", ROW)["source"]
    assert {name: block[name] for name in (*before, "scn")} == {**before, "scn": "77"}
    assert {block[name] for name in fields if name != "scn"} == {None}


def test_values_of_foreign_headers_are_not_stored() -> None:
    """Transforms such as HeaderFrom and InsertHeader write such headers."""
    headers = [
        {"name": "email", "value": b"sentinel"},
        {"name": "__debezium.oldkey", "value": b'{"email":"sentinel","id":2}'},
        {"name": "__debezium.newkey", "value": b'"sentinel"'},
        {"name": "__debezium.context.taskId", "value": b"0"},
        {"name": "nothing", "value": None},
        {"name": "replicator.note", "value": b"sentinel"},
    ]
    found = store_record(frame(TYPED, headers=headers))["headers"]
    assert [h["name"] for h in found] == [h["name"] for h in headers]
    old = f'{{"email":"{compute_hmac("sentinel")}","id":2}}'.encode()
    assert [h["value"] for h in found] == [None, old, None, b"0", None, None]
    fields = {"redo_sql": "'sentinel'"}
    others = frame(make_change_event([ID, EMAIL], after=ROW, source={**fields, "table": "u"}), b'{"x":1}', headers=headers)
    for private in (MASKS, {"public.t": {"email": HMAC}}):
        assert decoder(private).mask_records(others).equals(others)


CHANGES = {"source": {"schema": "public", "query": "'sentinel'"}, "ts_ms": 1, "databaseName": "shop", "schemaName": "public"}
CONTROL: dict[str, tuple[str, dict[str, Any]]] = {
    "schema_change": ("cdc", {**CHANGES, "ddl": "ALTER ... DEFAULT 'sentinel'", "tableChanges": [{"id": "sentinel"}]}),
    "message": ("cdc.message", {"op": "m", "source": {}, "ts_ms": 1, "message": {"prefix": "a", "content": "sentinel"}}),
    "notification": (
        "notifications",
        {"id": "1", "aggregate_type": "Incremental Snapshot", "type": "IN_PROGRESS", "additional_data": {"max": "sentinel"}},
    ),
    "signal": ("signals", {"type": "execute-snapshot", "data": {"filter": "email = 'sentinel'"}}),
    "heartbeat": ("cdc.heartbeat", {"ts_ms": 1, "email": "sentinel"}),
}


@pytest.mark.parametrize("kind", CONTROL)
def test_records_that_are_not_changes_lose_free_text(kind: str) -> None:
    """Their kind and their fields stay."""
    topic, value = CONTROL[kind]
    by, records = decoder(), frame(value, b'{"email":"sentinel"}', topic, [{"name": "email", "value": b"sentinel"}])
    assert by.route(records)["ignored"].to_pylist() == [kind]
    found = store_record(records, by)
    assert by.route(frame(found["value"], topic=topic)).equals(by.route(frame(value, topic=topic)))
    stored = json.loads(found["value"])
    assert stored.keys() == value.keys()
    whole = {name for name, content in stored.items() if content is not None}
    assert whole >= value.keys() & {"ts_ms", "databaseName", "type", "op"}


def test_transaction_markers_are_stored_unchanged() -> None:
    value = json.dumps({"status": "END", "id": "5:1", "event_count": 1, "data_collections": [], "ts_ms": 5}).encode()
    records = frame(value, b'{"id":"5:1"}', "cdc.transaction")
    assert decoder().mask_records(records).equals(records)


def test_records_that_are_not_changes_lose_free_text_in_avro(registry: str) -> None:
    by: Any = DebeziumAvroDecoder({"registry": {"url": f"{registry}{API}"}, "private": MASKS})
    fields = [make_column("databaseName", "string"), make_column("ddl", "string")]
    schema = {"type": "struct", "fields": fields, "name": "io.debezium.connector.mysql.SchemaChangeValue"}
    value = json.dumps({"schema": schema, "payload": {"databaseName": "shop", "ddl": "'sentinel'"}}).encode()
    avro = Avro(f"{registry}{API}")
    unsaid: Any = DebeziumAvroDecoder({"registry": {"url": f"{registry}{API}"}, "private": {"public.u": {"email": HMAC}}})
    assert unsaid.mask_records(avro.frame(frame(TYPED))).equals(avro.frame(frame(TYPED)))
    records = avro.frame(frame(value, None, "cdc"))
    assert by.route(records)["ignored"].to_pylist() == ["schema_change"]
    found = store_record(records, by)
    assert json.loads(found["value"])["payload"] == {"databaseName": "shop", "ddl": None}
    assert by.route(by.mask_records(records)).equals(by.route(records))


@pytest.mark.parametrize(
    ("private", "topic", "is_kept"),
    [
        ({"public.t": {"email": HMAC}, "public.*": {}}, "cdc.public.other", True),
        ({"public.t": {"email": HMAC}, "*": {}}, "cdc.public.t", False),
        ({"public.t": {"email": HMAC}, "*": {}}, "cdc", False),
        ({"public.t": {"email": HMAC}, "*": {}}, "all.tables", False),
        ({"public.künden": {"email": HMAC}, "*": {}}, "cdc.public.k_nden", False),
        ({"public.kü*": {"email": HMAC}, "*": {}}, "cdc.public.k_nden", False),
        ({"public.k*": {"email": HMAC}, "*": {}}, "cdc.public.other", True),
        ({"public.my.t": {"email": HMAC}, "*": {}}, "cdc.public.my.t", False),
        ({r"^public\.kü.*": {"email": HMAC}, "*": {}}, "cdc.public.k_nden", False),
        ({r"^public\.kü.*": {"email": HMAC}, "*": {}}, "cdc.public.other", True),
    ],
)
def test_topic_decides_for_unreadable_records(private: Any, topic: str, is_kept: bool) -> None:
    """Connectors write `_` for characters that topics cannot have. Transforms merge several tables into one topic. Another
    record of the topic names its table."""
    by = decoder(private)
    by.route(frame(make_change_event([ID], after={"id": 1}, source={"table": "other"}), None, topic))
    for records in (frame(b"sentinel", None, topic), frame(None, b'{"x":{"email":"sentinel"}}', topic)):
        assert by.mask_records(records).equals(records) == is_kept
        assert is_kept or b"sentinel" not in read_all_text(by.mask_records(records))


def test_records_without_schema_are_masked_once() -> None:
    """A header marks masked records."""
    types = {"id": "int64", "email": "string"}
    by = decoder({"public.t": {"id": HMAC, "email": HMAC}}, schema={"public.t": types})
    records = pa.concat_tables(
        [frame(BARE, b'{"id":1}'), frame(json.dumps(make_payload("d", None, ROW)).encode(), b'{"id":1}')]
    )
    for some in (records, by.mask_records(records), pa.concat_tables([records, by.mask_records(records), records])):
        spec = by.learn(some, "public.t", by.route(some)["fingerprint"][0].as_py())
        rows = by.decode(some, spec).to_pylist()
        assert {(row["_error"], row["id"], row["email"]) for row in rows} == {
            (None, compute_hmac("1"), compute_hmac("sentinel-1"))
        }
        assert [row["_op"] for row in rows] == ["c", "d"] * (len(rows) // 2)
    assert by.mask_records(by.mask_records(records)).equals(by.mask_records(records))


def test_later_mask_applies_to_stored_records_without_schema() -> None:
    options = {"schema": {"public.t": {"id": "int64", "email": "string"}}}
    first, later = (decoder({"public.t": masks}, **options) for masks in ({"id": HMAC}, {"id": HMAC, "email": HMAC}))
    records = first.mask_records(frame(BARE, b'{"id":1}'))
    spec = later.learn(records, "public.t", later.route(records)["fingerprint"][0].as_py())
    (row,) = later.decode(records, spec).to_pylist()
    assert (row["_error"], row["id"], row["email"]) == (None, compute_hmac("1"), compute_hmac("sentinel-1"))


@pytest.mark.parametrize("wrong", ["one", "7.5", 1.5, True, 2**70])
def test_rejected_record_without_schema_is_rejected_again(wrong: Any) -> None:
    by = decoder({"public.t": {"id": HMAC}}, schema={"public.t": {"id": "int64", "email": "string"}})
    records = frame(json.dumps(make_payload("c", {**ROW, "id": wrong})).encode(), b'{"id":1}')
    spec = by.learn(records, "public.t", by.route(records)["fingerprint"][0].as_py())
    (live,), (again,) = (by.decode(some, spec).to_pylist() for some in (records, by.mask_records(records)))
    assert (live["_error"] is None, again["_error"] is None) == (False, False)


def test_private_column_may_be_missing_from_records() -> None:
    """A declared column was added later or dropped. An undeclared one would be a misspelt name."""
    types = {"id": "int64", "email": "string", "phone": "string"}
    by = decoder({"public.t": {"email": HMAC, "phone": HMAC}}, schema={"public.t": types})
    row = make_change_event([ID], after={"id": 1})
    for value, names in ((row, ["id"]), (TYPED, ["id", "email"])):
        routed = by.route(frame(value))["fingerprint"][0].as_py()
        spec = by.learn(frame(value), "public.t", routed)
        assert list(spec.column_names) == names
        (found,) = by.decode(frame(value), spec).to_pylist()
        masked = compute_hmac("sentinel-1") if "email" in names else None
        assert (found["id"], found["_error"], found.get("email")) == (1, None, masked)
