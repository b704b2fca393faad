"""Rows of AWS DMS files: columns, operations, order and values."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from adapters.decoders.common.row_files import CsvDialect, describe_location
from adapters.decoders.dms_csv import DmsCsvDecoder, cells
from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem, Fatal, Reject
from replicator.domain.plain_values import format_count
from replicator.domain.table import TableSpec
from replicator.testing.contract import EXAMPLES

TYPES = {"id": "int64", "name": "string", "price": "decimal(10,2)"}
KEYED: dict[str, Any] = {"keys": {"app.items": ["id"]}}
DECLARED: dict[str, Any] = {**KEYED, "schema": {"app.items": TYPES}}
HEADER = b"Op,id,name,price"
FILE = 1_700_000_000_000
LOAD = {"name": "dms.kind", "value": b"load"}


def record(value: bytes | None, header: bytes | None = None, load: bool = False, n: int = 0) -> dict[str, Any]:
    columns = [] if header is None else [{"name": "dms.columns", "value": header}]
    headers = [*columns, *([LOAD] if load else [])] or None
    place = {"topic": "app.items", "partition": 0, "offset": (FILE << 21) + n}
    return {**place, "timestamp": FILE, "headers": headers, "value": value}


def frame(*values: bytes | None, header: bytes | None = None, load: bool = False) -> pa.Table:
    return pa.Table.from_pylist([record(value, header, load, n) for n, value in enumerate(values)], RAW)


def learnt(decoder: DmsCsvDecoder, raw: pa.Table) -> TableSpec:
    return decoder.learn(raw, "app.items", "any")


def decode(*values: bytes, options: dict[str, Any] = DECLARED, **said: Any) -> list[dict[str, Any]]:
    decoder, raw = DmsCsvDecoder(options), frame(*values, **said)
    rows = decoder.decode(raw, learnt(decoder, raw)).to_pylist()
    assert [row["_offset"] for row in rows] == raw["offset"].to_pylist()
    return rows


def code(row: dict[str, Any]) -> str:
    return Reject.parse(row["_error"]).code if row["_error"] else ""


def one(kind: str, text: bytes, op: bytes = b"I", **dialect: Any) -> dict[str, Any]:
    """The row of a table whose column `v` is of that type and written so."""
    options = {**KEYED, "schema": {"app.items": {"id": "int64", "v": kind}}, "csv": dialect}
    [row] = decode(op + b",1," + text, options=options)
    return row


def test_row_is_a_change():
    [row] = decode(b'U,1,"\xc3\xa9, ""x""\n",1.50')
    assert (row["_op"], row["id"], row["name"], row["price"]) == ("u", 1, 'é, "x"\n', Decimal("1.50"))
    assert row["_error"] is None and row["_unsent"] is None
    assert row["_ts"] == datetime.fromtimestamp(FILE / 1000, UTC)


def test_sequence_is_epoch_file_and_row():
    options = {**DECLARED, "epoch": 3}
    decoder = DmsCsvDecoder(options)
    rows = [record(b"I,1,a,1", n=n) for n in (0, 5, 2**21 - 1, 2**21)]
    raw = pa.Table.from_pylist([*rows, record(b"I,1,a,1") | {"offset": -1}], RAW)
    table = learnt(decoder, raw)
    found = decoder.decode(raw, table).to_pylist()
    top = 3 << 56
    assert [(r["_seq_1"] - top, r["_seq_2"]) for r in found[:4]] == [
        (FILE, 0),
        (FILE, 5),
        (FILE, 2**21 - 1),
        (FILE + 1, 0),
    ]
    assert [code(r) for r in found] == ["", "", "", "", "NO_SEQUENCE"]
    assert table.sequence == 2


def test_record_without_time():
    decoder, raw = DmsCsvDecoder(DECLARED), pa.Table.from_pylist([record(b"I,1,a,1") | {"timestamp": None}], RAW)
    assert decoder.decode(raw, learnt(decoder, raw))["_ts"].to_pylist() == [None]


def test_header_row_names_the_columns():
    """In its order; without declared types they are text. The operation and bookkeeping columns are none of the table."""
    decoder, raw = DmsCsvDecoder(KEYED), frame(b"D,7,x", b'I,8,""', header=b'\xef\xbb\xbfOp,id,"a ""b"""')
    table = learnt(decoder, raw)
    assert [(c.name, c.type) for c in table.columns] == [("id", pa.string()), ('a "b"', pa.string())]
    rows = decoder.decode(raw, table).to_pylist()
    assert [(r["_op"], r["id"], r['a "b"']) for r in rows] == [("d", "7", "x"), ("c", "8", "")]
    own = frame(b"I,1,2", header=b"Op,id,_cdc_x")
    assert learnt(decoder, own).column_names == ("id",)


def test_declared_columns_have_their_types_and_others_are_text():
    rows = decode(b"I,x,9.50,1,more", b"U,y,1,2,7", header=b"Op,name,price,id,other")
    assert [(r["id"], r["name"], r["price"]) for r in rows] == [(1, "x", Decimal("9.5")), (2, "y", Decimal(1))]
    assert [r["other"] for r in rows] == ["more", "7"] and "Op" not in rows[0]


def test_declared_columns_missing_from_a_file():
    rows = decode(b"I,1", b"U,1", b"D,1", header=b"Op,id")
    assert [r["_unsent"] for r in rows] == [None, ["name", "price"], None]
    assert [code(r) for r in decode(b"I,x", b"U,x", header=b"Op,name")] == ["NULL_KEY", "NULL_KEY"]


def test_files_of_several_header_rows_keep_their_order():
    decoder = DmsCsvDecoder(DECLARED)
    shapes = [(b"1,a,2", b"id,name,price", True), (b"U,2,3", b"Op,id,price", False), (b"I,3,c,4", None, False)]
    raw = pa.Table.from_pylist([record(*shapes[n % 3], n=n) for n in range(9)], RAW)
    rows = decoder.decode(raw, learnt(decoder, raw)).to_pylist()
    assert [r["_offset"] & 7 for r in rows] == [n & 7 for n in range(9)]
    assert [(r["_op"], r["id"], r["name"]) for r in rows[:3]] == [("r", 1, "a"), ("u", 2, None), ("c", 3, "c")]
    assert len({r["fingerprint"] for r in decoder.route(raw).to_pylist()}) == 1


def test_files_of_full_load_and_changes_have_one_fingerprint():
    decoder = DmsCsvDecoder(KEYED)
    raw = pa.Table.from_pylist([record(b"1,a", b"id,name", load=True), record(b"I,1,a", b"Op,id,name", n=1)], RAW)
    [first, second] = decoder.route(raw).to_pylist()
    assert first == second and first["table"] == "app.items"
    other = decoder.route(frame(b"I,1", header=b"Op,id")).to_pylist()
    assert other[0]["fingerprint"] != first["fingerprint"]


def test_rows_without_operation():
    assert [r["_op"] for r in decode(b"1,a,2", load=True)] == ["r"]
    inserts = {**DECLARED, "csv": {"inserts_only": True}}
    assert [r["_op"] for r in decode(b"1,a,2", options=inserts)] == ["c"]
    for row in (*decode(b"1,a,2"), *decode(b"D,1,a"), *decode(b"D,1,a", header=b"kind,id,name")):
        assert code(row) == "UNKNOWN_OPERATION"
    assert [r["_op"] for r in decode(b"1,a,2", header=b"id,name,price", load=True)] == ["r"]
    rows = decode(b"D,1,a,2", b"1,a,2", b"U,1,a,2", b",1,a,2", b'"",1,a,2', load=True)
    assert [r["_op"] for r in rows] == ["d", "r", "u", "r", "r"]


@pytest.mark.parametrize("types", [TYPES, {"id": "string", "name": "string", "price": "string"}])
def test_unexpected_header_row_is_rejected(types):
    """At the start of a file. A later row with these values is a row."""
    options = {**KEYED, "schema": {"app.items": types}}
    for load, names in ((True, b"ID,name,price"), (False, b"Op,id,name,price")):
        raw = frame(b"", names, b"I,name,name,1", load=load)
        found = DmsCsvDecoder(options).decode(raw, learnt(DmsCsvDecoder(options), raw)).to_pylist()
        assert "`csv: {header: true}`" in found[1]["_error"], load
        assert "csv: {" not in (found[2]["_error"] or "")


def test_configured_operation_names():
    options = {**DECLARED, "operation_column": "kind", "operations": {"create": ["n", 1], "delete": "gone", "read": "r"}}
    rows = decode(
        b"n,1,a,1", b"1,1,a,1", b"gone,1,a,1", b"r,1,a,1", b"I,1,a,1", header=b"kind,id,name,price", options=options
    )
    assert [r["_op"] for r in rows[:4]] == ["c", "c", "d", "r"] and code(rows[4]) == "UNKNOWN_OPERATION"
    declared = {**KEYED, "schema": {"app.items": {"Op": "string", "id": "int64"}}}
    [row, wide] = decode(b"D,1", b"D,1,2", options=declared)
    assert (row["_op"], row["Op"], row["id"]) == ("d", "D", 1)
    assert "has 3 columns, expected: 2" in wide["_error"]


@pytest.mark.parametrize(("op", "said"), [(b"X", "not known"), (b"", "no operation"), (b"i", "not known")])
def test_unknown_operations(op, said):
    good, bad = decode(b"I,1,a,1", op + b",1,a,1")
    assert code(good) == "" and code(bad) == "UNKNOWN_OPERATION"
    assert f"'Op' holds {'an operation that is ' if said == 'not known' else ''}{said}; known are D, I, U" in bad["_error"]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("int16", "-5", -5),
        ("int64", str(2**63 - 1), 2**63 - 1),
        ("uint8", "255", 255),
        ("double", "1e3", 1000.0),
        ("double", "-Infinity", float("-inf")),
        ("float32", "0.5", 0.5),
        ("decimal(10,2)", "1.500", Decimal("1.5")),
        ("decimal(10,2)", "-12345678.90", Decimal("-12345678.9")),
        ("decimal(50,0)", "9" * 50, Decimal("9" * 50)),
        *[("bool", text, True) for text in ("true", "t", "1", "TRUE")],
        *[("bool", text, False) for text in ("false", "f", "0", "F")],
        ("string", " a ", " a "),
        ("binary", "00ffAB", b"\x00\xff\xab"),
        ("binary", '""', b""),
        ("date32", "2024-02-29", date(2024, 2, 29)),
        ("timestamp[us]", "2024-02-29 23:59:59", datetime(2024, 2, 29, 23, 59, 59)),
        ("timestamp[us]", "2024-02-29 23:59:59.123456", datetime(2024, 2, 29, 23, 59, 59, 123456)),
        ("timestamp[us]", "2024-02-29T23:59:59.5", datetime(2024, 2, 29, 23, 59, 59, 500_000)),
        ("timestamp[us, UTC]", "2024-02-29 23:59:59.5", datetime(2024, 2, 29, 23, 59, 59, 500_000, UTC)),
        ("timestamp[us, UTC]", "2024-02-29T23:59:59+02:00", datetime(2024, 2, 29, 21, 59, 59, 0, UTC)),
        ("time", "23:59:59.000001", time(23, 59, 59, 1)),
    ],
)
def test_values(kind, text, value):
    row = one(kind, text.encode())
    assert row["_error"] is None and row["v"] == value


MISFITS = [
    *[("int64", text) for text in (str(2**63), "1.0", "0x10", "0X10", " 1", "1e3", "a", '""')],
    ("int8", "128"),
    ("uint8", "-1"),
    *[("double", text) for text in ("a", "1;5", "0x1")],
    ("float32", "1e300"),
    *[("decimal(10,2)", text) for text in ("1.555", "NaN", "123456789", "1e99999", "x")],
    *[("bool", text) for text in ("yes", "2", " true")],
    *[("binary", text) for text in ("0", "0g", "00 00", "  ", "\u00e9\u00e9")],
    *[("date32", text) for text in ("2024-02-30", "0000-01-01", "infinity")],
    *[("timestamp[us]", text) for text in ("0000-01-01 00:00:00", "2024-02-29 24:00:00", "infinity", "x")],
    *[("timestamp[us, UTC]", text) for text in ("0000-01-01 00:00:00", "2024-02-29 23:59:59+99:99", "x")],
    *[("time", text) for text in ("24:00:00", "-01:00:00", "x")],
]


@pytest.mark.parametrize(("kind", "text"), MISFITS)
def test_unconvertible_values_are_rejected(kind, text):
    """They make the record a reject that names the column and not the value; of a deleted row they were not sent."""
    row = one(kind, text.encode())
    assert (
        code(row) == "OUT_OF_RANGE"
        and "'v'" in row["_error"]
        and (len(text) < 3 or text == "infinity" or text not in row["_error"])
    )
    deleted = one(kind, text.encode(), b"D")
    assert (deleted["_error"], deleted["_unsent"], deleted["v"], deleted["id"]) == (None, ["v"], None, 1)


def test_unconvertible_row_is_rejected_alone():
    rows = decode(*(b"U,%d,a,%s" % (n, b"x" if n % 5 == 2 else b"%d.5" % n) for n in range(20)), b"D,x,a,1")
    assert [code(row) for row in rows] == ["OUT_OF_RANGE" if n % 5 == 2 else "" for n in range(20)] + ["OUT_OF_RANGE"]
    assert [row["price"] for row in rows if not row["_error"]] == [Decimal(f"{n}.5") for n in range(20) if n % 5 != 2]


def test_null_and_empty_text():
    assert one("string", b"")["v"] is None and one("string", b'""')["v"] == "" and one("int64", b"")["v"] is None
    other = {"null_value": "NULL"}
    assert one("string", b"NULL", **other)["v"] is None and one("string", b'"NULL"', **other)["v"] == "NULL"
    assert one("string", b"", **other)["v"] == ""


def test_quote_is_a_character_without_quoting():
    options = {**DECLARED, "csv": {"quote": None, "header": True}}
    assert decode(b'I,1,"a,1', options=options)[0]["name"] == '"a'
    assert decode(b'I,1,a""b",1', options=options)[0]["name"] == 'a""b"'
    assert decode(b'I,1,"a\nb",1', options=options)[0]["_error"].startswith("MALFORMED")


def test_values_that_were_not_sent():
    options = {**DECLARED, "csv": {"unsent_value": "?"}}
    rows = decode(b"U,1,?,1", b"U,2,?,?", b"I,3,?,1", b"D,4,a,?", b"U,5,a,1", b"U,?,a,1", options=options)
    assert [r["_unsent"] for r in rows[:5]] == [["name"], ["name", "price"], None, None, None]
    assert [code(r) for r in rows] == ["", "", "", "", "", "NULL_KEY"]
    assert [r["name"] for r in rows[:5]] == [None, None, None, "a", "a"]
    assert rows[3]["price"] is None and rows[0]["price"] == 1


def test_null_key_is_rejected():
    rows = decode(b"I,,a,1", b"D,,a,1", b"U,1,a,1")
    assert [code(row) for row in rows] == ["NULL_KEY", "NULL_KEY", ""]
    assert "'id' of table app.items" in rows[0]["_error"]


def test_key_column_with_a_similar_name_is_reported():
    [row] = decode(b"I,1,a,1", header=b"Op, id,name,price")
    assert "'id' of table app.items is missing, and the record has ' id' instead" in row["_error"]


BAD_ROWS = [
    (b"I,1", "MALFORMED"),
    (b"I,1,a,1,2", "MALFORMED"),
    (b"\xff", "MALFORMED"),
    (b"I,1,\xc3(,1", "MALFORMED"),
    (b"", "MALFORMED"),
    (b'I,1,"a,1', "MALFORMED"),
    (b'I,1,a,"', "MALFORMED"),
    (b'I,1,"a"b,1', "MALFORMED"),
    (b"I,1,a\nI,2,a,1", "MALFORMED"),
    (b"I,1,a,1\nI,2,a,1", "MALFORMED"),
    (b"I,1,a\r,1", "MALFORMED"),
    (b"I,1,a,1\n", "MALFORMED"),
    (b"\n", "MALFORMED"),
    (b'"', "MALFORMED"),
    (b",,,", "UNKNOWN_OPERATION"),
]


@pytest.mark.parametrize(("bad", "expected"), BAD_ROWS)
@pytest.mark.parametrize("header", [HEADER, None])
def test_bad_rows_are_rejected_alone(bad, expected, header):
    """Also rows that would include the next row, or be two rows."""
    good = (b'I,1,"a ""b"", c",1', b"I,2,b,2", b'I,3,"""",3')
    rows = decode(bad, good[0], bad, bad, good[1], bad, good[2], header=header)
    assert [code(row) for row in rows] == [expected, "", expected, expected, "", expected, ""]
    assert [(r["id"], r["name"]) for r in rows if not r["_error"]] == [(1, 'a "b", c'), (2, "b"), (3, '"')]


def test_row_with_another_number_of_columns_is_rejected():
    rows = decode(b"I,1,a", b"I,1,a,1,2", b'I,"1,2",a,1,', header=HEADER)
    said = [
        f"MALFORMED: the row has {format_count(n, 'column')}, expected: 4 ({describe_location(row['_offset'])})"
        for n, row in zip((3, 5, 5), rows, strict=True)
    ]
    assert [row["_error"] for row in rows] == said
    [_, bare] = decode(b"I,1,a,1", b"I,1")
    assert bare["_error"].startswith("MALFORMED: the row has 2 columns, expected: 3 or 4 (row 1 of 2")


def test_quotes_inside_plain_text_and_byte_order_marks_stay():
    rows = decode(b'I,1,5" disk,1', b'I,2,a""b,2')
    assert [row["name"] for row in rows] == ['5" disk', 'a""b']
    own = {"schema": {"app.items": {"name": "string", "n": "int64"}}}
    assert [r["name"] for r in decode(b"\xef\xbb\xbfa,1", b"\xef\xbb\xbfb,2", options=own)] == ["\ufeffa", "\ufeffb"]


def test_other_dialects():
    options = {**DECLARED, "csv": {"delimiter": "|", "quote": "'", "escape": "\\"}}
    rows = decode(rb"I|1|'a|\'b'|1", rb"I|2|a\|b|1", rb"I|3|a\\|1", b"I|4|a|1\\", rb"I|5|'a\'|1", options=options)
    assert [row["name"] for row in rows[:3]] == ["a|'b", "a|b", "a\\"]
    assert [code(row) for row in rows] == ["", "", "", "MALFORMED", "MALFORMED"]
    for sign in "\t;^]-$. ":
        line = sign.join(("I", "1", "a,b", "1")).encode() if sign != "." else b"I.1.a,b.1"
        [row] = decode(line, options={**DECLARED, "csv": {"delimiter": sign}})
        assert (row["name"], row["price"], row["_error"]) == ("a,b", 1, None), sign


def test_block_that_cannot_be_parsed_is_parsed_row_by_row(monkeypatch):
    parse = cells.csv.read_csv

    def fails(source, **options):
        if b"poison" in source.read():
            raise pa.ArrowInvalid("no")
        source.seek(0)
        return parse(source, **options)

    monkeypatch.setattr(cells.csv, "read_csv", fails)
    rows = decode(*(b"I,%d,%s,1" % (n, b"poison" if n == 3 else b"a") for n in range(8)), b"I,8")
    assert [code(row) for row in rows] == ["MALFORMED" if n in (3, 8) else "" for n in range(9)]
    assert [row["id"] for row in rows if not row["_error"]] == [0, 1, 2, 4, 5, 6, 7]


def test_large_frames_are_parsed_in_parts(monkeypatch):
    monkeypatch.setattr(cells, "LARGEST", 40)
    rows = decode(*(b"I,%d,%s,1" % (n, b"a" * n) for n in range(50)), b"I,8")
    assert [row["name"] or "" for row in rows[:50]] == ["a" * n for n in range(50)]
    assert code(rows[50]) == "MALFORMED"


def test_routing_finds_tombstones_and_large_records():
    decoder = DmsCsvDecoder({**DECLARED, "limits": {"message_bytes": 8}})
    routes = decoder.route(frame(None, b"I,1,a,1", b"I,1,aaaa,1", b"")).to_pylist()
    assert [(r["table"], r["ignored"]) for r in routes] == [
        (None, "tombstone"),
        ("app.items", None),
        ("app.items", None),
        ("app.items", None),
    ]
    assert [Reject.parse(r["error"]).code for r in routes[2:]] == ["TOO_LARGE", "MALFORMED"]
    unread = record(b"I,1,a,1") | {"headers": [{"name": "replicator.error", "value": b"TOO_LARGE: it is"}]}
    [route] = decoder.route(pa.Table.from_pylist([unread], RAW)).to_pylist()
    assert route["error"].startswith("TOO_LARGE: it is (row ") and route["table"] is None


def test_unknown_columns_are_refused_with_a_remedy():
    """There is neither a header row nor a declaration."""
    decoder, raw = DmsCsvDecoder(KEYED), frame(b"I,1,a")
    with pytest.raises(ConfigProblem, match=r"schema: .*csv\.header: true"):
        learnt(decoder, raw)
    [route] = decoder.route(raw).to_pylist()
    assert route["ignored"] == "table without declared columns" and route["error"] is None
    announced = DmsCsvDecoder({**KEYED, "csv": {"header": True}})
    [route] = announced.route(raw).to_pylist()
    assert "schema:" in route["error"] and "csv.header: true" in route["error"]
    table = learnt(DmsCsvDecoder(DECLARED), raw)
    assert announced.decode(raw, table)["_error"].to_pylist() == [route["error"]]


@pytest.mark.parametrize("header", [b"Op", b"Op,id,id", b"Op,,id", b'Op,"id', b"Op,\xff", b"", b"id\nname", b'Op,""'])
def test_invalid_header_rows_are_rejected(header):
    decoder, raw = DmsCsvDecoder(KEYED), frame(b"I,1", header=header)
    [route] = decoder.route(raw).to_pylist()
    assert Reject.parse(route["error"]).code == "MALFORMED" and "header row" in route["error"]
    with pytest.raises(Fatal, match="header row"):
        learnt(decoder, raw)


def test_header_rows_wider_than_allowed():
    decoder = DmsCsvDecoder({"limits": {"columns": 2}})
    [route] = decoder.route(frame(b"I,1,2", header=b"Op,a,b")).to_pylist()
    assert Reject.parse(route["error"]).code == "TOO_LARGE"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"more": 1}, "more"),
        ({"csv": {"heading": True}}, "csv.heading"),
        ({"csv": {"delimiter": ",,"}}, "csv.delimiter"),
        ({"csv": {"quote": "\n"}}, "csv.quote"),
        ({"csv": {"escape": "é"}}, "csv.escape"),
        ({"csv": {"delimiter": '"'}}, "must differ"),
        ({"csv": {"unsent_value": ""}}, "must differ"),
        ({"operation_column": ""}, "operation_column"),
        ({"operations": {"create": "I", "read": "I"}}, "in common"),
        ({"operations": {"remove": "D"}}, "operations.remove"),
        ({"schema": {"t": {"c": "list<string>"}}}, "'c' of table t"),
        ({"schema": {"t": {"c": "money"}}}, "'c' of table t"),
        ({"tombstones": "delete"}, "tombstones"),
        ({"epoch": 128}, "epoch"),
    ],
)
def test_invalid_options_are_reported(options, named):
    with pytest.raises(ConfigProblem) as problem:
        DmsCsvDecoder(options)
    assert named in str(problem.value)


def test_all_invalid_options_are_reported_at_once():
    with pytest.raises(ConfigProblem, match=r"dms_csv: .*(more.*epoch|epoch.*more)"):
        DmsCsvDecoder({"more": 1, "epoch": -1})


def test_envelope_stores_rows_unchanged():
    decoder = DmsCsvDecoder({**DECLARED, "epoch": 3})
    raw = frame(b'U,1,"a,b",', b"D,2,c,1", b"X,1,a,1", b"I,1", None, b"")
    rows = decoder.envelope(raw).to_pylist()
    assert json.loads(rows[0]["after"]) == {"Op": "U", "id": "1", "name": "a,b", "price": None} and rows[0]["before"] is None
    assert json.loads(rows[1]["before"])["name"] == "c" and rows[1]["after"] is None
    assert [r["op"] for r in rows] == ["u", "d", None, None, None, None]
    assert [bool(r["error"]) for r in rows] == [False, False, True, True, False, True]
    assert (rows[1]["seq_1"], rows[1]["seq_2"], rows[1]["table"], rows[1]["connector"]) == (FILE, 1, "app.items", "dms_csv")
    assert rows[2]["error"].startswith("UNKNOWN_OPERATION") and rows[2]["after"] is None and rows[2]["table"] is None


def test_envelopes_of_several_tables():
    decoder = DmsCsvDecoder({"schema": {"a": {"x": "string"}, "b": {"y": "string"}}})
    rows = [record(b"I,1", n=n) | {"topic": "abc"[n % 3]} for n in range(6)]
    found = decoder.envelope(pa.Table.from_pylist(rows, RAW)).to_pylist()
    assert [r["after"] and list(json.loads(r["after"])) for r in found] == [["Op", "x"], ["Op", "y"], None] * 2
    assert [r["error"] is None for r in found] == [True, True, False] * 2


FIELDS = st.lists(
    st.none() | st.text(st.characters(codec="utf-8", exclude_categories=["Cs"])) | st.text('a,"\r\n\\ \x00\ufeff'),
    min_size=3,
    max_size=3,
)


def write_field(field: str | None) -> str:
    out = io.StringIO()
    if field is not None:
        how = csv.QUOTE_ALL if field == "" else csv.QUOTE_MINIMAL
        csv.writer(out, quoting=how).writerow([field])
    return out.getvalue().removesuffix("\r\n")


@settings(max_examples=min(150, 10 * EXAMPLES))
@given(st.lists(FIELDS, min_size=1, max_size=6))
@example([["\ufeff", "\r", "\n"], ["", '"', ","]])
@example([["a", "", None]])
def test_written_values_are_read_back(table):
    """As Python's csv module writes them: an unquoted empty field is null, a quoted one is an empty text."""
    options = {"schema": {"app.items": dict.fromkeys("abc", "string")}}
    rows = decode(*(",".join(["I", *map(write_field, fields)]).encode() for fields in table), options=options)
    assert [row["_error"] for row in rows] == [None] * len(table)
    assert [[row[name] for name in "abc"] for row in rows] == table


@pytest.mark.slow
@settings(max_examples=min(300, 20 * EXAMPLES))
@given(st.lists(st.text('a,"\n\r\\', max_size=12).map(str.encode), min_size=1, max_size=6), st.sampled_from([None, "\\"]))
def test_neighbours_do_not_change_a_row(values, escape):
    options = {"schema": {"app.items": dict.fromkeys("abc", "string")}, "csv": {"escape": escape}}
    together = decode(b'I,"x,""y""",,z', *values, b"U,1,2,3", options=options)
    alone = [decode(value, options=options)[0] for value in (b'I,"x,""y""",,z', *values, b"U,1,2,3")]
    names = ("_op", "a", "b", "c", "_error")
    seen = [[[str(row[n]).partition(" (row ")[0] for n in names] for row in rows] for rows in (together, alone)]
    assert seen[0] == seen[1]


def test_grammar_and_parser_find_the_same_rows():
    dialect = CsvDialect()
    values = pa.array([b'a,"b\r\nc"', b"a,b", b'"a"",",b'], pa.binary())
    found = cells.split_rows(values, (2,), dialect)
    assert [[c.to_pylist() for c in part.columns] for part in found.parts] == [[["a", "a", 'a",'], ["b\r\nc", "b", "b"]]]
    assert not found.errors
