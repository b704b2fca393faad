"""Rows that ExtractNewRecordState flattened."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from support.debezium_events import (
    ID,
    encode_with_schema,
    get_error_code,
    make_change_event,
    make_column,
    make_event_key,
    make_raw_records,
)

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from replicator.domain.errors import ConfigProblem
from replicator.domain.policy.policies import plan_for

NAME = make_column("name", "string")
TEXTS = ("__deleted", "__op", "__table", "__transaction_id")
ADDED = [
    *(make_column(name, "string") for name in TEXTS),
    *(make_column(f"__source_{name}", "int64") for name in ("lsn", "ts_ms")),
]
DECLARED = {"public.t": {"id": "int64", "name": "string"}}


def flat(*, schema: bool, named: str = "cdc.public.t.Value", columns: Any = (), **row: Any) -> bytes:
    if not schema:
        return json.dumps(row).encode()
    known = [ID, NAME, *ADDED, *columns]
    fields = [f for f in known if f["field"] in row]
    return encode_with_schema({"type": "struct", "fields": fields, "optional": False, "name": named}, row)


def keys(schema: bool, *ids: int) -> list[bytes | None]:
    return [make_event_key(id=i) if schema else json.dumps({"id": i}).encode() for i in ids]


def changes(values: list[bytes | None], schema: bool = True, ids: Any = None, headers: Any = None, **options: Any) -> Any:
    frame = make_raw_records(values, keys(schema, *(ids or [1] * len(values))), headers)
    decoder = pickle.loads(pickle.dumps(DebeziumJsonDecoder({"flattened": True, "schema": DECLARED, **options})))
    routes = decoder.route(frame).to_pylist()
    assert {(r["table"], r["error"]) for r in routes} == {("public.t", None)}
    spec = decoder.learn(frame, "public.t", routes[0]["fingerprint"])
    assert spec.keys == ("id",)
    assert spec.column_names == ("id", "name")
    return decoder.decode(frame, spec).to_pylist()


def summarize_change(change: dict[str, Any]) -> tuple[Any, ...]:
    return change["_op"], change["id"], change["name"], change["_seq_1"], change["_seq_2"], change["_error"]


@pytest.mark.parametrize("schema", [True, False])
def test_rows_with_operation_and_position_are_changes(schema: bool) -> None:
    more = {"__deleted": "false", "__source_ts_ms": 5, "__transaction_id": "7:10"}
    values: list[bytes | None] = [
        flat(schema=schema, id=1, name="a", __op="r", __source_lsn=9, **more),
        flat(schema=schema, id=1, name="b", __op="u", __source_lsn=10, **more),
        flat(schema=schema, id=1, name=None, __op="d", __source_lsn=11, **{**more, "__deleted": "true"}),
    ]
    found = changes(values, schema)
    assert [summarize_change(c) for c in found] == [
        ("r", 1, "a", 9, 9, None),
        ("u", 1, "b", 10, 10, None),
        ("d", 1, None, 11, 11, None),
    ]
    assert [(c["_tx"], c["_ts"].microsecond) for c in found] == [("7:10", 5000)] * 3


@pytest.mark.parametrize("schema", [True, False])
def test_rewritten_delete_without_operation(schema: bool) -> None:
    values: list[bytes | None] = [
        flat(schema=schema, id=1, name="a", __deleted=deleted, __source_lsn=i)
        for i, deleted in enumerate(["false", "true", "false"])
    ]
    assert [c["_op"] for c in changes(values, schema)] == ["u", "d", "u"]
    assert [c["_op"] for c in changes([flat(schema=schema, id=1, name="a", __source_lsn=1)], schema)] == ["u"]


def test_fields_in_headers() -> None:
    headers = {0: {"__op": b"c", "__lsn": b"5"}, 1: {"__op": b'"u"', "__lsn": b'"6"', "__deleted": b"true"}}
    found = changes([flat(schema=True, id=1, name="a"), flat(schema=True, id=1, name="b")], headers=headers)
    assert [summarize_change(c) for c in found] == [("c", 1, "a", 5, 5, None), ("d", 1, "b", 6, 6, None)]


@pytest.mark.parametrize(("fields", "expected"), [
    ({"__lsn": "123"}, (123, 123, 0)), ({"__lsn": 9, "__source_sequence": '["7","9"]'}, (7, 9, 0)),
    ({"__file": "b.000003", "__pos": 154, "__row": 1}, (3, 154, 1)),
    ({"__source_file": "b.3", "__source_pos": "4"}, (3, 4, 0)),
    ({"__scn": "500", "__commit_scn": "900", "__txSeq": 3}, (900, 3, 1)), ({"__source_scn": "500"}, (500, 0, 1)),
    ({"__commit_lsn": "00000000:00000000:0001", "__change_lsn": "00000000:00000000:0001"}, (0, 1 << 39, 1 << 22)),
    ({"__connector": "mongodb", "__ord": 3, "__source_ts_ms": 5000}, (1 << 40, 0, 0)),
    ({"__connector": "mariadb", "__file": "b.3", "__pos": 4}, (3, 4, 0)),
])  # fmt: skip
def test_position_of_every_connector(fields: dict[str, Any], expected: tuple[int, ...]) -> None:
    (found,) = changes([flat(schema=False, id=1, name="a", __op="u", **fields)], schema=False)
    assert (found["_seq_1"], found["_seq_2"], found["_seq_3"], found["_error"]) == (*expected, None)


@pytest.mark.parametrize("schema", [True, False])
def test_rows_without_position_need_sequence_columns(schema: bool) -> None:
    frame = make_raw_records([flat(schema=schema, id=1, name="a", __op="u")], keys(schema, 1))
    decoder = DebeziumJsonDecoder({"flattened": True, "schema": DECLARED})
    spec = decoder.learn(frame, "public.t", decoder.route(frame)["fingerprint"][0].as_py())
    assert spec.unordered
    with pytest.raises(ConfigProblem, match="sequence_by"):
        plan_for("scd1", spec)


@pytest.mark.parametrize("schema", [True, False])
def test_tombstones_delete_in_the_order_of_offsets(schema: bool) -> None:
    values = [flat(schema=schema, id=1, name="a"), None, flat(schema=schema, id=1, name="b")]
    found = changes(values, schema, tombstones="delete")
    assert [(c["_op"], c["id"], c["_seq_1"]) for c in found] == [("u", 1, 0), ("d", 1, 1), ("u", 1, 2)]
    assert [c["_error"] for c in found] == [None] * 3


@pytest.mark.parametrize("schema", [True, False])
def test_key_changes_and_unchanged_values_are_recognised(schema: bool) -> None:
    old = make_event_key(id=1) if schema else b'{"id":1}'
    new = make_event_key(id=2) if schema else b'{"id":2}'
    values: list[bytes | None] = [
        flat(schema=schema, id=1, name=None, __op="d", __deleted="true", __source_lsn=4),
        flat(schema=schema, id=2, name="__debezium_unavailable_value", __op="c", __deleted="false", __source_lsn=4),
    ]
    gone, come = changes(values, schema, [1, 2], {0: {"__debezium.newkey": new}, 1: {"__debezium.oldkey": old}})
    assert (gone["_moved_to"], come["_moved_from"], come["_unsent"]) == (True, {"id": 1}, ["name"])


@pytest.mark.parametrize(("topic", "named", "more", "table"), [
    ("cdc.public.t", "cdc.public.t.Value", {}, "public.t"), ("routed", "cdc.public.t.Value", {}, "public.t"),
    ("cdc.public.t", "Row", {}, "public.t"), ("t", "Row", {}, "t"),
    ("x", "x", {"__source_table": "t", "__source_schema": "s"}, "s.t"), ("x", "x", {"__table": "t", "__db": "d"}, "d.t"),
    ("cdc.public.t", "Row", {"__table": "other"}, "public.t"),
])  # fmt: skip
def test_table_of_a_row(topic: str, named: str, more: dict[str, Any], table: str) -> None:
    columns = [make_column(name, "string") for name in more if name != "__table"]
    for schema in (True, False):
        if schema or topic != "routed":
            frame = make_raw_records(
                [flat(schema=schema, named=named, columns=columns, id=1, __source_lsn=1, **more)], topic=topic
            )
            route = DebeziumJsonDecoder({"flattened": True}).route(frame).to_pylist()[0]
            assert route["table"] == table


COLUMNS = [ID, NAME]
OTHERS = [
    (b'{"ts_ms":1}', "__debezium-heartbeat.cdc", "heartbeat"),
    (b'{"status":"END","id":"1","event_count":1,"data_collections":null,"ts_ms":1}', "cdc.transaction", "transaction"),
    (b'{"source":{},"databaseName":"a","ddl":"x","tableChanges":[]}', "cdc", "schema_change"),
    (b'{"id":"1","aggregate_type":"a","type":"b","additional_data":{}}', "cdc.notifications", "notification"),
    (b'{"type":"execute-snapshot","data":{}}', "cdc-signal", "signal"),
    (
        encode_with_schema(
            {"type": "struct", "fields": [make_column("ts_ms", "int64")], "name": "io.debezium.connector.common.Heartbeat"},
            {"ts_ms": 1},
        ),
        "hb",
        "heartbeat",
    ),
]


@pytest.mark.parametrize(("value", "topic", "kind"), OTHERS)
def test_other_kinds_of_records_are_ignored(value: bytes, topic: str, kind: str) -> None:
    for flattened in (True, False):
        decoder = DebeziumJsonDecoder({"flattened": flattened})
        assert decoder.route(make_raw_records([value], [None], topic=topic))["ignored"].to_pylist() == [kind]
        assert decoder.envelope(make_raw_records([value], [None], topic=topic))["error"].to_pylist() == [None]


def test_whole_change_events_among_flattened_rows() -> None:
    whole = make_change_event(COLUMNS, after={"id": 1, "name": "a"}, at=7)
    bare = json.dumps(json.loads(whole)["payload"]).encode()
    decoder = DebeziumJsonDecoder({"flattened": True, "schema": DECLARED})
    for value in (whole, bare):
        frame = make_raw_records([value, b"?", b"[1]"])
        route, *broken = decoder.route(frame).to_pylist()
        assert (route["table"], [b["error"].split(":")[0] for b in broken]) == ("public.t", ["MALFORMED"] * 2)
        spec = decoder.learn(frame.slice(0, 1), "public.t", route["fingerprint"])
        assert decoder.decode(frame.slice(0, 1), spec)["_seq_2"].to_pylist() == [7]


def test_unconvertible_row_is_rejected_alone() -> None:
    good, bad = flat(schema=True, id=1, name="a", __source_lsn=1), flat(schema=True, id="x", name="b", __source_lsn=2)
    assert [get_error_code(c) for c in changes([good, bad, good])] == [None, "MALFORMED", None]
    odd = flat(schema=True, id=1, name="a", __op="x", __source_lsn=1)
    assert get_error_code(changes([odd])[0]) == "UNKNOWN_OPERATION"


def test_event_log_stores_the_row_unchanged() -> None:
    text = flat(schema=False, id=1, name="a", __op="c", __source_lsn=8, __source_db="shop")
    row = DebeziumJsonDecoder({"flattened": True}).envelope(make_raw_records([text], [b'{"id":1}'])).to_pylist()[0]
    assert (row["after"], row["before"], row["op"], row["table"]) == (text.decode(), None, "c", "public.t")
    assert (row["connector"], row["seq_1"], row["error"]) == ("postgresql", 8, None)


def test_unknown_fields_with_the_prefix_are_columns() -> None:
    columns = [make_column("__mine", "string"), make_column("__source_x", "string")]
    frame = make_raw_records([flat(schema=True, columns=columns, id=1, __mine="m", __source_x="y", __source_lsn=1)])
    decoder = DebeziumJsonDecoder({"flattened": True})
    spec = decoder.learn(frame, "public.t", decoder.route(frame)["fingerprint"][0].as_py())
    assert spec.column_names == ("id", "__mine")
    assert decoder.decode(frame, spec)["__mine"].to_pylist() == ["m"]


def test_frame_without_records_stays_empty() -> None:
    frame = make_raw_records([flat(schema=True, id=1, name="a", __source_lsn=1)])
    decoder = DebeziumJsonDecoder({"flattened": True})
    spec = decoder.learn(frame, "public.t", decoder.route(frame)["fingerprint"][0].as_py())
    none = frame.slice(0, 0)
    assert [t.num_rows for t in (decoder.route(none), decoder.envelope(none), decoder.decode(none, spec))] == [0, 0, 0]
    some = pa.concat_tables([none, frame, none])
    assert [t.num_rows for t in (decoder.route(some), decoder.envelope(some), decoder.decode(some, spec))] == [1, 1, 1]
