"""Dates and times that no target can hold, in every format: what becomes of them is what their table says."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest
from support.debezium_events import make_payload
from support.dts_records import BIGINT, DATE, DATETIME, TIME, encode_record, make_datetime, make_integer, make_record

from adapters.arrow import temporal_values
from adapters.arrow.temporal_values import make_lenient
from adapters.arrow.value_readers import ValueReader
from adapters.decoders.canal_json import CanalJsonDecoder
from adapters.decoders.debezium_json import DebeziumJsonDecoder
from adapters.decoders.dms_csv import DmsCsvDecoder
from adapters.decoders.dts_avro import DtsAvroDecoder
from adapters.decoders.maxwell_json import MaxwellJsonDecoder
from adapters.decoders.ogg_json import OggJsonDecoder
from adapters.decoders.rows import RowsDecoder
from replicator.domain.change import RAW
from replicator.domain.out_of_range import LaneReads, OutOfRange
from replicator.ports.decoder import Decoder

NONE: frozenset[str] = frozenset()
V = frozenset({"v"})
RULES = {
    "reject": OutOfRange(),
    "null": OutOfRange("null"),
    "clamp": OutOfRange("clamp"),
    "text": OutOfRange(lanes=(LaneReads(None, NONE, NONE, V),)),
    "unread": OutOfRange(lanes=(LaneReads(None, V, NONE),)),
}
Write = Callable[[int, str | None, str], bytes]
"""A record of the row with this id, this value in its column `v`, and this type of the column."""


def canal(key: int, value: str | None, kind: str) -> bytes:
    names = {"database": "d", "table": "t", "type": "INSERT", "pkNames": ["id"]}
    mysql = {
        "id": "int",
        "v": "datetime" if kind.startswith("timestamp") else kind.removesuffix("32").removesuffix("64[us]"),
    }
    return json.dumps({**names, "mysqlType": mysql, "data": [{"id": str(key), "v": value}]}).encode()


def maxwell(key: int, value: str | None, _: str) -> bytes:
    return json.dumps({"database": "d", "table": "t", "type": "insert", "ts": 1, "data": {"id": key, "v": value}}).encode()


def ogg(key: int, value: str | None, _: str) -> bytes:
    return json.dumps({"table": "d.t", "op_type": "I", "pos": str(key), "after": {"id": key, "v": value}}).encode()


def csv(key: int, value: str | None, _: str) -> bytes:
    return f"I,{key},{'' if value is None else value}".encode()


def row(key: int, value: str | None, _: str) -> bytes:
    return json.dumps({"_op": "c", "_version": 1, "_order": key, "_row": 1, "id": key, "v": value}).encode()


def debezium(key: int, value: str | None, _: str) -> bytes:
    return json.dumps(make_payload(after={"id": key, "v": value})).encode()


def dts(key: int, value: str | None, kind: str) -> bytes:
    number = {"date32": DATE, "time64[us]": TIME, "timestamp[us]": DATETIME}[kind]
    parts = [int(part) for part in (value or "").replace("-", " ").replace(":", " ").split()]
    said = (
        None
        if value is None
        else make_datetime(None, None, None, *parts, 0)
        if kind.startswith("time6")
        else make_datetime(*parts)
    )
    sent = ("com.alibaba.dts.formats.avro.EmptyObject", "NULL") if said is None else said
    return encode_record(make_record("INSERT", {"id": BIGINT, "v": number}, None, [make_integer(key), sent]))


FORMATS: Mapping[str, tuple[Callable[[Any], Decoder], Write]] = {
    "canal": (CanalJsonDecoder, canal),
    "maxwell": (MaxwellJsonDecoder, maxwell),
    "ogg": (OggJsonDecoder, ogg),
    "csv": (DmsCsvDecoder, csv),
    "rows": (RowsDecoder, row),
    "debezium": (DebeziumJsonDecoder, debezium),
    "dts": (DtsAvroDecoder, dts),
}
TYPED = ("canal", "dts")
"""Formats whose records say the types of their columns."""
FINE = {"date32": "2024-02-29", "time64[us]": "10:00:00", "timestamp[us]": "2024-02-29 10:00:00"}
TEXTS = {"date32": "2024-02-29", "time64[us]": "10:00:00.000000", "timestamp[us]": "2024-02-29 10:00:00.000000"}
BEYOND = [
    ("date32", "0000-00-00", "0001-01-01"),
    ("date32", "infinity", "9999-12-31"),
    ("date32", "0044-03-15 BC", "0001-01-01"),
    ("date32", "2024-00-00", None),
    ("time64[us]", "838:59:59", "23:59:59.999999"),
    ("time64[us]", "-838:59:59", "00:00:00"),
    ("timestamp[us]", "0000-00-00 00:00:00", "0001-01-01 00:00:00"),
    ("timestamp[us]", "-infinity", "0001-01-01 00:00:00"),
]
NO_WORDS = ("0000-00-00", "0000-00-00 00:00:00", "838:59:59")
"""Records of DTS have parts of dates and times, and no other texts."""


def decode_values(form: str, kind: str, rules: OutOfRange, *values: str | None, **more: Any) -> list[dict[str, Any]]:
    make, write = FORMATS[form]
    options: dict[str, Any] = {"out_of_range": {"*": rules}, "keys": {"*": ["id"]}, **more}
    if form not in TYPED:
        options["schema"] = {"*": {"id": "int64", "v": kind}}
    decoder = make(options)
    records = [write(number, value, kind) for number, value in enumerate(values, 1)]
    frame = pa.Table.from_pylist(
        [
            {"topic": "public.t", "partition": 0, "timestamp": 0, "offset": n, "key": b'{"id":%d}' % n, "value": one}
            for n, one in enumerate(records, 1)
        ],
        RAW,
    )
    route = decoder.route(frame).to_pylist()[0]
    spec = decoder.learn(frame, route["table"], route["fingerprint"])
    found: list[dict[str, Any]] = decoder.decode(frame, spec).to_pylist()
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "value", "nearest"), BEYOND)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("rule", RULES)
def test_each_rule_applies_in_each_format(form: str, rule: str, kind: str, value: str, nearest: str | None) -> None:
    if form == "dts" and value not in NO_WORDS:
        return
    fine, beyond, null = decode_values(form, kind, RULES[rule], FINE[kind], value, None)
    assert fine["_error"] is None and null["_error"] is None and null["v"] is None
    assert str(fine["v"]) == (TEXTS if rule == "text" else FINE)[kind]
    if rule == "reject" or (rule == "clamp" and nearest is None):
        assert beyond["_error"].startswith("OUT_OF_RANGE: column 'v' holds ") and beyond["v"] is None
        assert ("`out_of_range`" in beyond["_error"]) == (rule == "reject")
    else:
        assert beyond["_error"] is None
        assert beyond["v"] == value if rule == "text" else str(beyond["v"]) == str(nearest if rule == "clamp" else None)


@pytest.mark.parametrize("rule", ["null", "clamp", "text"])
@pytest.mark.parametrize("form", [form for form in FORMATS if form != "dts"])
def test_invalid_date_is_rejected_with_every_rule(form: str, rule: str) -> None:
    fine, strange, number = decode_values(form, "date32", RULES[rule], "2024-02-29", "abc", "12")
    assert fine["_error"] is None
    for one in (strange, number):
        assert one["_error"].startswith("OUT_OF_RANGE: column 'v' holds ") and "out_of_range" not in one["_error"]


@pytest.mark.parametrize("form", FORMATS)
def test_key_out_of_range_is_rejected_with_every_rule(form: str) -> None:
    for rule in ("null", "clamp", "text"):
        found = decode_values(form, "date32", RULES[rule], "0000-00-00", keys={"*": ["v"]})
        assert found[0]["_error"].startswith("OUT_OF_RANGE: column 'v' holds ")


@pytest.mark.parametrize(("node", "values"), [
    (temporal_values.date_reader(), {-(2**31): "-infinity", -2_147_472_691: "-infinity", -2_147_472_692: "infinity",
                       2**31 - 1: "infinity", -735_160: "0044-03-15 BC", 2_932_897: "10000-01-01",
                       -719_163: "0001-12-31 BC", -719_528: "0001-01-01 BC", -719_529: "0002-12-31 BC"}),
    (temporal_values.timestamp_reader(1_000), {9_223_372_036_825_200: "infinity", -9_223_372_036_832_400: "-infinity",
                                 -735_160 * 86_400_000 + 1: "0044-03-15 00:00:00.001000 BC"}),
    (temporal_values.timestamp_reader(1_000_000, temporal_values.UTC_US), {9_223_372_036_825_200_000: "infinity",
                                                      253_402_300_800_000_000: "10000-01-01 00:00:00.000000Z"}),
    (temporal_values.timestamp_reader(1_000_000_000), {2**63 - 1: "infinity", -(2**63): "-infinity"}),
    (temporal_values.time_reader(1_000_000), {86_400_000_000: "24:00:00.000000", -3_020_399_000_001: "-838:59:59.000001"}),
    (temporal_values.time_reader(1_000_000_000), {86_400_000_000_001: "24:00:00.000000001"}),
    (temporal_values.iso_timestamp_reader(temporal_values.UTC_US),
     {"-0043-03-15T00:00:00Z": "0044-03-15 00:00:00Z BC", "infinity": "infinity"}),
])  # fmt: skip
def test_rule_text_keeps_the_text_of_the_value(node: ValueReader, values: Mapping[Any, str]) -> None:
    assert make_lenient(node, "text").build([*values, None]).to_pylist() == [*values.values(), None]


def test_infinite_date_of_postgresql_is_after_all_others() -> None:
    first, last = make_lenient(temporal_values.date_reader(), "clamp").build([-2_147_472_691, -2_147_472_692]).to_pylist()
    assert (str(first), str(last)) == ("0001-01-01", "9999-12-31")


@pytest.mark.parametrize(
    ("kind", "value", "sentence"),
    [
        ("date32", "12", "a number, and no date such as 2024-02-29 (`int64` has numbers)"),
        ("date32", "abc", "something else than a date such as 2024-02-29 (`string` has any text)"),
        ("date32", "2024-02-29Z", "a date with a zone, and its type has none (`string` has any text)"),
        ("date32", "2024-02-29 10:00:00", "a date with a time of day, and its type has none (`timestamp[us]` has)"),
        ("date32", "2023-02-29", "a day that no calendar has, or text behind it (`string` has any text)"),
        ("timestamp[us]", "12", "a number, whose unit is not known, and no time such as 2024-02-29 23:59:59"),
        ("timestamp[us]", "abc", "something else than a time such as 2024-02-29 23:59:59 (`string` has any text)"),
        (
            "timestamp[us]",
            "2024-02-29 10:00:00+02:00",
            "a time with a zone, and its type has none (`timestamp[us, UTC]` has)",
        ),
        ("timestamp[us]", "2024-02-29 10:00:00.1234567", "a time with more places than its type (`timestamp[ns]` has nine)"),
        ("timestamp[us]", "2023-02-29 10:00:00", "a day or a time that no calendar has, or text behind it"),
        ("time64[us]", "2024-02-29 10:00:00", "a time with its date, and its type has none (`timestamp[us]` has)"),
        ("time64[us]", "abc", "something else than a time of day such as 23:59:59 (`string` has any text)"),
        ("time64[us]", "10:00:00Z", "a time of day with a zone behind it, and its type has none"),
        ("time64[us]", "10:00:00 x", "a time of day with text behind it, and its type has none"),
        ("time64[us]", "10:00:00.1234567", "a time of day with more places than microseconds"),
    ],
)
def test_message_describes_the_value_and_its_type(kind: str, value: str, sentence: str) -> None:
    (found,) = decode_values("maxwell", kind, RULES["reject"], value)
    assert found["_error"].startswith(f"OUT_OF_RANGE: column 'v' holds {sentence}")


def test_bytes_of_canal_are_characters_of_latin1() -> None:
    fine, wrong = decode_values("canal", "binary(2)", RULES["reject"], "a\xff", "a\u4e2d")
    assert (fine["_error"], fine["v"]) == (None, b"a\xff")
    assert wrong["_error"].startswith("MALFORMED: column 'v' holds a character that stands for no byte (ISO-8859-1)")
