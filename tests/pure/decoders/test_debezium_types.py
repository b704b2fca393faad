"""Every type of Connect and Debezium: its Arrow type, and values that do not fit."""

from __future__ import annotations

import datetime as dt
import math
from base64 import b64encode
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.debezium_events import (
    ID,
    decode_frame,
    decode_value,
    get_error_code,
    make_change_event,
    make_column,
    make_event_key,
    make_raw_records,
)

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from adapters.decoders.options import PLACEHOLDER
from replicator.domain.errors import Fatal
from replicator.testing.contract import EXAMPLES

CONNECT = "org.apache.kafka.connect.data."
TIME = "io.debezium.time."
DATA = "io.debezium.data."
UTC = dt.UTC
UUID = "11111111-1111-1111-1111-111111111111"


def b64(value: bytes) -> str:
    return b64encode(value).decode()


def encode_unscaled(number: int) -> str:
    return b64(number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True))


def decimal(scale: int, precision: int | None = None) -> dict[str, Any]:
    given = {"connect.decimal.precision": str(precision)} if precision else {}
    return make_column("v", "bytes", CONNECT + "Decimal", parameters={"scale": str(scale), **given})


VARIABLE = make_column(
    "v", "struct", DATA + "VariableScaleDecimal",
    fields=[make_column("scale", "int32", optional=False), make_column("value", "bytes", optional=False)],
)  # fmt: skip
POINT = make_column(
    "v",
    "struct",
    DATA + "geometry.Point",
    fields=[
        make_column("x", "double"),
        make_column("y", "double"),
        make_column("wkb", "bytes"),
        make_column("srid", "int32"),
    ],
)

KEPT: list[tuple[dict[str, Any], Any, pa.DataType, Any]] = [
    (make_column("v", "int8"), -128, pa.int8(), -128),
    (make_column("v", "int16"), 32767, pa.int16(), 32767),
    (make_column("v", "int32"), -(2**31), pa.int32(), -(2**31)),
    (make_column("v", "int64"), 2**63 - 1, pa.int64(), 2**63 - 1),
    (make_column("v", "float"), 2.25, pa.float32(), 2.25),
    (make_column("v", "double"), 0.1, pa.float64(), 0.1),
    (make_column("v", "double"), "Infinity", pa.float64(), math.inf),
    (make_column("v", "double"), "-Infinity", pa.float64(), -math.inf),
    (make_column("v", "boolean"), False, pa.bool_(), False),
    (make_column("v", "string"), "漢字 \" \\ \u0000", pa.string(), "漢字 \" \\ \u0000"),
    (make_column("v", "bytes"), "3q2+7wA=", pa.binary(), b"\xde\xad\xbe\xef\x00"),
    (make_column("v", "bytes"), "", pa.binary(), b""),
    (make_column("v", "int32", TIME + "Date"), -56270, pa.date32(), dt.date(1815, 12, 10)),
    (make_column("v", "int32", CONNECT + "Date"), 2932896, pa.date32(), dt.date(9999, 12, 31)),
    (make_column("v", "int32", TIME + "Date"), -719162, pa.date32(), dt.date(1, 1, 1)),
    (make_column("v", "int32", TIME + "Time"), 86399999, pa.time64("us"), dt.time(23, 59, 59, 999000)),
    (make_column("v", "int32", CONNECT + "Time"), 1, pa.time64("us"), dt.time(0, 0, 0, 1000)),
    (make_column("v", "int64", TIME + "MicroTime"), 86399999999, pa.time64("us"), dt.time(23, 59, 59, 999999)),
    (make_column("v", "int64", TIME + "NanoTime"), 1000, pa.time64("ns"), dt.time(0, 0, 0, 1)),
    (make_column("v", "int64", TIME + "Timestamp"), -1, pa.timestamp("us"), dt.datetime(1969, 12, 31, 23, 59, 59, 999000)),
    (make_column("v", "int64", CONNECT + "Timestamp"), 0, pa.timestamp("us"), dt.datetime(1970, 1, 1)),
    (make_column("v", "int64", TIME + "MicroTimestamp"), 253402300799999999, pa.timestamp("us"), dt.datetime.max),
    (make_column("v", "int64", TIME + "MicroTimestamp"), -62135596800000000, pa.timestamp("us"), dt.datetime.min),
    (make_column("v", "int64", TIME + "NanoTimestamp"), 1000, pa.timestamp("ns"), dt.datetime(1970, 1, 1, 0, 0, 0, 1)),
    (make_column("v", "string", TIME + "ZonedTimestamp"), "2024-02-29T12:34:56.123456+02:00", pa.timestamp("us", "UTC"),
     dt.datetime(2024, 2, 29, 10, 34, 56, 123456, UTC)),
    (make_column("v", "string", TIME + "ZonedTimestamp"), "0001-01-01T00:00:00Z", pa.timestamp("us", "UTC"),
     dt.datetime(1, 1, 1, tzinfo=UTC)),
    (make_column("v", "string", TIME + "ZonedTime"), "23:59:59.999999+02:00", pa.string(), "23:59:59.999999+02:00"),
    (make_column("v", "string", TIME + "IsoDate"), "2017-09-15Z", pa.date32(), dt.date(2017, 9, 15)),
    (make_column("v", "string", TIME + "IsoTime"), "01:02:03.5Z", pa.time64("us"), dt.time(1, 2, 3, 500000)),
    (make_column("v", "string", TIME + "IsoTimestamp"), "2017-09-15T01:02:03.5Z", pa.timestamp("us"),
     dt.datetime(2017, 9, 15, 1, 2, 3, 500000)),
    (make_column("v", "int32", TIME + "Year"), 2024, pa.int32(), 2024),
    (make_column("v", "string", TIME + "Interval"), "P1Y2M3DT4H5M6.789S", pa.string(), "P1Y2M3DT4H5M6.789S"),
    (make_column("v", "int64", TIME + "MicroDuration"), 37091106789000, pa.int64(), 37091106789000),
    (make_column("v", "int64", TIME + "NanoDuration"), -5, pa.int64(), -5),
    (decimal(2, 10), encode_unscaled(1234), pa.decimal128(10, 2), Decimal("12.34")),
    (decimal(2, 10), encode_unscaled(-1), pa.decimal128(10, 2), Decimal("-0.01")),
    (decimal(0, 20), encode_unscaled(2**64 - 1), pa.decimal128(20, 0), Decimal(2**64 - 1)),
    (decimal(3, 38), encode_unscaled(-(10**38) + 1), pa.decimal128(38, 3), Decimal("-" + "9" * 35 + ".999")),
    (decimal(4), encode_unscaled(15), pa.decimal128(38, 4), Decimal("0.0015")),
    (decimal(30, 65), encode_unscaled(10**64), pa.decimal256(65, 30), Decimal("1" + "0" * 34 + "." + "0" * 30)),
    (decimal(-2, 3), encode_unscaled(12), pa.decimal128(5, 0), Decimal(1200)),
    (decimal(5, 100), encode_unscaled(-(10**80)), pa.string(), "-1" + "0" * 75 + ".00000"),
    (VARIABLE, {"scale": 9, "value": "J+QbMka+ybFuOYEV"}, pa.string(), "12345678901234567890.123456789"),
    (VARIABLE, {"scale": 1, "value": "AQ=="}, pa.string(), "0.1"),
    (VARIABLE, {"scale": -3, "value": "/w=="}, pa.string(), "-1000"),
    (make_column("v", "bytes", DATA + "Bits", parameters={"length": "9"}), "VQE=", pa.binary(), b"U\x01"),
    (make_column("v", "string", DATA + "Json"), '{"a": 1.10}', pa.string(), '{"a": 1.10}'),
    (make_column("v", "string", DATA + "Xml"), "<a/>", pa.string(), "<a/>"),
    (make_column("v", "string", DATA + "Uuid"), UUID, pa.string(), UUID),
    (make_column("v", "string", DATA + "Enum", parameters={"allowed": "x,y"}), "y", pa.string(), "y"),
    (make_column("v", "string", DATA + "EnumSet", parameters={"allowed": "a,b"}), "a,b", pa.string(), "a,b"),
    (make_column("v", "string", DATA + "TsVector"), "'a':1", pa.string(), "'a':1"),
    (make_column("v", "array", items={"type": "string", "optional": True}), ["a", None], pa.list_(pa.string()), ["a", None]),
    (make_column("v", "array", items={"type": "int32", "optional": True}), [], pa.list_(pa.int32()), []),
    (make_column("v", "array", items={"type": "array", "items": {"type": "int64"}}), [[1], []],
     pa.list_(pa.list_(pa.int64())), [[1], []]),
    (make_column("v", "array", items=make_column("", "int64", TIME + "MicroTimestamp")), [0, None],
     pa.list_(pa.timestamp("us")), [dt.datetime(1970, 1, 1), None]),
    (make_column("v", "array", items=decimal(2, 5)), [encode_unscaled(150), None],
     pa.list_(pa.decimal128(5, 2)), [Decimal("1.50"), None]),
    (make_column("v", "array", DATA + "FloatVector", items={"type": "float"}), [1.5], pa.list_(pa.float32()), [1.5]),
    (make_column("v", "map", keys={"type": "string"}, values={"type": "string", "optional": True}), {"a": "b", "c": None},
     pa.map_(pa.string(), pa.string()), [("a", "b"), ("c", None)]),
    (make_column("v", "map", keys={"type": "int16"}, values={"type": "double"}), [[3, 1.5]],
     pa.map_(pa.int16(), pa.float64()), [(3, 1.5)]),
    (POINT, {"x": 1.0, "y": -2.5, "wkb": "AQE=", "srid": None},
     pa.struct([("x", pa.float64()), ("y", pa.float64()), ("wkb", pa.binary()), ("srid", pa.int32())]),
     {"x": 1.0, "y": -2.5, "wkb": b"\x01\x01", "srid": None}),
]  # fmt: skip


def ids(case: Any) -> str | None:
    return f"{case['type']}-{case.get('name', '').rsplit('.', 1)[-1]}" if isinstance(case, dict) and "type" in case else None


@pytest.mark.parametrize(("said", "sent", "arrow", "expected"), KEPT, ids=ids)
def test_type_is_kept_without_loss(said: dict[str, Any], sent: Any, arrow: pa.DataType, expected: Any) -> None:
    frame = make_raw_records(
        [
            make_change_event([ID, said], after={"id": 1, "v": sent}),
            make_change_event([ID, said], after={"id": 2, "v": None}),
        ]
    )
    decoder = DebeziumJsonDecoder({})
    route = decoder.route(frame)
    spec = decoder.learn(frame, "public.t", route["fingerprint"][0].as_py())
    assert spec.column("v").type == arrow
    assert spec.column("v").source_type == said.get("name", "")
    assert (spec.column("id").nullable, spec.column("v").nullable) == (False, True)
    changes = decoder.decode(frame, spec)
    changes.validate(full=True)
    first, second = changes.to_pylist()
    assert (first["_error"], first["_unsent"], second["v"]) == (None, None, None)
    assert str(first["v"]) == str(expected)
    assert first["v"] == expected


def test_nan_is_kept() -> None:
    assert math.isnan(decode_value([ID, make_column("v", "double")], "NaN")["v"])


REFUSED = [
    (make_column("v", "int16"), 40_000, "OUT_OF_RANGE"),
    (make_column("v", "int64"), 2**63, "OUT_OF_RANGE"),
    (make_column("v", "int64"), int("9" * 100), "OUT_OF_RANGE"),
    (make_column("v", "int64"), "1", "MALFORMED"),
    (make_column("v", "int64"), 1.5, "MALFORMED"),
    (make_column("v", "string"), 5, "MALFORMED"),
    (make_column("v", "bytes"), "no base64!", "MALFORMED"),
    (make_column("v", "float"), 1e300, "OUT_OF_RANGE"),
    (make_column("v", "double"), "much", "MALFORMED"),
    (make_column("v", "int32", TIME + "Date"), 2_147_483_647, "OUT_OF_RANGE"),
    (make_column("v", "int32", TIME + "Date"), 2_932_897, "OUT_OF_RANGE"),
    (make_column("v", "int64", TIME + "MicroTime"), 86_400_000_000, "OUT_OF_RANGE"),
    (make_column("v", "int64", TIME + "MicroTime"), -1, "OUT_OF_RANGE"),
    (make_column("v", "int64", TIME + "Timestamp"), 2**62, "OUT_OF_RANGE"),
    (make_column("v", "int64", TIME + "MicroTimestamp"), 9223372036825200000, "OUT_OF_RANGE"),
    (make_column("v", "int64", TIME + "MicroTimestamp"), -9223372036832400000, "OUT_OF_RANGE"),
    (make_column("v", "int64", TIME + "MicroTimestamp"), 2**63, "OUT_OF_RANGE"),
    (make_column("v", "int64", TIME + "NanoTimestamp"), 2**63 - 1, "OUT_OF_RANGE"),
    (make_column("v", "int64", TIME + "NanoTimestamp"), -(2**63), "OUT_OF_RANGE"),
    (make_column("v", "string", TIME + "ZonedTimestamp"), "-infinity", "OUT_OF_RANGE"),
    (make_column("v", "string", TIME + "ZonedTimestamp"), "+10000-01-01T00:00:00Z", "OUT_OF_RANGE"),
    (make_column("v", "string", TIME + "ZonedTimestamp"), "0000-12-31T00:00:00Z", "OUT_OF_RANGE"),
    (make_column("v", "string", TIME + "ZonedTimestamp"), "2024-01-01T00:00:00.1234567Z", "OUT_OF_RANGE"),
    (make_column("v", "string", TIME + "IsoDate"), "tomorrow", "OUT_OF_RANGE"),
    (make_column("v", "string", TIME + "IsoTime"), "24:00:01Z", "OUT_OF_RANGE"),
    (decimal(2, 5), encode_unscaled(100_000), "OUT_OF_RANGE"),
    (decimal(2, 20), encode_unscaled(10**20), "OUT_OF_RANGE"),
    (decimal(2), encode_unscaled(-(10**38)), "OUT_OF_RANGE"),
    (decimal(2), "", "OUT_OF_RANGE"),
    (VARIABLE, {"scale": 2**31 - 1, "value": "AQ=="}, "OUT_OF_RANGE"),
    (VARIABLE, {"scale": -(2**31), "value": "AQ=="}, "OUT_OF_RANGE"),
    (VARIABLE, {"scale": 1}, "MALFORMED"),
    (make_column("v", "array", items={"type": "int16"}), [1, 99_998], "OUT_OF_RANGE"),
    (make_column("v", "array", items={"type": "int16"}), {"a": 1}, "MALFORMED"),
    (make_column("v", "map", keys={"type": "int16"}, values={"type": "int16"}), [[None, 1]], "MALFORMED"),
]


@pytest.mark.parametrize(("said", "sent", "expected"), REFUSED, ids=ids)
def test_unconvertible_value_is_rejected_alone(said: dict[str, Any], sent: Any, expected: str) -> None:
    rows = [{"id": 1, "v": None}, {"id": 2, "v": sent}, {"id": 3, "v": None}]
    before, refused, after = decode_frame(make_raw_records([make_change_event([ID, said], after=row) for row in rows]))
    assert (get_error_code(before), get_error_code(refused), get_error_code(after)) == (None, expected, None)
    assert (before["id"], refused["_offset"], after["id"]) == (1, 1, 3)
    for secret in ("40000", "much", "infinity!", "tomorrow", "99998"):
        assert secret not in refused["_error"]


def test_delete_with_an_unconvertible_value_is_applied() -> None:
    columns = [ID, make_column("v", "int64", TIME + "MicroTimestamp")]
    (change,) = decode_frame(
        make_raw_records([make_change_event(columns, op="d", before={"id": 1, "v": 9223372036825200000})])
    )
    assert (change["_error"], change["id"], change["v"], change["_unsent"]) == (None, 1, None, ["v"])


@pytest.mark.parametrize("number", ["12.34", "-0.01", "0", "1e2", "99999999.99"])
def test_decimals_as_json_numbers_are_exact(number: str) -> None:
    columns = [ID, decimal(2, 10)]
    text = make_change_event(columns, after={"id": 1, "v": "@"}).replace(b'"@"', number.encode())
    mixed = make_raw_records([text, make_change_event(columns, after={"id": 2, "v": encode_unscaled(5)}), text])
    assert [c["v"] for c in decode_frame(mixed)] == [Decimal(number), Decimal("0.05"), Decimal(number)]


def test_decimal_number_with_too_many_digits_is_rejected() -> None:
    text = make_change_event([ID, decimal(2, 10)], after={"id": 1, "v": "@"})
    changes = decode_frame(
        make_raw_records([text.replace(b'"@"', n) for n in (b"1.005", b"1e999999999", b"123456789.00", b"1.5")])
    )
    assert [get_error_code(c) for c in changes] == ["OUT_OF_RANGE"] * 3 + [None]


def test_unknown_type_is_fatal() -> None:
    frame = make_raw_records([make_change_event([ID, make_column("v", "int128")], after={"id": 1, "v": 1})])
    decoder = DebeziumJsonDecoder({})
    with pytest.raises(Fatal, match="int128"):
        decoder.learn(frame, "public.t", decoder.route(frame)["fingerprint"][0].as_py())


ANY = st.one_of(
    st.tuples(st.just(make_column("v", "int64")), st.integers(-(2**63), 2**63 - 1), st.none()),
    st.tuples(st.just(make_column("v", "string")), st.text(st.characters(exclude_categories=["Cs"])), st.none()),
    st.tuples(st.just(make_column("v", "double")), st.floats(allow_nan=False, allow_infinity=False), st.none()),
    st.integers(0, 20).flatmap(
        lambda scale: st.tuples(st.just(decimal(scale, 38)), st.integers(-(10**38) + 1, 10**38 - 1), st.just(scale))
    ),
    st.tuples(st.just(make_column("v", "bytes")), st.binary(), st.none()),
    st.tuples(st.just(make_column("v", "int64", TIME + "MicroTimestamp")), st.datetimes(), st.none()),
    st.tuples(st.just(make_column("v", "int32", TIME + "Date")), st.dates(), st.none()),
    st.tuples(
        st.just(make_column("v", "array", items={"type": "string"})),
        st.lists(st.none() | st.text('ab"\\é', max_size=3)),
        st.none(),
    ),
)


def sent_as(value: Any, scale: int | None) -> Any:
    if scale is not None:
        return encode_unscaled(value)
    if isinstance(value, bytes):
        return b64(value)
    if isinstance(value, dt.datetime):
        return (value - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)
    return (value - dt.date(1970, 1, 1)).days if isinstance(value, dt.date) else value


@settings(max_examples=min(300, 20 * EXAMPLES))
@given(ANY)
def test_any_value_is_decoded_unchanged(case: tuple[dict[str, Any], Any, int | None]) -> None:
    said, value, scale = case
    assume(value not in (PLACEHOLDER, PLACEHOLDER.encode()))  # Which stands for a value that was not sent.
    change = decode_value([ID, said], sent_as(value, scale))
    assert change["_error"] is None
    if scale is not None:
        sign, digits, exponent = change["v"].as_tuple()
        assert (-1 if sign else 1) * int("".join(map(str, digits))) == value
        assert -exponent == scale
    else:
        assert change["v"] == value


def test_delete_with_decimals_as_numbers_is_decoded() -> None:
    """`decimal.format=NUMERIC`, beside a delete whose decimals have the form of the schema."""
    columns = [ID, decimal(2, 10)]
    images = ({"id": 1, "v": 12.5}, {"id": 2, "v": encode_unscaled(1250)})
    rows = decode_frame(
        make_raw_records([make_change_event(columns, op="d", before=image, at=1000 + i) for i, image in enumerate(images)])
    )
    assert [(row["_op"], row["id"], row["v"]) for row in rows] == [("d", 1, Decimal("12.50")), ("d", 2, Decimal("12.50"))]
    key, other_key = (make_event_key([decimal(2, 10)], v=value) for value in (12.5, encode_unscaled(1250)))
    rows = decode_frame(make_raw_records([None, None], [key, other_key]), {"tombstones": "delete"})
    assert [(row["_op"], row["v"], row["_error"]) for row in rows] == [("d", Decimal("12.50"), None)] * 2
    (other,) = decode_frame(make_raw_records([make_change_event(columns, op="d", before={"id": 1, "v": {}})]))
    assert (other["_error"], other["_unsent"], other["v"]) == (None, ["v"], None)
