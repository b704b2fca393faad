"""Private columns of every Debezium type."""

from __future__ import annotations

import json
import pickle
import struct
from base64 import b64encode
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.debezium_events import ID, make_change_event, make_column, make_event_key, make_payload, make_raw_records
from support.masked_records import CUT, FIXED, HMAC, NOTHING, compute_hmac, decode_changes

from adapters.decoders.canal_json import CanalJsonDecoder
from adapters.decoders.debezium_json import DebeziumJsonDecoder
from adapters.decoders.options import PLACEHOLDER
from adapters.decoders.rows import RowsDecoder
from replicator.domain.errors import ConfigProblem
from replicator.testing.contract import EXAMPLES

CONNECT, TIME, DATA = "org.apache.kafka.connect.data.", "io.debezium.time.", "io.debezium.data."
TABLE = "public.t"
DAY_US = 86_400_000_000
FIRST, LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
HOLDER = b64encode(PLACEHOLDER.encode()).decode()
HEX = set("0123456789abcdef")


def encode_unscaled(number: int) -> str:
    return b64encode(number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)).decode()


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return make_column(
        "v", "bytes", f"{CONNECT}Decimal", parameters={"scale": str(scale), "connect.decimal.precision": str(precision)}
    )


def whole(low: int, high: int, *beyond: int) -> st.SearchStrategy[Any]:
    """Numbers of that range, its ends often, and some that are in none."""
    return st.one_of(st.integers(low, high), st.sampled_from([low, high, 0, *beyond]))


INFINITY = (-9223372036832400000, 9223372036825200000, 2**64)
VARIABLE = make_column(
    "v", "struct", f"{DATA}VariableScaleDecimal",
    fields=[make_column("scale", "int32", optional=False), make_column("value", "bytes", optional=False)],
)  # fmt: skip
FLOATS = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False), st.sampled_from(["NaN", "Infinity", "-Infinity"])
)
MOMENTS = st.one_of(
    st.datetimes(timezones=st.just(UTC)).map(lambda v: v.isoformat().replace("+00:00", "Z")),
    st.sampled_from(["2024-02-29T12:00:00+02:00", "0001-01-01T00:00:00Z", "10000-01-01T00:00:00Z", "infinity"]),
)
KINDS: dict[str, tuple[dict[str, Any], st.SearchStrategy[Any], str]] = {
    "date": (make_column("v", "int32", f"{TIME}Date"), whole(-719162, 2932896, 2**31 - 1, -(2**31)), "date32"),
    "connect date": (make_column("v", "int32", f"{CONNECT}Date"), whole(-719162, 2932896), "date32"),
    "time in ms": (make_column("v", "int32", f"{TIME}Time"), whole(0, 86_399_999, 86_400_000, -1), "time32[ms]"),
    "time in us": (make_column("v", "int64", f"{TIME}MicroTime"), whole(0, DAY_US - 1, DAY_US), "time64[us]"),
    "time in ns": (make_column("v", "int64", f"{TIME}NanoTime"), whole(0, DAY_US * 1000 - 1, -1), "time64[ns]"),
    "stamp in ms": (
        make_column("v", "int64", f"{TIME}Timestamp"),
        whole(FIRST // 1000, LAST // 1000, *INFINITY),
        "timestamp[ms]",
    ),
    "stamp in us": (make_column("v", "int64", f"{TIME}MicroTimestamp"), whole(FIRST, LAST, *INFINITY), "timestamp[us]"),
    "stamp in ns": (make_column("v", "int64", f"{TIME}NanoTimestamp"), whole(-(2**63), 2**63 - 1, 2**63), "timestamp[ns]"),
    "zoned": (make_column("v", "string", f"{TIME}ZonedTimestamp"), MOMENTS, "timestamp[us, UTC]"),
    "iso stamp": (make_column("v", "string", f"{TIME}IsoTimestamp"), MOMENTS, ""),
    "iso date": (
        make_column("v", "string", f"{TIME}IsoDate"),
        st.one_of(st.dates().map(date.isoformat), st.sampled_from(["2017-09-15Z", "infinity"])),
        "",
    ),
    "iso time": (
        make_column("v", "string", f"{TIME}IsoTime"),
        st.one_of(st.times().map(time.isoformat), st.sampled_from(["24:00:00", "01:02:03.5Z"])),
        "",
    ),
    "decimal": (decimal(10, 2), st.one_of(whole(-(10**10), 10**10).map(encode_unscaled), st.just(HOLDER)), ""),
    "decimal as a number": (decimal(10, 2), st.decimals(-(10**7), 10**7, places=2).map(float), "decimal(10,2)"),
    "long decimal": (decimal(38, 10), whole(-(10**38), 10**38).map(encode_unscaled), ""),
    "longer decimal": (decimal(76, 5), st.one_of(whole(-(10**76), 10**76).map(encode_unscaled), st.just(HOLDER)), ""),
    "longest decimal": (decimal(100, 5), st.one_of(whole(-(10**90), 10**90).map(encode_unscaled), st.just(HOLDER)), ""),
    "decimal of any scale": (
        VARIABLE,
        st.builds(
            lambda scale, value: {"scale": scale, "value": value},
            st.integers(-5, 40),
            st.one_of(st.integers(-(10**40), 10**40).map(encode_unscaled), st.just(HOLDER)),
        ),
        "",
    ),
    "bytes": (
        make_column("v", "bytes"),
        st.one_of(st.binary(max_size=40).map(lambda v: b64encode(v).decode()), st.just(HOLDER)),
        "binary",
    ),
    "float": (make_column("v", "float"), FLOATS, "float32"),
    "double": (make_column("v", "double"), st.one_of(FLOATS, st.sampled_from([1e300, 5e-324, -0.0, 0.1])), "float64"),
    "boolean": (make_column("v", "boolean"), st.booleans(), "bool"),
    "byte": (make_column("v", "int8"), whole(-128, 127, 128), "int8"),
    "year": (make_column("v", "int32", f"{TIME}Year"), whole(-(2**31), 2**31 - 1, 2**31), "int32"),
    "text": (make_column("v", "string"), st.text(max_size=30), "string"),
}
STRAY = st.sampled_from([None, PLACEHOLDER, "x", 1.5, 7, True, {}, [], {"a": 1}, 10**30])
"""What may come in place of a value of any type."""
NAMES = pytest.mark.parametrize("name", KINDS)
OPS = st.sampled_from(["c", "r", "u", "d", "d"])


def decoder(mask: Any, **more: Any) -> Any:
    """As it is once it was sent to executors."""
    return pickle.loads(pickle.dumps(DebeziumJsonDecoder({"private": {TABLE: {"v": mask}, "public.other": {}}, **more})))


def values(name: str) -> st.SearchStrategy[list[tuple[str, Any]]]:
    _, own, _ = KINDS[name]
    return st.lists(st.tuples(OPS, st.one_of(own, own, own, STRAY)), min_size=1, max_size=12)


def change(op: str, value: Any, number: int) -> dict[str, Any]:
    """With a row before that nobody reads, where it is an update."""
    row = {"id": number, "v": value}
    images = {"before": row} if op == "d" else {"after": row, "before": row if op == "u" else None}
    return {"op": op, "at": 1000 + number, **images}


def canonical(value: Any, kind: str) -> str:
    """The text of a value, as the documentation has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return f"{value.year:04}-{value:%m-%d %H:%M:%S}.{value.microsecond:06}"
    if isinstance(value, Decimal):
        text = f"{value:f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
        return "0" if text in ("-0", "") else text
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    return value.hex() if isinstance(value, bytes) else str(value)


def without_reasons(rows: list[dict[str, Any]], mask: Any) -> list[dict[str, Any]]:
    """Without the reasons of rejects; of what is NULL whatever was sent nobody needs to know whether it was."""
    if mask is NOTHING:
        rows = [row | ({"_unsent": None} if row.get("_op") in ("d", "u") else {}) for row in rows]
    return [{"_offset": r["_offset"]} if r["_error"] else {n: v for n, v in r.items() if n != "_schema"} for r in rows]


def is_kept(token: Any, mask: Any) -> bool:
    """Whether what stands for a value in a record tells no more of it than the mask does."""
    if token is None or token in ({}, PLACEHOLDER, HOLDER):
        return True
    if mask is FIXED:
        return bool(token == "*")
    text, length = (str(token), 64) if mask is HMAC else (str(token)[-16:], 16)
    return len(text) == length and set(text) <= HEX


def check_stored(records: Any, by: Any, mask: Any) -> None:
    """It is read again as it was read, and stays as it is when it is masked once more."""
    veiled = by.mask_records(records)
    again = pickle.loads(pickle.dumps(by))
    assert without_reasons(decode_changes(veiled, again), mask) == without_reasons(decode_changes(records, by), mask)
    assert again.mask_records(veiled).equals(veiled)
    for text in veiled["value"].to_pylist():
        said = json.loads(text)
        said = said.get("payload", said)
        for image in filter(None, (said["before"], said["after"])):
            assert mask is NOTHING or is_kept(image["v"], mask), image
            assert mask is not NOTHING or image["v"] in (None, {}, 0, PLACEHOLDER, HOLDER) or HOLDER in str(image["v"])


@pytest.mark.slow
@NAMES
@pytest.mark.parametrize("mask", [HMAC, CUT, FIXED, NOTHING], ids=lambda mask: mask.kind)
def test_masked_events_with_a_schema(name: str, mask: Any) -> None:
    columns = [ID, KINDS[name][0]]

    @settings(max_examples=EXAMPLES)
    @given(values(name))
    def check(rows: list[tuple[str, Any]]) -> None:
        texts = [make_change_event(columns, **change(op, value, i)) for i, (op, value) in enumerate(rows)]
        check_stored(make_raw_records(texts, [make_event_key(id=i) for i in range(len(rows))]), decoder(mask), mask)

    check()


@pytest.mark.slow
@NAMES
@pytest.mark.parametrize("mask", [HMAC, NOTHING], ids=lambda mask: mask.kind)
def test_masked_events_without_a_schema(name: str, mask: Any) -> None:
    declared = KINDS[name][2]
    if not declared:
        pytest.skip("no declared type reads these")
    by = decoder(mask, schema={TABLE: {"id": "int64", "v": declared}})

    @settings(max_examples=EXAMPLES)
    @given(values(name))
    def check(rows: list[tuple[str, Any]]) -> None:
        texts = [json.dumps(make_payload(**change(op, value, i))).encode() for i, (op, value) in enumerate(rows)]
        check_stored(make_raw_records(texts, [b'{"id":%d}' % i for i in range(len(rows))]), by, mask)

    check()


@pytest.mark.slow
@NAMES
def test_hash_is_that_of_the_text_of_the_value(name: str) -> None:
    """The text that a lane without the mask would have, whatever form the record has."""
    columns = [ID, KINDS[name][0]]

    @settings(max_examples=EXAMPLES)
    @given(values(name))
    def check(rows: list[tuple[str, Any]]) -> None:
        records = make_raw_records(
            [
                make_change_event(columns, op="c", after={"id": 1, "v": value}, at=1000 + i)
                for i, (_, value) in enumerate(rows)
            ]
        )
        clear, masked = (decode_changes(records, by) for by in (DebeziumJsonDecoder(), decoder(HMAC)))
        for before, after in zip(clear, masked, strict=True):
            assert before["_error"] == after["_error"]
            if before["_error"] is None and "ns" not in name:
                assert after["v"] == (before["v"] if before["v"] is None else compute_hmac(canonical(before["v"], name)))

    check()


@pytest.mark.slow
@NAMES
@pytest.mark.parametrize("schemas", ["both", "of values", "none"])
def test_key_has_one_mask_in_message_key_row_and_header(name: str, schemas: str) -> None:
    said, own, declared = KINDS[name]
    if schemas == "none" and not declared:
        pytest.skip("no declared type reads these")
    column_of_key = {**said, "optional": False}
    columns = [column_of_key, make_column("note", "string")]
    by = decoder(HMAC, **({"schema": {TABLE: {"v": declared, "note": "string"}}} if schemas == "none" else {}))

    sent = own.filter(lambda value: HOLDER not in str(value))  # Keys always are.
    rows: list[tuple[str, bool, bool]] = [("c", True, False), ("u", True, True), ("d", False, True), ("c", True, False)]
    if name != "decimal as a number":
        rows.insert(3, ("d", False, False))  # Whose key tells it, where decoding takes no decimals as numbers.

    @settings(max_examples=EXAMPLES)
    @given(sent, sent)
    def check(value: Any, old: Any) -> None:
        row = {"v": value, "note": "n"}
        payloads = [
            {"op": op, "after": row if after else None, "before": row if before else None, "at": 1000 + i}
            for i, (op, after, before) in enumerate(rows)
        ]
        texts = [
            json.dumps(make_payload(**p)).encode() if schemas == "none" else make_change_event(columns, **p)
            for p in payloads
        ]
        of_key = make_event_key([column_of_key], v=value) if schemas == "both" else json.dumps({"v": value}).encode()
        header = {"__debezium.oldkey": json.dumps({"v": old}).encode()}
        records = make_raw_records(texts, [of_key] * len(texts), {len(texts) - 1: header})
        veiled, live = by.mask_records(records), decode_changes(records, by)
        assert without_reasons(decode_changes(veiled, by), HMAC) == without_reasons(live, HMAC)
        assert len({row["v"] for row in live if not row["_error"]}) < 2, "equal keys are one"
        keys = [json.loads(text) for text in veiled["key"].to_pylist()]
        for found, made in zip([one.get("payload", one)["v"] for one in keys], live, strict=True):
            assert is_kept(found, HMAC)
            assert made["_error"] or found == made["v"]

    check()


def test_equal_numbers_of_different_types_have_one_mask() -> None:
    texts = [
        make_change_event([ID, said], op="c", after={"id": 1, "v": value})
        for said, value in (
            (make_column("v", "int64"), 150),
            (decimal(10, 2), encode_unscaled(15000)),
            (make_column("v", "double"), 150.0),
            (VARIABLE, {"scale": 0, "value": encode_unscaled(150)}),
        )
    ]
    assert {row["v"] for text in texts for row in decode_changes(make_raw_records([text]), decoder(HMAC))} == {
        compute_hmac("150")
    }


@pytest.mark.parametrize(
    ("said", "value"),
    [
        (make_column("v", "array", items={"type": "int32"}), [4711, 4712]),
        (make_column("v", "map", keys={"type": "string"}, values={"type": "int32"}), {"a": 4711}),
        (make_column("v", "struct", fields=[make_column("x", "int32")]), {"x": 4711}),
    ],
)
def test_composite_value_cannot_be_hashed(said: dict[str, Any], value: Any) -> None:
    """The lanes stop; the stored record is masked all the same. Masks that replace the whole value are accepted."""
    records = make_raw_records([make_change_event([ID, said], op="c", after={"id": 1, "v": value})])
    with pytest.raises(ConfigProblem, match="which can be written in several ways"):
        decode_changes(records, decoder(HMAC))
    for mask in (HMAC, CUT, FIXED, NOTHING):
        (text,) = decoder(mask).mask_records(records)["value"].to_pylist()
        assert b"4711" not in text, mask
    (row,) = decode_changes(records, decoder(FIXED))
    assert row["v"] == "*"


def test_delete_with_an_infinite_date_is_decoded_after_masking() -> None:
    """PostgreSQL's infinity: a delete is decoded without such a value."""
    records = make_raw_records([make_change_event([ID, KINDS["date"][0]], op="d", before={"id": 1, "v": 2**31 - 1})])
    for mask in (HMAC, CUT, FIXED, NOTHING):
        by = decoder(mask)
        for some in (records, by.mask_records(records)):
            (row,) = decode_changes(some, by)
            assert (row["_op"], row["id"], row["v"], row["_error"]) == ("d", 1, None, None), mask


def test_key_of_a_tombstone_equals_that_of_its_rows() -> None:
    columns = [{**KINDS["date"][0], "optional": False}]
    value, tombstone = make_change_event(columns, op="c", after={"v": 19782}), None
    for of_key in (make_event_key(columns, v=19782), b'{"v":19782}'):
        veiled = decoder(HMAC).mask_records(make_raw_records([value, tombstone], [of_key, of_key]))
        first, second = (json.loads(text) for text in veiled["key"].to_pylist())
        assert first == second
        assert first.get("payload", first) == {"v": compute_hmac("2024-02-29")}


def test_values_are_not_rounded_before_hashing() -> None:
    """Two decimals of 38 digits that differ in the last digit, and two times that differ by a nanosecond."""
    for said, pair in (
        (decimal(38, 0), (encode_unscaled(10**37 + 1), encode_unscaled(10**37 + 2))),
        (make_column("v", "int64", f"{TIME}NanoTimestamp"), (1, 2)),
        (make_column("v", "int64", f"{TIME}NanoTime"), (1, 2)),
        (
            make_column("v", "double"),
            (0.1, struct.unpack("<d", struct.pack("<q", struct.unpack("<q", struct.pack("<d", 0.1))[0] + 1))[0]),
        ),
    ):
        rows = decode_changes(
            make_raw_records([make_change_event([ID, said], op="c", after={"id": 1, "v": value}) for value in pair]),
            decoder(HMAC),
        )
        assert len({row["v"] for row in rows}) == 2, said


def test_value_has_one_hash_in_every_format() -> None:
    """One table from Debezium, as rows, and in Canal messages."""
    types = {"day": "date", "at": "timestamp[us]", "price": "decimal(10,2)", "photo": "binary", "share": "double"}
    masks = {"private": {"shop.t": dict.fromkeys(types, HMAC)}}
    columns = [
        ID,
        make_column("day", "int32", f"{TIME}Date"),
        make_column("at", "int64", f"{TIME}MicroTimestamp"),
        {**decimal(10, 2), "field": "price"},
        make_column("photo", "bytes"),
        make_column("share", "double"),
    ]
    at, written = 1_709_208_000_500_000, "2024-02-29 12:00:00.500000"
    photo = b64encode(b"me").decode()
    sent = {"id": 1, "day": 19782, "at": at, "price": encode_unscaled(1250), "photo": photo, "share": 2.5}
    said = {"id": 1, "day": "2024-02-29", "at": written, "price": "12.50", "photo": photo, "share": 2.5}
    mysql = {
        "id": "bigint",
        "day": "date",
        "at": "datetime(6)",
        "price": "decimal(10,2)",
        "photo": "blob",
        "share": "double",
    }
    message = {
        "type": "INSERT",
        "database": "shop",
        "table": "t",
        "isDdl": False,
        "es": 1,
        "mysqlType": mysql,
        "pkNames": ["id"],
    }
    canal = message | {"data": [{name: str(value) for name, value in (said | {"photo": "me"}).items()}], "old": None}
    keyed = {"keys": {"shop.t": ["id"]}}
    source = {"schema": "shop"}
    found = {
        "debezium": decode_changes(
            make_raw_records([make_change_event(columns, op="c", after=sent, source=source)]), DebeziumJsonDecoder(masks)
        ),
        "rows": decode_changes(
            make_raw_records([json.dumps(said).encode()], topic="shop.t"),
            RowsDecoder(
                {
                    **masks,
                    **keyed,
                    "schema": {"shop.t": {"id": "int64", **types}},
                    "inserts_only": True,
                    "sequence_columns": [],
                }
            ),
        ),
        "canal": decode_changes(make_raw_records([json.dumps(canal).encode()]), CanalJsonDecoder(masks)),
    }
    texts = {"day": "2024-02-29", "at": written, "price": "12.5", "photo": b"me".hex(), "share": "2.5"}
    for form, (row,) in found.items():
        assert {name: row.get(name) for name in types} == {name: compute_hmac(text) for name, text in texts.items()}, (
            form,
            row,
        )
