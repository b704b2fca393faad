"""Messages of Canal, Maxwell and GoldenGate: the meaning of their fields, and the resulting changes."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from msgspec import Raw
from structlog.testing import capture_logs

from adapters.arrow.record_errors import ValueMisfit, build_or_reject
from adapters.decoders.canal_json import CanalJsonDecoder
from adapters.decoders.common.mysql_types import to_arrow_type
from adapters.decoders.maxwell_json import MaxwellJsonDecoder
from adapters.decoders.messages.json_format import to_text, to_texts
from adapters.decoders.ogg_json import OggJsonDecoder
from adapters.engines.local import LocalEngine
from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem, Fatal, Reject
from replicator.domain.transform.columns import Mask
from replicator.ports.decoder import TABLE_DROPPED

TYPES = {"id": "bigint", "name": "varchar(9)", "price": "decimal(8,2)"}
COLUMNS = {"id": "int64", "name": "string", "price": "decimal(8,2)"}
DECLARED = {"schema": {"*": COLUMNS}, "keys": {"*": ["id"]}}
DECODERS = {"canal": CanalJsonDecoder, "maxwell": MaxwellJsonDecoder, "ogg": OggJsonDecoder}


def canal(kind: str, *rows: Any, old: Any = None, **more: Any) -> dict[str, Any]:
    said = {"type": kind, "database": "shop", "table": "items", "data": list(rows), "old": old, "isDdl": False}
    return {**said, "mysqlType": TYPES, "pkNames": ["id"], "es": 1_700_000_000_500, **more}


def maxwell(kind: str, row: Any, old: Any = None, **more: Any) -> dict[str, Any]:
    said = {"type": kind, "database": "shop", "table": "items", "ts": 1_700_000_000, "xid": 9, "data": row}
    return {**said, **({} if old is None else {"old": old}), **more}


def ogg(kind: str, before: Any = None, after: Any = None, **more: Any) -> dict[str, Any]:
    said = {"op_type": kind, "table": "SHOP.ITEMS", "op_ts": "2024-02-29 10:00:00.123456000", "pos": f"{7:010}{11:010}"}
    return {**said, "before": before, "after": after, **more}


def frame(*values: Any) -> pa.Table:
    texts = [v if v is None or isinstance(v, bytes) else json.dumps(v).encode() for v in values]
    rows = [{"topic": "all", "partition": 0, "offset": n + 5, "timestamp": 7000, "value": v} for n, v in enumerate(texts)]
    return pa.Table.from_pylist(rows, RAW)


def route_messages(kind: str, *values: Any, options: Any = DECLARED) -> list[dict[str, Any]]:
    return DECODERS[kind](options).route(frame(*values)).to_pylist()


def decode(kind: str, *values: Any, options: Any = DECLARED) -> list[dict[str, Any]]:
    """The rows of the first message's table; messages that are no change of it are decoded too."""
    decoder, raw = DECODERS[kind](options), frame(*values)
    route = decoder.route(raw).to_pylist()[0]
    assert route["error"] is None, route
    return decoder.decode(raw, decoder.learn(raw, route["table"], route["fingerprint"])).to_pylist()


def code(row: dict[str, Any]) -> str:
    return Reject.parse(row.get("_error") or row["error"]).code


def test_rows_of_a_canal_message():
    """One change for each row, in order, with the types of the message."""
    rows = decode("canal", canal("INSERT", *({"id": str(n), "name": None, "price": "1.50"} for n in (1, 2))), options={})
    assert [(r["_op"], r["_seq_1"], r["id"], r["price"]) for r in rows] == [("c", 5, n, Decimal("1.50")) for n in (1, 2)]
    assert rows[0]["_seq_2"] < rows[1]["_seq_2"]
    assert rows[0]["_ts"] == datetime(2023, 11, 14, 22, 13, 20, 500_000, UTC)
    assert all(r["name"] is None and r["_unsent"] is None and r["_error"] is None for r in rows)


def test_key_change_is_a_delete_and_a_create():
    """Also if rows of one message exchange their keys. An unchanged old key moves nothing."""
    new = [{"id": str(n), "name": "a", "price": "1"} for n in (2, 3, 4)]
    rows = decode("canal", canal("UPDATE", *new, old=[{"id": "1"}, {"id": "2", "name": "b"}, {"id": "4", "name": "c"}]))
    assert [(r["_op"], r["id"], r["name"]) for r in rows] == [
        ("d", 1, "a"), ("c", 2, "a"), ("d", 2, "b"), ("c", 3, "a"), ("u", 4, "a"),
    ]  # fmt: skip
    assert [r["_moved_from"] for r in rows] == [None, {"id": 1}, None, {"id": 2}, None]
    assert [r["_moved_to"] for r in rows] == [True, None, True, None, None]
    order = [(r["_seq_1"], r["_seq_2"]) for r in rows]
    assert order == sorted(order) and len(set(order)) == 5


def test_columns_missing_from_a_before_image():
    """In Maxwell they did not change. In GoldenGate they were not sent: the delete does not have them."""
    new = {"id": 2, "name": "b", "price": "1"}
    [left, come] = decode("maxwell", maxwell("update", new, {"id": 1, "name": "a"}))
    assert (left["name"], left["price"], left["_unsent"], come["_unsent"]) == ("a", Decimal(1), None, None)
    [left, come] = decode("maxwell", maxwell("update", {"id": 2, "price": "1"}, {"id": 1, "name": "a"}))
    assert (left["name"], come["name"], come["_unsent"]) == ("a", None, None), "`output_nulls=false`"
    [emptied, kept] = decode(
        "maxwell", *(maxwell("update", {"id": 1, "price": "1"}, old) for old in ({"name": "b"}, {"price": 2}))
    )
    assert (emptied["name"], emptied["_unsent"], kept["_unsent"]) == (None, None, ["name"])
    [left, come] = decode("ogg", ogg("U", {"id": 1, "name": "a"}, new))
    assert (left["name"], left["price"], left["_unsent"], come["_unsent"]) == ("a", None, ["price"], None)
    [left, come] = decode("ogg", ogg("U", {"id": 1, "name": None}, {"id": 2}))
    assert (left["_unsent"], come["_unsent"]) == (["price"], ["name", "price"])


def test_delete_with_the_key_only_has_a_partial_table():
    """TiCDC with `delete-only-output-handle-key-columns`. An insert with these columns has a whole table."""
    types = {"mysqlType": {"id": TYPES["id"]}}
    raw = frame(canal("DELETE", {"id": "1"}, **types), canal("INSERT", {"id": "2"}, **types))
    decoder = CanalJsonDecoder({"private": {"shop.items": {"name": Mask("nothing")}}})
    delete, insert = (route["fingerprint"] for route in decoder.route(raw).to_pylist())
    spec = decoder.learn(raw, "shop.items", delete)
    assert (spec.column_names, spec.keys, spec.partial) == (("id",), ("id",), True)
    assert [(r["_op"], r["id"]) for r in decoder.decode(raw.slice(0, 1), spec).to_pylist()] == [("d", 1)]
    decoder = CanalJsonDecoder({})
    assert not decoder.learn(raw, "shop.items", insert).partial


def test_canal_messages_without_changes():
    """Statements are ignored; a truncate needs a table that declares its columns and its key."""
    statement = {"isDdl": True, "data": None, "mysqlType": None, "pkNames": None, "sql": "ALTER ..."}
    assert [
        r["ignored"]
        for r in route_messages("canal", canal("ALTER", **statement), canal("QUERY", **statement | {"table": ""}))
    ]
    truncate = canal("TRUNCATE", **statement)
    assert not route_messages("canal", truncate)[0]["ignored"]
    assert decode("canal", truncate)[0]["_op"] == "t"
    assert "write `schema:" in route_messages("canal", truncate, options={})[0]["error"]
    assert "write `keys:" in route_messages("canal", truncate, options={"schema": {"*": COLUMNS}})[0]["error"]


DROPS = {
    "canal": {**{"type": "ERASE", "isDdl": True, "data": None, "es": 1_700_000_000_500}, "sql": "DROP TABLE items"},
    "maxwell": {"type": "table-drop", "ts": 1_700_000_000_500, "sql": "DROP TABLE items"},
}


@pytest.mark.parametrize("name", DROPS)
def test_engine_reports_a_dropped_table(name):
    records = frame(None, {**DROPS[name], "database": "shop", "table": "items"}, {**DROPS[name], "database": "shop"})
    assert [*LocalEngine().route(records, DECODERS[name]({})).drops] == ["shop.items"]


@pytest.mark.parametrize("name", DROPS)
def test_dropped_table_is_reported_by_name(name):
    """Unless the message names none. No declaration is needed; the envelope has the table, and no operation."""
    named = {**DROPS[name], "database": "shop", "table": "items"}
    nameless = [{**named, "table": None}, {**named, "table": ""}, {**named, "database": None}]
    said = route_messages(name, named, *nameless, options={})
    assert [row["ignored"] for row in said] == [TABLE_DROPPED, *["schema_change"] * 3]
    assert {row["table"] or row["error"] for row in said} == {None}
    for options in ({}, {"private": {"shop.items": {"name": Mask("hmac", b"k" * 16)}}}):
        decoder = DECODERS[name](options)
        first, *others = decoder.envelope(frame(named, *nameless)).to_pylist()
        assert (first["db"], first["table"], first["op"], first["error"]) == ("shop", "shop.items", None, None)
        assert first["ts"] == datetime(2023, 11, 14, 22, 13, 20, 500_000, tzinfo=UTC)
        assert [row["table"] for row in others] == [None] * 3
        stored = decoder.mask_records(frame(named))
        assert decoder.route(stored)["ignored"].to_pylist() == [TABLE_DROPPED]
        assert decoder.envelope(stored)["table"].to_pylist() == ["shop.items"]


@pytest.mark.parametrize("first", [0, 1])
def test_truncate_without_key_does_not_stop_other_messages(first):
    """In either order: they share the cached columns of the table."""
    row, options = {"id": 1, "name": "a", "price": "1"}, {"schema": {"*": COLUMNS}}
    both = [ogg("T"), ogg("I", after=row)]
    found = route_messages("ogg", both[first], both[1 - first], options=options)
    assert "write `keys:" in found[first]["error"]
    assert found[1 - first]["error"] is None and found[1 - first]["table"]


def test_message_is_rejected_as_a_whole():
    """If one of its rows does not fit, or has no key."""
    good, bad = {"id": "1", "name": "a", "price": "1"}, {"id": "2", "name": "a", "price": "x"}
    first = canal("INSERT", good)
    rows = decode("canal", first, canal("INSERT", good, bad), canal("INSERT", {"id": None}), first)
    assert [(r["_offset"], r["_error"] and code(r)) for r in rows] == [
        (5, None), (6, "OUT_OF_RANGE"), (7, "NULL_KEY"), (8, None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "message", "why"),
    [
        ("canal", canal("INSERT", {"id": "1"}, mysqlType=None), None),
        ("canal", canal("UPSERT", {"id": "1"}), "UNKNOWN_OPERATION"),
        ("canal", canal("UPDATE", {"id": "1"}, old=[]), "MALFORMED"),
        ("canal", canal("INSERT", {"id": "1"}, table=None), "MALFORMED"),
        ("maxwell", maxwell("replace", {"id": 1}), "UNKNOWN_OPERATION"),
        ("maxwell", maxwell("insert", None), "MALFORMED"),
        ("ogg", ogg("X", None, {"ID": 1}), "UNKNOWN_OPERATION"),
        ("ogg", ogg("I"), "MALFORMED"),
        ("ogg", ogg("D", None, {"id": 1}), "MALFORMED"),
        ("ogg", ogg("I", None, {"id": 1}, pos="00000000020030003620x"), "NO_SEQUENCE"),
        ("ogg", ogg("I", None, {"id": 1}, pos=""), "NO_SEQUENCE"),
        ("ogg", b'[{"op_type": "I"}]', "MALFORMED"),
        ("maxwell", b'{"op":"c","after":{"id":1}}', "MALFORMED"),
    ],
)
def test_invalid_messages_are_rejected(kind, message, why):
    (route,) = route_messages(kind, message)
    assert (route["error"] and code(route)) == why


@pytest.mark.parametrize(
    ("kind", "message", "other"),
    [
        ("canal", maxwell("insert", {"id": 1}), "maxwell_json"),
        ("maxwell", canal("INSERT", {"id": "1"}), "canal_json"),
        ("maxwell", ogg("I", None, {"id": 1}), "ogg_json"),
        ("ogg", {"op": "c", "source": {}, "after": {}}, "debezium_json"),
        ("ogg", ogg("X"), None),
    ],
)
def test_messages_of_another_format(kind, message, other):
    """The reject names the format that it looks like."""
    (route,) = route_messages(kind, message)
    assert (f"it looks like `format: {other}`" in route["error"]) == (other is not None), route


def test_messages_without_rows_are_rejected():
    assert [code(r) for r in decode("canal", canal("INSERT", {"id": "1"}), canal("INSERT", data=[]))[1:]] == ["MALFORMED"]


def test_maxwell():
    """Values of any JSON type are read as the declared type; the text of an object stays unchanged."""
    types = {"id": "int64", "b": "bool", "at": "timestamp[us]", "d": "date32", "t": "time", "raw": "binary", "doc": "string"}
    types |= {"price": "decimal(20,3)", "f": "double", "set": "string"}
    row = (
        b'{"id":7,"b":1,"at":"2017-12-31 16:00:01.5","d":"2017-12-31","t":"23:59:59","raw":"/wA=","doc":{"a": [1, 2]},'
        b'"price":12345678901234567.125,"f":1.5,"set":["x","y"]}'
    )
    text = json.dumps(maxwell("bootstrap-insert", None)).encode().replace(b'"data": null', b'"data": ' + row)
    [one] = decode("maxwell", text, options={"schema": {"shop.items": types}})
    assert (one["_op"], one["_tx"], one["_ts"]) == ("r", "9", datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC))
    assert {k: one[k] for k in types} == {
        "id": 7, "b": True, "at": datetime(2017, 12, 31, 16, 0, 1, 500_000), "d": date(2017, 12, 31), "t": time(23, 59, 59),
        "raw": b"\xff\x00", "doc": '{"a": [1, 2]}', "price": Decimal("12345678901234567.125"), "f": 1.5, "set": '["x","y"]',
    }  # fmt: skip


def test_maxwell_messages_without_changes():
    kinds = ("table-alter", "database-drop", "bootstrap-start", "bootstrap-complete")
    assert [r["ignored"] for r in route_messages("maxwell", *({"type": kind, "database": "shop"} for kind in kinds))] == [
        "schema_change", "schema_change", "bootstrap", "bootstrap",
    ]  # fmt: skip


def test_key_named_by_the_message():
    options = {"schema": {"*": COLUMNS}}
    rows = decode("maxwell", maxwell("delete", {"id": 1}, primary_key_columns=["id"]), options=options)
    assert (rows[0]["_op"], rows[0]["id"], rows[0]["_moved_from"]) == ("d", 1, None)
    assert route_messages("maxwell", maxwell("delete", {"id": 1}, primary_key_columns=["no"]), options=options)[0]["error"]


def test_tables_without_types_are_refused():
    """Neither the message nor the config has types; the key alone is not enough."""
    assert (
        "write `schema:"
        in route_messages("maxwell", maxwell("insert", {"id": 1}), options={"keys": {"*": ["id"]}})[0]["error"]
    )
    with pytest.raises(ConfigProblem, match="carry no types"):
        MaxwellJsonDecoder({}).learn(frame(b"{}"), "shop.items", "any")
    with pytest.raises(Fatal, match="no column 'no'"):
        decode("maxwell", maxwell("insert", {"id": 1}), options={"schema": {"*": COLUMNS}, "keys": {"*": ["no"]}})


def test_goldengate():
    """Ordered by the position in the trail. Columns missing from an update were not sent, also if the key changes."""
    row = {"id": 1, "name": "a", "price": 1}
    rows = decode(
        "ogg",
        ogg("U", {}, {"id": 1, "name": "b"}),
        ogg("U", row, {"id": 2, "name": "b"}, pos=f"{8:010}{0:010}"),
        ogg("D", row, None, xid="4.5"),
        ogg("T"),
    )
    assert [(r["_op"], r["id"], r["_unsent"]) for r in rows] == [
        ("u", 1, ["price"]), ("d", 1, None), ("c", 2, ["price"]), ("d", 1, None), ("t", None, None),
    ]  # fmt: skip
    assert [(r["_seq_1"], r["_seq_2"]) for r in rows] == [(7, 11), (8, 0), (8, 0), (7, 11), (7, 11)]
    assert rows[1]["_seq_3"] < rows[2]["_seq_3"] and rows[2]["_moved_from"] == {"id": 1}
    assert (rows[0]["_ts"], rows[3]["_tx"]) == (datetime(2024, 2, 29, 10, 0, 0, 123_456, UTC), "4.5")


def test_delete_with_unconvertible_values_is_applied():
    """Values that do not fit count as not sent."""
    [row] = decode("ogg", ogg("D", {"id": 1, "name": "a", "price": "much"}))
    assert (row["_op"], row["id"], row["_unsent"], row["_error"]) == ("d", 1, ["price"], None)


def test_bytes_of_canal():
    """One character per byte."""
    types = {"id": "int unsigned", "raw": "varbinary(9)"}
    [row] = decode("canal", canal("INSERT", {"id": "1", "raw": "ÿ\x00é"}, mysqlType=types), options={})
    assert row["raw"] == b"\xff\x00\xe9"
    assert code(decode("canal", canal("INSERT", {"id": "1", "raw": "☃"}, mysqlType=types), options={})[0]) == "MALFORMED"


@pytest.mark.parametrize(
    ("said", "arrow"),
    [
        ("BIGINT(20) UNSIGNED", pa.decimal128(20, 0)), ("int(10) unsigned zerofill", pa.int64()), ("tinyint(1)", pa.int16()),
        ("mediumint", pa.int32()), ("decimal(10)", pa.decimal128(10, 0)), ("DECIMAL(65, 30)", pa.decimal256(65, 30)),
        ("double precision", pa.float64()), ("float(7,4)", pa.float32()), ("bit", pa.bool_()), ("bit(9)", pa.int64()),
        ("bit(64)", pa.decimal128(20, 0)), ("datetime(3)", pa.timestamp("us")), ("year(4)", pa.int32()),
        ("enum('a','b(c)')", pa.string()), ("set('x''y')", pa.string()), ("json", pa.string()),
        ("longblob", pa.binary()), ("point", pa.binary()), ("time(6)", pa.time64("us")), ("INTEGER", pa.int32()),
    ],
)  # fmt: skip
def test_types_of_mysql(said, arrow):
    assert to_arrow_type(said) == arrow


@pytest.mark.parametrize("said", ["", "money", "decimal(x)", "int)", "decimal(1,2,3)", "(", "enum('a" + "'" * 10_001])
def test_unknown_types_of_mysql_are_text(said):
    """Such a column does not affect the other columns of its row."""
    assert to_arrow_type(said) is None
    [row] = decode("canal", canal("INSERT", {"id": "1", "v": "x"}, mysqlType={"id": "int", "v": said}), options={})
    assert (row["id"], row["v"], row["_error"]) == (1, "x", None)


@pytest.mark.parametrize(
    ("said", "sql_type", "value", "becomes"),
    [
        ("enum('0','1')", 4, "1", "0"), ("enum('0','1')", 4, "2", "1"), ("ENUM('0','1')", 12, "1", "1"),
        ("enum('0','1')", None, "1", "MALFORMED"), ("enum('0','1')", -2, None, None),
        ("enum('New','it''s, b)')", 4, "2", "it's, b)"),
        ("enum('a') charset utf8mb4", None, "gone", "gone"), ("set('1','2','4')", -7, "5", "1,4"),
        ("set('1','2','4')", 1, "4", "4"), ("set('2','1')", None, "1", "MALFORMED"),
        ("set('a')", None, "18446744073709551616", "OUT_OF_RANGE"), ("enum('a\\\\b')", 4, "1", "a\\b"),
    ],
)  # fmt: skip
def test_labels_of_canal(said, sql_type, value, becomes):
    """If a value consists of digits, `sqlType` decides between label and number."""
    more = {"mysqlType": {"id": "int", "v": said}, "sqlType": None if sql_type is None else {"id": 4, "v": sql_type}}
    rows = decode("canal", *[canal("INSERT", {"id": "1", "v": value}, **more)] * 2, options={})
    assert [code(row) if row["_error"] else row["v"] for row in rows] == [becomes] * 2


def test_label_numbers_with_declared_types():
    said = canal("INSERT", {"id": "1", "v": "3"}, mysqlType={"id": "int", "v": "set('a','b')"})
    for declared, becomes in (("uint64", 3), ("string", "a,b"), ("list<string>", ["a", "b"])):
        [row] = decode("canal", said, options={"schema": {"*": {"v": declared}}})
        assert (row["id"], row["v"]) == (1, becomes)


def test_column_without_type_in_the_message_is_text():
    """It does not belong to messages without it."""
    said = [canal("INSERT", {"id": "1", **more}, mysqlType={"id": "int"}) for more in ({}, {"v": "x"}, {"v": None})]
    fingerprints = [row["fingerprint"] for row in route_messages("canal", *said, options={})]
    assert fingerprints[0] != fingerprints[1] == fingerprints[2]
    assert [row["v"] for row in decode("canal", *said[1:], options={})] == ["x", None]


@pytest.mark.parametrize(
    ("kind", "message", "options"),
    [
        ("canal", canal("UPSERT", {"id": "1"}), {}),
        ("canal", canal("INSERT", {"id": "1"}, mysqlType=None), {}),
        ("maxwell", maxwell("insert", {"id": 1}), {}),
        ("maxwell", maxwell("insert", {"id": 1}, data=None), DECLARED),
        ("ogg", ogg("I", None, {"id": 1}, pos="x"), DECLARED),
    ],
)
def test_rejects_have_their_table(kind, message, options):
    """And belong to no lane of it."""
    engine, raw = LocalEngine(), frame(message)
    found = engine.route(raw, DECODERS[kind](options))
    [rejected] = engine.frames.rejected(found.rejects, [raw])
    assert (rejected.table.lower(), found.reject_count, found.slices) == ("shop.items", 1, ())


def test_positions_of_goldengate():
    """They have any number of digits, and numeric order. Without one the offset decides."""
    places = [
        "00000000000000000000143",
        "144",
        "9999999999",
        "00000000010000000000",
        "00000000020030003620",
        "1" + "0" * 24,
        7,
    ]
    rows = decode("ogg", *(ogg("I", None, {"id": n}, pos=pos) for n, pos in enumerate(places)))
    order = {int(pos): (row["_seq_1"], row["_seq_2"]) for pos, row in zip(places, rows, strict=True)}
    assert sorted(order.values()) == [order[number] for number in sorted(order)]
    assert order[20030003620] == (2, 30003620)
    for large in ("9" * 29, "9" * 40):
        assert code(decode("ogg", ogg("I", None, {"id": 1}), ogg("I", None, {"id": 1}, pos=large))[1]) == "NO_SEQUENCE"
        assert OggJsonDecoder(DECLARED).envelope(frame(ogg("I", None, {"id": 1}, pos=large)))["error"][0].is_valid
    offsets = decode("ogg", *(ogg("I", None, {"id": n}, pos=None) for n in range(2)))
    assert [row["_seq_1"] for row in offsets] == [5, 6] and "_seq_3" not in offsets[0]
    assert code(decode("ogg", ogg("I", None, {"id": 1}), ogg("I", None, {"id": 1}, pos=None))[1]) == "NO_SEQUENCE"


def test_envelope_stores_all_rows():
    deleted = canal("DELETE", {"id": "1"})
    rows = CanalJsonDecoder().envelope(frame(deleted, canal("INSERT", {"id": "2"}), b"{", None)).to_pylist()
    assert [(r["table"], r["db"], r["op"], r["before"], r["after"]) for r in rows[:2]] == [
        ("shop.items", "shop", "d", '[{"id": "1"}]', None), ("shop.items", "shop", "c", None, '[{"id": "2"}]'),
    ]  # fmt: skip
    assert rows[2]["error"] and not rows[3]["error"] and rows[3]["op"] is None
    [row] = OggJsonDecoder(DECLARED).envelope(frame(ogg("I", None, {"id": 1}))).to_pylist()
    assert (row["seq_1"], row["seq_2"], row["connector"]) == (7, 11, "oracle")


def test_event_time_out_of_range_is_null():
    """The change counts."""
    times = [9 * 10**18, -(9 * 10**18), 10**15, 1_700_000_000_000]
    rows = decode("canal", *(canal("INSERT", {"id": "1"}, es=time) for time in times), options={})
    assert [(row["_ts"] and row["_ts"].year, row["_error"]) for row in rows] == [(None, None)] * 3 + [(2023, None)]
    rows = decode("maxwell", maxwell("insert", {"id": 1}, ts=10**16))
    assert [row["_ts"] for row in rows] == [None]


def test_epoch_is_first_in_the_sequence():
    [row] = decode("canal", canal("INSERT", {"id": "1"}), options={**DECLARED, "epoch": 2})
    assert row["_seq_1"] == (2 << 56) + 5


def test_deeply_nested_messages_are_rejected():
    text = b'{"type":"insert","database":"a","table":"b","data":{"id":' + b"[" * 500 + b"]" * 500 + b"}}"
    (route,) = route_messages("maxwell", text)
    assert code(route) == "TOO_LARGE"


def test_rows_with_an_incompatible_type_are_rejected():
    """For example after a schema change that the table has not applied."""
    good, other = canal("INSERT", {"id": "1", "name": "a", "price": "1.5"}), {**TYPES, "id": "date"}
    strange = canal("INSERT", {"id": "2024-02-29", "name": "b", "price": "2.5"}, mysqlType=other)
    rows = decode("canal", good, strange, {**strange, "data": [{"id": None}]}, good, options={})
    assert [row["id"] for row in rows if row["_error"] is None] == [1, 1]
    assert [code(row) for row in rows if row["_error"]] == ["OUT_OF_RANGE", "NULL_KEY"]


def test_escaped_name_of_an_old_key_is_found():
    """It is a key change. Another column whose value equals the name of the key is not."""
    moved = json.dumps(canal("UPDATE", {"id": "2", "name": "a", "price": "1"}, old=[{"KEY": "1"}])).replace(
        "KEY", "\\u0069d"
    )
    kept = canal("UPDATE", {"id": "2", "name": "a", "price": "1"}, old=[{"name": "id"}])
    assert [(row["_op"], row["id"]) for row in decode("canal", moved.encode(), kept)] == [("d", 1), ("c", 2), ("u", 2)]


TEXTS = [
    b'"plain"',
    b'""',
    b'"a\\n\\u00e9\\""',
    '"é☃"'.encode(),
    b"12",
    b"-0",
    b"true",
    b'{"a": "\\n"}',
    b"[1, 2]",
    b'"null"',
]


@pytest.mark.parametrize("odd", [[], [b'"\x01"'], [b'"\xff"']], ids=["none", "a control character", "no UTF-8"])
def test_texts_of_a_column_equal_those_of_single_values(odd):
    values = [None, *map(Raw, [*TEXTS, *odd, *TEXTS]), None]
    try:
        wanted = [to_text(value) for value in values]
    except ValueError:
        wanted = None
    if wanted is None:
        with pytest.raises(ValueError, match=r".+"):
            to_texts(values)
        return
    assert to_texts(values).to_pylist() == wanted
    assert to_texts([None, None]).to_pylist() == [None, None] and to_texts([]).to_pylist() == []


def test_times_with_and_without_zone_and_times_of_day_together():
    options = {"schema": {"*": {"id": "int64", "at": "timestamp[us, UTC]"}}, "keys": {"*": ["id"]}}
    texts = ["0001-01-01", "2024-02-29 01:00:00+08:00", "2024-02-29 01:00:00"]
    rows = decode("maxwell", *(maxwell("insert", {"id": n, "at": at}) for n, at in enumerate(texts)), options=options)
    alone = [decode("maxwell", maxwell("insert", {"id": 1, "at": at}), options=options)[0]["at"] for at in texts]
    assert [row["at"] for row in rows] == alone, [row["_error"] for row in rows]
    assert alone[0] == datetime(1, 1, 1, tzinfo=UTC)


def test_values_convertible_alone_but_not_together():
    def build(values: Any) -> pa.Array:
        if "bad" in values or len({type(value) for value in values if value is not None}) > 1:
            raise ValueMisfit("OUT_OF_RANGE", "holds values of two kinds, or a bad one")
        return pa.array([None if value is None else str(value) for value in values], pa.string())

    array, bad = build_or_reject(build, [1, "a", "bad", None, 2], "it")
    assert array.to_pylist() == ["1", "a", None, None, "2"] and list(bad) == [2]


def test_table_without_log_positions_is_logged_once() -> None:
    row = {"id": 1, "name": "a", "price": "1.00"}
    texts = [ogg("I", after=row, pos=pos, primary_keys=keys) for pos in (None, f"{7:010}{11:010}") for keys in (["id"], [])]
    other = ogg("I", after=row, pos=None, table="SHOP.OTHERS")
    decoder = OggJsonDecoder(DECLARED)
    with capture_logs() as logged:
        assert decoder.route(frame(*texts, other, *texts)).column("error").null_count == 9
    assert [(one["log_level"], one["table"]) for one in logged] == [("warning", "SHOP.ITEMS"), ("warning", "SHOP.OTHERS")]
    assert {one["event"] for one in logged} == {"messages without a place in their source's log: their offsets order them"}
    with capture_logs() as logged:
        OggJsonDecoder(DECLARED).route(frame(texts[-1]))
    assert logged == []


def test_column_of_unknown_type_is_logged_once() -> None:
    values = {"id": "1", "odd": "x", "odder": "y"}
    types = [{"id": "bigint", "odd": "wondrous"}, {"id": "int", "odd": "wondrous"}, {"id": "int", "odd": "w", "odder": "v"}]
    decoder = CanalJsonDecoder({})
    with capture_logs() as logged:
        routes = decoder.route(frame(*(canal("INSERT", values, mysqlType=one) for one in types)))
    assert routes.column("error").null_count == 3
    assert [(one["log_level"], one["table"], one["column"], one["type"]) for one in logged] == [
        ("warning", "shop.items", "odd", "wondrous"), ("warning", "shop.items", "odder", "not said"),
    ]  # fmt: skip
    assert "read as text" in logged[0]["event"] and logged[0]["next_step"].startswith("`schema: {odd: TYPE}`")
