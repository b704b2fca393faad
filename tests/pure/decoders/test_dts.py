"""Records of DTS: the meaning of their fields and values, and the resulting changes."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema
from fastavro.schema import to_parsing_canonical_form as canonical
from hypothesis import strategies as st
from support.dts_records import (
    BIGINT,
    BIT,
    DATE,
    DATETIME,
    DECIMAL,
    DOUBLE,
    FLOAT,
    GEOMETRY,
    JSON,
    SAMPLES,
    TEXT,
    TIME,
    TIMESTAMP,
    VARCHAR,
    YEAR,
    encode_record,
    make_datetime,
    make_dts_frame,
    make_float,
    make_integer,
    make_record,
    make_text,
    make_value,
)  # fmt: skip

from adapters.decoders.dts_avro import DtsAvroDecoder
from adapters.decoders.dts_avro.rows import RECORD
from replicator.domain.errors import Reject
from replicator.testing.contract import for_all

PAIR = {"id": BIGINT, "name": VARCHAR}
HIDDEN = "__#alibaba_rds_row_id#__"


def route_records(*said: Any, **options: Any) -> list[dict[str, Any]]:
    return DtsAvroDecoder(options).route(make_dts_frame(*said)).to_pylist()


def decode(*said: Any, **options: Any) -> list[dict[str, Any]]:
    """The rows of the first record's table."""
    decoder, raw = DtsAvroDecoder(options), make_dts_frame(*said)
    route = decoder.route(raw).to_pylist()[0]
    assert route["error"] is None, route
    return decoder.decode(raw, decoder.learn(raw, route["table"], route["fingerprint"])).to_pylist()


def one(kind: int, of: Any, declared: str = "") -> Any:
    """What a value becomes in a column whose type has this number, or is declared; its type too."""
    options = {"schema": {"*": {"id": "int64", "v": declared}}} if declared else {}
    decoder, raw = (
        DtsAvroDecoder(options),
        make_dts_frame(make_record("INSERT", {"id": BIGINT, "v": kind}, None, [make_integer(1), of])),
    )
    [route] = decoder.route(raw).to_pylist()
    assert route["error"] is None, route
    table = decoder.learn(raw, route["table"], route["fingerprint"])
    [row] = decoder.decode(raw, table).to_pylist()
    return row["_error"] or row["v"]


def insert(*values: Any, **more: Any) -> Any:
    return make_record("INSERT", PAIR, None, list(values), **more)


def code(row: dict[str, Any]) -> str:
    return Reject.parse(row.get("_error") or row["error"]).code


def test_schema_equals_the_published_one():
    assert canonical(RECORD) == canonical(parse_schema(json.loads((SAMPLES / "Record.avsc").read_text())))


def test_with_and_without_born_timestamp():
    said = insert(make_integer(1), make_text("a"))
    short, long = encode_record(said), encode_record(said, born=True)
    assert long.startswith(short) and len(long) > len(short)
    rows = decode(short, long)
    assert [(r["id"], r["name"], r["_error"]) for r in rows] == [(1, "a", None)] * 2
    for bad in (long[:-1], long + b"\x00", short + b"\x80", short + b"\x80" * 10 + b"\x00", short + b"0123"):
        assert code(route_records(bad)[0]) == "MALFORMED"


@pytest.mark.parametrize(
    ("number", "sent", "becomes"),
    [
        (BIGINT, make_integer(-(2**63)), -(2**63)),
        (1, make_integer(255, 1), 255),
        (2, make_integer(65535, 2), 65535),
        (3, make_integer(4294967295, 4), 4294967295),
        (9, make_integer(16777215, 3), 16777215),
        (BIT, make_integer(5), 5),
        (YEAR, make_datetime(2024), 2024),
        (YEAR, make_datetime(0), 0),
        (DOUBLE, make_float(0.1), 0.1),
        (DOUBLE, make_float(1e300), 1e300),
        (FLOAT, make_float(0.10000000149011612), 0.10000000149011612),
        (VARCHAR, make_text("é☃𝄞"), "é☃𝄞"),
        (VARCHAR, make_text(""), ""),
        (TEXT, make_value("TextObject", type="TEXT", value="t"), "t"),
        (JSON, make_value("TextObject", type="JSON", value='{"a":1}'), '{"a":1}'),
        (247, make_value("TextObject", type="ENUM", value="x"), "x"),
        (TIMESTAMP, make_value("Timestamp", timestamp=1_618_239_451, millis=1), datetime(2021, 4, 12, 14, 57, 31, 1, UTC)),
        (TIMESTAMP, make_value("Timestamp", timestamp=-1, millis=999_999), datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)),
        (DATETIME, make_datetime(2024, 2, 29, 23, 59, 58, 7), datetime(2024, 2, 29, 23, 59, 58, 7)),
        (DATETIME, make_datetime(9999, 12, 31, 23, 59, 59), datetime(9999, 12, 31, 23, 59, 59)),
        (DATE, make_datetime(1, 1, 1), date(1, 1, 1)),
        (TIME, make_datetime(hour=23, minute=59, second=59, millis=1), time(23, 59, 59, 1)),
        (GEOMETRY, make_value("BinaryGeometry", type="POINT", value=b"\x00\x01"), b"\x00\x01"),
        (TEXT, None, None),
        (TEXT, "NULL", None),
    ],
)
def test_types_by_type_number(number, sent, becomes):
    assert one(number, sent) == becomes


@pytest.mark.parametrize(
    ("sent", "declared", "becomes"),
    [
        (make_integer(2**64 - 1), "decimal(20,0)", Decimal(2**64 - 1)),
        (make_integer(1), "bool", True),
        (make_float(323.0), "decimal(7,2)", Decimal("323.00")),
        (make_value("Decimal", value="-0.10", precision=10, scale=2), "decimal(10,2)", Decimal("-0.10")),
        (make_value("Decimal", value="1E+3", precision=10, scale=2), "decimal(10,2)", Decimal("1000.00")),
        (make_value("Decimal", value="1.5", precision=2, scale=1), "string", "1.5"),
        (make_value("BinaryObject", type="BLOB", value=b"\xff\x00"), "binary", b"\xff\x00"),
        (make_text(b"\xff\x00", "binary"), "binary", b"\xff\x00"),
        (make_value("TextGeometry", type="POINT", value="POINT(1 2)"), "string", "POINT(1 2)"),
        (make_datetime(hour=-838, minute=-59, second=-59, millis=-1), "string", "-838:59:59.000001"),
        (make_datetime(hour=100, minute=0, second=0, millis=0), "string", "100:00:00"),
        (make_datetime(0, 0, 0, 0, 0, 0), "string", "0000-00-00 00:00:00"),
        (make_value("Timestamp", timestamp=0, millis=0), "timestamp[us]", datetime(1970, 1, 1)),
        (make_float(float("nan")), "string", "NaN"),
        (make_float(float("-inf")), "double", float("-inf")),
    ],
)
def test_declared_types(sent, declared, becomes):
    assert one(DECIMAL, sent, declared) == becomes


@pytest.mark.parametrize(
    ("zone", "hour"),
    [("+08:00", 16), ("GMT+8", 16), ("UTC+0800", 16), ("-03:30", 3), ("Z", 0), ("GMT", 0), ("UTC", 0), ("+00", 0)],
)
def test_zones(zone, hour):
    at = {"year": 2024, "month": 2, "day": 29, "hour": 0, "minute": 30, "second": 0, "millis": 5}
    found = one(0, make_value("TimestampWithTimeZone", value=at, timezone=zone), "timestamp[us, UTC]")
    assert (found.hour, found.microsecond) == (hour + (zone == "-03:30"), 5)
    assert "timestamp[us, UTC]" in one(0, make_value("TimestampWithTimeZone", value=at, timezone=zone), "timestamp[us]")
    assert "OUT_OF_RANGE" in one(0, make_value("TimestampWithTimeZone", value=at, timezone="Mars"), "timestamp[us, UTC]")
    shown = one(0, make_value("TimestampWithTimeZone", value=at, timezone="Asia/Shanghai"), "string")
    assert shown == "2024-02-29 00:30:00.000005 Asia/Shanghai"


@pytest.mark.parametrize(
    ("charset", "content", "becomes"),
    [
        *((name, "é☃".encode(), "é☃") for name in ("utf8", "utf8mb3", "utf8mb4", "UTF-8")),
        ("latin1", b"\xe9\x80\x81", "é€\x81"),
        ("ascii", b"a", "a"),
        ("gbk", "汉字".encode("gbk"), "汉字"),
        ("gb18030", "汉𝄞".encode("gb18030"), "汉𝄞"),
        ("big5", "漢字".encode("big5"), "漢字"),
        ("utf16", "a𝄞".encode("utf-16-be"), "a𝄞"),
        ("ucs2", "é".encode("utf-16-be"), "é"),
        ("cp1251", "ж".encode("cp1251"), "ж"),
    ],
)
def test_character_sets(charset, content, becomes):
    assert one(VARCHAR, make_text(content, charset)) == becomes


@pytest.mark.parametrize(
    ("number", "sent", "what"),
    [
        (VARCHAR, make_text("a", "klingon"), "MALFORMED: column 'v' holds text in the character set 'klingon'"),
        (VARCHAR, make_text("a", ""), "MALFORMED: column 'v' holds text in the character set ''"),
        (
            VARCHAR,
            make_text(b"\xff", "utf8mb4"),
            "holds bytes that are no text in the character set 'utf8mb4'",
        ),
        (VARCHAR, make_text(b"\xc3", "gbk"), "MALFORMED"),
        (TEXT, make_value("BinaryObject", type="BLOB", value=b"a"), "in `schema:` of the table it must be `binary`"),
        (TEXT, make_text(b"a", "binary"), "in `schema:` of the table it must be `binary`"),
        (GEOMETRY, make_value("TextGeometry", type="POINT", value="POINT(1 2)"), "it must be `string`"),
        (BIGINT, make_integer(2**63), "OUT_OF_RANGE"),
        (BIGINT, make_integer("1_0"), "OUT_OF_RANGE"),
        (TIME, make_datetime(hour=-1, minute=-1, second=-1), "OUT_OF_RANGE"),
        (TIME, make_datetime(hour=-1, minute=1, second=1), "do not go together"),
        (DATETIME, make_datetime(0, 0, 0, 0, 0, 0), "OUT_OF_RANGE"),
        (DATETIME, make_datetime(2024, 1, None, 1), "without year, month or day"),
        (DATE, make_datetime(), "without year, month or day"),
        (TIMESTAMP, make_value("Timestamp", timestamp=0, millis=1_000_000), "no number of microseconds"),
        (TIMESTAMP, make_value("Timestamp", timestamp=2**62, millis=0), "OUT_OF_RANGE"),
    ],
)
def test_unconvertible_values_are_rejected(number, sent, what):
    """The error has the reason and the column."""
    assert what in one(number, sent)


def test_unknown_type_numbers_are_text():
    """With or without a value, and for sources other than MySQL. The number of an ENUM label is not used."""
    assert one(DECIMAL, make_value("Decimal", value="-1.50", precision=3, scale=2)) == "-1.50"
    assert one(DECIMAL, make_value("Decimal", value="1E+3", precision=3, scale=2)) == "1000"
    assert one(99, make_integer(7)) == "7" and one(DECIMAL, None) is one(99, None) is None
    assert "OUT_OF_RANGE" in one(DECIMAL, make_value("Decimal", value="NaN", precision=3, scale=2))
    assert "write `schema: {COLUMN: int64}`" in one(247, make_integer(1)) and one(247, make_integer(1), "int64") == 1
    oracle = insert(make_integer(1), make_text("a"), source={"sourceType": "Oracle", "version": "19"})
    assert [(row["id"], row["name"]) for row in decode(oracle)] == [("1", "a")]
    assert decode(oracle, schema={"*": {"id": "int64", "name": "string"}})[0]["id"] == 1


def test_declared_schema_without_the_key_adds_to_the_record():
    """Other columns have the types of the records. With the key it is the whole schema."""
    price = make_value("Decimal", value="1.50", precision=3, scale=2)
    said = make_record("INSERT", PAIR | {"price": DECIMAL}, None, [make_integer(1), make_text("a"), price])
    [row] = decode(said, schema={"*": {"price": "decimal(10,2)"}})
    assert (row["id"], row["name"], row["price"]) == (1, "a", Decimal("1.50"))
    assert {"id", "price"} == {n for n in decode(said, schema={"*": {"id": "int64", "price": "string"}})[0] if n[0] != "_"}


def test_layout_does_not_depend_on_values():
    """Neither on NULL, nor on text or bytes, nor on the number of a type."""
    kinds = {"id": BIGINT, "a": TEXT, "b": TIMESTAMP, "c": DATETIME}
    full = [
        make_integer(1),
        make_text("a"),
        make_value("Timestamp", timestamp=0, millis=0),
        make_datetime(2024, 1, 1, 0, 0, 0),
    ]
    blob = make_value("BinaryObject", type="BLOB", value=b"a")
    rows = route_records(
        make_record("INSERT", kinds, None, full),
        make_record("INSERT", kinds, None, [make_integer(1), None, None, None]),
        make_record("INSERT", kinds | {"b": 17, "c": 18}, None, full),
        make_record("INSERT", kinds, None, [make_integer(1), blob, None, None]),
    )
    assert len({row["fingerprint"] for row in rows}) == 1 and rows[0]["fingerprint"]


def test_operations():
    a, b = [make_integer(1), make_text("a")], [make_integer(1), make_text("b")]
    rows = decode(
        make_record("INIT", PAIR, None, a, id=3, sourceTimestamp=0),
        make_record("INSERT", PAIR, None, a),
        make_record("UPDATE", PAIR, a, b, sourceTxid="9"),
        make_record("DELETE", PAIR, b, None),
    )
    assert [(r["_op"], r["id"], r["name"]) for r in rows] == [("r", 1, "a"), ("c", 1, "a"), ("u", 1, "b"), ("d", 1, "b")]
    assert [(r["_seq_1"], r["_seq_2"]) for r in rows] == [(0, 3), (1, 7), (1, 7), (1, 7)]
    assert [r["_ts"].timestamp() for r in rows] == [0, *[1_696_984_408] * 3]
    assert [r["_tx"] for r in rows] == [None, None, "9", None]
    kinds = ["DDL", "BEGIN", "COMMIT", "ROLLBACK", "ABORT", "HEARTBEAT", "CHECKPOINT", "CONTROL", "FINISH", "NOOP"]
    assert [row["ignored"] for row in route_records(*map(make_record, kinds))] == [
        "schema_change", *["transaction"] * 4, "heartbeat", *["control"] * 4
    ]  # fmt: skip
    assert {code(row) for row in route_records(*map(make_record, ("FILL", "COMMAND", "RDB")))} == {"UNKNOWN_OPERATION"}


def test_key_change_deletes_the_old_row():
    rows = decode(make_record("UPDATE", PAIR, [make_integer(1), make_text("a")], [make_integer(2), make_text("b")]))
    assert [(r["_op"], r["id"], r["name"], r["_moved_from"]) for r in rows] == [
        ("d", 1, "a", None),
        ("c", 2, "b", {"id": 1}),
    ]
    assert rows[0]["_seq_3"] < rows[1]["_seq_3"]
    same = make_record("UPDATE", PAIR, [make_integer(1, 4), make_text("a")], [make_integer(1), make_text("b")])
    assert [r["_op"] for r in decode(same)] == ["u"]


def test_keys_without_text_or_time_are_rejected():
    """They are no text, or no time."""
    late = make_value("Timestamp", timestamp=2**62, millis=0)
    for bad in (make_text("a", "klingon"), late):
        fields, first = {"id": VARCHAR, "name": VARCHAR}, [make_text("1"), make_text("a")]
        rows = decode(
            make_record("INSERT", fields, None, first), make_record("UPDATE", fields, [bad, make_text("a")], first)
        )
        assert rows[0]["_error"] is None and code(rows[1]) in ("MALFORMED", "OUT_OF_RANGE")


def test_none_is_not_null():
    """NONE was not sent; NULL is a value."""
    none, null = "NONE", "NULL"
    before = [make_integer(1), make_text("a")]
    rows = decode(
        make_record("UPDATE", PAIR, before, [make_integer(1), none]),
        make_record("UPDATE", PAIR, before, [make_integer(1), null]),
        make_record("UPDATE", PAIR, before, [make_integer(1), None]),
        make_record("UPDATE", PAIR, [none, none], [make_integer(1), make_text("b")]),
        make_record("UPDATE", PAIR, before, [none, make_text("b")]),
        make_record("UPDATE", PAIR, before, [null, make_text("b")]),
    )
    assert [(r["name"], r["_unsent"]) for r in rows[:3]] == [(None, ["name"]), (None, None), (None, None)]
    assert (rows[3]["_op"], rows[3]["name"]) == ("u", "b")
    assert [code(r) for r in rows[4:] if r["_error"]] == ["NULL_KEY"] * 2


@pytest.mark.parametrize(
    ("tags", "fields", "keys"),
    [
        ({"pk_uk_info": '{"PRIMARY":["name","id"],"u":["name"]}'}, PAIR, ("id", "name")),
        ({"pk_uk_info": "{}"}, PAIR, ()),
        ({}, PAIR, ()),
        ({"pk_uk_info": '{"u":["name"]}'}, PAIR, ()),
        ({"pk_uk_info": "{}"}, {"id": BIGINT, HIDDEN: BIGINT}, (HIDDEN,)),
        ({"pk_uk_info": f'{{"PRIMARY":["{HIDDEN}"]}}'}, {"id": BIGINT, HIDDEN: BIGINT}, (HIDDEN,)),
    ],
)
def test_keys(tags, fields, keys):
    said = make_record("INSERT", fields, None, [make_integer(1), make_integer(2)], tags=tags)
    decoder, raw = DtsAvroDecoder({}), make_dts_frame(said)
    [route] = decoder.route(raw).to_pylist()
    assert decoder.learn(raw, route["table"], route["fingerprint"]).keys == keys


@pytest.mark.parametrize("tag", ["[", "[]", '{"PRIMARY": 1}', '{"PRIMARY": ["no"]}'])
def test_invalid_keys_are_rejected(tag):
    assert code(route_records(insert(make_integer(1), make_text("a"), tags={"pk_uk_info": tag}))[0]) == "MALFORMED"


@pytest.mark.parametrize(
    ("more", "table"),
    [
        ({"objectName": "db.sales.t"}, "db.sales.t"),
        ({"objectName": "my\\u002Edb.t\\u002E1"}, "my.db.t.1"),
        ({"objectName": "p_01.t_3", "tags": {"l_db_name": "shop", "l_tb_name": "t"}}, "shop.t"),
        ({"objectName": "mydb"}, None),
        ({"objectName": None}, None),
        ({"objectName": "a.b.c.d"}, None),
        ({"objectName": "a."}, None),
    ],
)
def test_table_names(more, table):
    [row] = route_records(insert(make_integer(1), make_text("a"), **more))
    assert row["table"] == table and (table or code(row) == "MALFORMED")


@pytest.mark.parametrize(
    "said",
    [
        make_record("INSERT", PAIR, None, [make_integer(1)]),
        make_record("INSERT", PAIR, None, [make_integer(1), make_text("a"), None]),
        make_record("UPDATE", PAIR, [], [make_integer(1), make_text("a")]),
        make_record("INSERT", PAIR, None, None),
        make_record("INSERT", PAIR, None, "text"),
        make_record("INSERT", PAIR, [make_integer(1), make_text("a")], None),
        make_record("UPDATE", PAIR, [make_integer(1), make_text("a")], None),
        make_record("DELETE", PAIR, None, [make_integer(1), make_text("a")]),
        make_record("INSERT", None, None, [make_integer(1), make_text("a")]),
        make_record("INSERT", {}, None, []),
        make_record("INSERT", {"": BIGINT}, None, [make_integer(1)]),
        insert(make_integer(1), make_text("a")) | {"fields": [{"name": "id", "dataTypeNumber": 8}] * 2},
        insert(make_integer(1), make_text("a")) | {"fields": "id,name"},
    ],
)  # fmt: skip
def test_image_that_does_not_match_the_fields_is_rejected(said):
    [row] = route_records(said)
    assert code(row) == "MALFORMED" and "JSON" not in row["error"]


def test_negative_or_too_large_id_is_rejected():
    assert code(route_records(insert(make_integer(1), make_text("a"), id=-1))[0]) == "NO_SEQUENCE"
    assert code(decode(insert(make_integer(1), make_text("a"), id=2**60))[0]) == "NO_SEQUENCE"


def test_epoch_is_first_in_the_sequence():
    [row] = decode(insert(make_integer(1), make_text("a")), epoch=2)
    assert (row["_seq_1"], row["_seq_2"]) == ((2 << 56) + 1, 7)


def test_record_of_another_format_is_rejected_with_a_hint():
    [row] = route_records(json.dumps({"op": "c", "source": {}, "after": {}}).encode())
    assert "it looks like `format: debezium_json`" in row["error"]


def test_envelope_stores_all_values():
    """Also the text of statements, and unreadable values."""
    blob = make_value("BinaryObject", type="BLOB", value=b"\xff")
    raw = make_dts_frame(
        make_record("DDL", after="drop table t", objectName="mydb"),
        make_record("UPDATE", PAIR, [make_integer(1), make_text(b"\xff")], [make_integer(1), blob], sourceTxid="4"),
        make_record("BEGIN"),
        b"\x00",
        insert(make_integer(1), None, source={"sourceType": "Oracle", "version": "19"}),
    )
    rows = DtsAvroDecoder({}).envelope(raw).to_pylist()
    assert [(r["db"], r["table"], r["op"]) for r in rows] == [
        ("mydb", None, None), ("mydb", "mydb.t1", "u"), (None, None, None), (None, None, None), ("mydb", "mydb.t1", "c"),
    ]  # fmt: skip
    assert (rows[0]["after"], rows[0]["seq_2"]) == ('"drop table t"', 7)
    assert (json.loads(rows[1]["before"]), json.loads(rows[1]["after"])) == ({"id": "1", "name": "/w=="},) * 2
    assert (rows[1]["tx"], rows[1]["seq_1"], rows[1]["connector"]) == ("4", 1, "dts")
    assert code(rows[3]) == "MALFORMED" and json.loads(rows[4]["after"]) == {"id": "1", "name": None}


def test_values_are_unchanged():
    kinds = {"id": "int64", "i": "decimal(20,0)", "s": "string", "f": "double", "t": "timestamp[us, UTC]", "b": "binary"}
    moments = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))
    fields = {**dict.fromkeys(kinds, BIGINT), "d": BIGINT, "x": BIGINT}

    @for_all(
        i=st.integers(-(2**63), 2**64 - 1), s=st.text(st.characters(codec="utf-8")), f=st.floats(allow_nan=False),
        t=moments, b=st.binary(), d=st.dates(), x=st.decimals(-(10**7), 10**7, places=2),
    )  # fmt: skip
    def check(*, i, s, f, t, b, d, x):
        seconds = (t - datetime(1970, 1, 1, tzinfo=UTC)).days * 86400 + t.hour * 3600 + t.minute * 60 + t.second
        after = [
            make_integer(1),
            make_integer(i),
            make_text(s),
            make_float(f),
            make_value("Timestamp", timestamp=seconds, millis=t.microsecond),
            make_value("BinaryObject", type="BLOB", value=b),
            make_datetime(d.year, d.month, d.day),
            make_value("Decimal", value=str(x), precision=10, scale=2),
        ]
        schema = {"*": {**kinds, "d": "date32", "x": "decimal(10,2)"}}
        [row] = decode(make_record("INSERT", fields, None, after), schema=schema)
        assert row["_error"] is None
        found = [row[name] for name in ("i", "s", "f", "t", "b", "d", "x")]
        assert found == [Decimal(i), s, f, t, b, d, x]


def test_undeclared_columns_are_left_out():
    [row] = decode(insert(make_integer(1), make_text("a", "klingon")), schema={"*": {"id": "int64"}})
    assert (row["id"], row["_error"]) == (1, None) and "name" not in row


def test_delete_without_unreadable_values_is_applied():
    [row] = decode(make_record("DELETE", PAIR, [make_integer(1), make_text("a", "klingon")], None))
    assert (row["_op"], row["id"], row["_unsent"], row["_error"]) == ("d", 1, ["name"], None)


def test_values_have_the_types_of_the_learnt_table():
    """Also values of a record with another layout."""
    decoder = DtsAvroDecoder({})
    first = make_dts_frame(make_record("INSERT", {"id": BIGINT, "v": 3}, None, [make_integer(1), make_integer(5)]))
    [route] = decoder.route(first).to_pylist()
    table = decoder.learn(first, route["table"], route["fingerprint"])
    other = make_dts_frame(make_record("INSERT", {"id": BIGINT, "v": 9}, None, [make_integer(1), make_integer(5)]))
    assert decoder.route(other)["fingerprint"].to_pylist() != [route["fingerprint"]]
    changes = decoder.decode(other, table)
    assert (changes["v"].to_pylist(), changes.schema.field("v").type) == ([5], pa.int64())
