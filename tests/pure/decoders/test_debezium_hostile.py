"""Hostile input: nothing is raised, no record is lost, and neighbours are decoded."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import GOLDEN
from support.debezium_events import (
    ID,
    decode_frame,
    encode_with_schema,
    get_error_code,
    make_change_event,
    make_column,
    make_envelope_schema,
    make_event_key,
    make_payload,
    make_raw_records,
)

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from replicator.domain.change import ERROR
from replicator.domain.errors import Fatal
from replicator.testing.contract import EXAMPLES

COLUMNS = [
    ID,
    make_column("name", "string"),
    make_column(
        "price",
        "bytes",
        "org.apache.kafka.connect.data.Decimal",
        parameters={"scale": "2", "connect.decimal.precision": "9"},
    ),
    make_column("at", "string", "io.debezium.time.ZonedTimestamp"),
    make_column("tags", "array", items={"type": "string", "optional": True}),
    make_column("score", "double"),
    make_column("point", "struct", fields=[make_column("x", "double"), make_column("b", "bytes")]),
]
ROW = {
    "id": 1, "name": "é\n\"", "price": "BNI=", "at": "2024-01-01T00:00:00Z", "tags": ["a", None], "score": 1.5,
    "point": {"x": 1.0, "b": "AQ=="},
}  # fmt: skip
GOOD = make_change_event(COLUMNS, op="u", after=ROW)
ROOM = 20 * 1024 * 1024


def account(frame: pa.Table, options: dict[str, Any] | None = None) -> dict[str, int]:
    """Route, learn, decode and envelope; every record is in exactly one place, and changes stay in order."""
    decoder = DebeziumJsonDecoder(options or {})
    routes = decoder.route(frame)
    assert decoder.envelope(frame).num_rows == routes.num_rows == frame.num_rows
    counts = {"ignored": 0, "rejected": 0, "changes": 0}
    runs: dict[tuple[str, str], list[int]] = {}
    for place, route in enumerate(routes.to_pylist()):
        if route["table"] is None:
            counts["ignored" if route["ignored"] else "rejected"] += 1
        else:
            runs.setdefault((route["table"], route["fingerprint"]), []).append(place)
    for (table, fingerprint), places in runs.items():
        run = frame.take(places)
        try:
            spec = decoder.learn(run, table, fingerprint)
        except Fatal:
            counts["rejected"] += len(places)
            continue
        changes = decoder.decode(run, spec)
        changes.validate(full=True)
        assert changes["_offset"].to_pylist() == run["offset"].to_pylist()
        bad = changes.num_rows - changes[ERROR].null_count
        counts["rejected"] += bad
        counts["changes"] += changes.num_rows - bad
    assert sum(counts.values()) == frame.num_rows
    return counts


def in_row(text: bytes, where: bytes = b'"score":1.5') -> bytes:
    """The good event with other bytes in its after image."""
    assert where in GOOD
    return GOOD.replace(where, text)


@pytest.mark.parametrize("text", [GOOD[:-1], GOOD[:-20], GOOD.replace(b'"score":1.5', b'"score":?')])
def test_broken_first_record_does_not_hide_the_schema(text: bytes) -> None:
    assert account(make_raw_records([text, GOOD])) == {"ignored": 0, "rejected": 1, "changes": 1}
    assert account(make_raw_records([text])) == {"ignored": 0, "rejected": 1, "changes": 0}


NAUGHTY = [
    (in_row(b'"score":NaN'), "MALFORMED"),
    (in_row(b'"score":Infinity'), "MALFORMED"),
    (in_row(b'"score":-'), "MALFORMED"),
    (in_row(b'"score":1e999'), "MALFORMED"),
    (in_row(b'"score":' + b"9" * 400), "MALFORMED"),
    (in_row(b'"score":1.5,"zz":' + b"[" * 10_000 + b"]" * 10_000), "TOO_LARGE"),
    (in_row(b'"score":1.5,"zz":' + b"[" * 10_000), "TOO_LARGE"),
    (in_row(b'"id":' + b"9" * 100, b'"id":1'), "OUT_OF_RANGE"),
    (in_row(b'"id":' + b"9" * 5_000, b'"id":1'), "MALFORMED"),
    (in_row(b'"id":1.0', b'"id":1'), "MALFORMED"),
    (in_row(b'"name":"\xff\xfe"', b'"name":"\xc3\xa9\\n\\""'), "MALFORMED"),
    (in_row(b'"name":"\\ud800"', b'"name":"\xc3\xa9\\n\\""'), "MALFORMED"),
    (in_row(b'"name":"\xed\xa0\x80"', b'"name":"\xc3\xa9\\n\\""'), "MALFORMED"),
    (GOOD[:-1], "MALFORMED"),
    (GOOD[:-2] + b"}", "MALFORMED"),
    (GOOD + b"}", "MALFORMED"),
    (GOOD[: len(GOOD) // 2], "MALFORMED"),
    (GOOD + GOOD, "MALFORMED"),
]


@pytest.mark.parametrize(("text", "expected"), NAUGHTY)
def test_hostile_record_is_rejected_alone(text: bytes, expected: str) -> None:
    decoder = DebeziumJsonDecoder({})
    spec = decoder.learn(make_raw_records([GOOD]), "public.t", "x")
    before, bad, after = decoder.decode(make_raw_records([GOOD, text, GOOD]), spec).to_pylist()
    assert get_error_code(bad) == expected
    assert {**before, "_offset": 0} == {**after, "_offset": 0}
    assert (before["_error"], before["name"], before["point"]) == (None, 'é\n"', {"x": 1.0, "b": b"\x01"})
    assert account(make_raw_records([GOOD, text, GOOD]))["changes"] == 2


@pytest.mark.parametrize(("text", "name"), [
    (in_row(b'"name":"a\\u0000b"', b'"name":"\xc3\xa9\\n\\""'), "a\0b"),
    (in_row(b'"name":"first","name":"last"', b'"name":"\xc3\xa9\\n\\""'), "last"),
    (in_row(b'"name":"\\ud83c\\udf89"', b'"name":"\xc3\xa9\\n\\""'), "🎉"),
    (GOOD[:-1] + b',"payload":' + json.dumps(make_payload(after={"id": 1, "name": "late"})).encode() + b"}", "late"),
    (GOOD.replace(b'"op":"u"', b'"op":"u","extra":{"after":{"name":"no"},"op":"d"}'), 'é\n"'),
])  # fmt: skip
def test_unusual_but_valid_json_is_decoded(text: bytes, name: str) -> None:
    assert [c["name"] for c in decode_frame(make_raw_records([GOOD, text]))] == ['é\n"', name]


def test_record_of_twenty_megabytes_is_rejected_alone() -> None:
    large = in_row(b'"name":"' + b"x" * ROOM + b'"', b'"name":"\xc3\xa9\\n\\""')
    assert account(make_raw_records([GOOD, large, GOOD])) == {"ignored": 0, "rejected": 1, "changes": 2}
    more = {"limits": {"message_bytes": 2 * ROOM}}
    assert account(make_raw_records([GOOD, large, GOOD]), more) == {"ignored": 0, "rejected": 0, "changes": 3}


def test_schema_nested_ten_thousand_levels_is_rejected() -> None:
    deep = b'{"schema":' + b'{"items":' * 10_000 + b"1" + b"}" * 10_000 + b',"payload":{}}'
    assert account(make_raw_records([GOOD, deep, GOOD], [make_event_key(id=1), deep, make_event_key(id=1)]))["changes"] == 2


def test_search_for_the_payload_takes_limited_time() -> None:
    text = b'{"schema":' + b',"payload":' * 200_000
    assert account(make_raw_records([text, GOOD]))["changes"] == 1


def test_more_schemas_than_the_cache_holds() -> None:
    texts = [make_change_event([ID, make_column(f"c{i}", "string")], after={"id": i}) for i in range(60)]
    assert account(make_raw_records(texts)) == {"ignored": 0, "rejected": 0, "changes": 60}


def test_error_contains_no_value() -> None:
    secrets = {"id": "s3cret", "name": 77345, "price": "s3cret!", "at": "s3cret", "tags": "s3cret", "score": "s3cret"}
    for name, value in secrets.items():
        (change,) = decode_frame(make_raw_records([make_change_event(COLUMNS, after={**ROW, name: value})]))
        assert change["_error"]
        assert "s3cret" not in change["_error"]
        assert "77345" not in change["_error"]


SEEDS = [
    GOOD,
    make_change_event(COLUMNS, op="d", before=ROW),
    make_change_event(COLUMNS, op="t"),
    encode_with_schema(make_envelope_schema(COLUMNS), make_payload(after=ROW, transaction={"id": "1", "total_order": 1})),
    json.dumps(make_payload(after=ROW)).encode(),
    json.dumps({"payload": make_payload(after=ROW), "schema": make_envelope_schema(COLUMNS)}).encode(),
    b'{"status":"END","id":"1","data_collections":[]}',
]
DECLARED = {"schema": {"public.t": {"id": "int64", "name": "string", "price": "decimal(9,2)", "tags": "list<string>"}}}
KEYS = [
    make_event_key(id=1),
    b'{"id":1}',
    None,
    b"",
    b"{",
    b"[1]",
    encode_with_schema({"type": "struct", "fields": 1}, {"id": 1}),
]


@st.composite
def mutate_seed(draw: st.DrawFn) -> bytes | None:
    """A seed with some bytes replaced, cut, doubled or swapped for a token."""
    text = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(text)))
        kind = draw(st.sampled_from(["flip", "cut", "insert", "drop"]))
        if kind == "flip" and at < len(text):
            text[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del text[at : at + draw(st.integers(1, 40))]
        elif kind == "insert":
            text[at:at] = draw(
                st.sampled_from([b"null", b'"', b"{", b"}", b"[", b",", b"\x00", b"\xff", b"1e9", b"\\u0000", b"-"])
            )
        else:
            del text[at:]
    return bytes(text) if draw(st.integers(0, 20)) else None


@settings(max_examples=4 * EXAMPLES)
@given(st.lists(st.tuples(mutate_seed(), st.sampled_from(KEYS)), min_size=1, max_size=12), st.booleans())
def test_mutated_records_are_all_accounted_for(records: list[tuple[bytes | None, bytes | None]], tombstones: bool) -> None:
    values, keys = zip(*records, strict=True)
    options = {**DECLARED, "tombstones": "delete" if tombstones else "ignore"}
    account(make_raw_records([GOOD, *values], [KEYS[0], *keys]), options)


@settings(max_examples=4 * EXAMPLES)
@given(st.binary(max_size=60), st.binary(max_size=20))
def test_any_bytes_are_accounted_for(value: bytes, header: bytes) -> None:
    headers = {0: {"__debezium.oldkey": header, "__debezium.newkey": header}}
    account(make_raw_records([GOOD, value, b"{" + value + b"}"], [KEYS[0], value, header], headers=headers))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "b", "id", "value", "scale"]), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(max_examples=4 * EXAMPLES)
@given(st.dictionaries(st.sampled_from([c["field"] for c in COLUMNS]), JSON), JSON, JSON)
def test_any_json_as_a_value_is_accounted_for(row: dict[str, Any], source: Any, transaction: Any) -> None:
    said = make_payload(after={**ROW, **row}, transaction=transaction)
    odd = {**make_payload(after=row), "source": source}
    texts = [encode_with_schema(make_envelope_schema(COLUMNS), p) for p in (said, odd)] + [
        json.dumps(p).encode() for p in (said, odd)
    ]
    found = account(make_raw_records([GOOD, *texts, GOOD]), DECLARED)
    assert found["changes"] >= 2


def test_recorded_topics_with_flipped_bits_are_accounted_for() -> None:
    folder = GOLDEN / "decoders" / "debezium" / "postgres"
    lines = (folder / "cdc.public.order_items.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    pairs = [(r["value"].encode(), r["key"].encode()) for r in records if r["value"]]
    flipped = [
        (v[:at] + bytes([v[at] ^ bit]) + v[at + 1 :], k)
        for v, k in pairs
        for at in range(2_700, len(v), 61)
        for bit in (1, 64)
    ]
    counts = account(make_raw_records(*zip(*pairs, *flipped, strict=True)))
    assert counts["changes"] >= len(pairs)
    assert counts["rejected"] > 0


def test_deep_payload_is_decoded_alone_and_among_malformed_records() -> None:
    """With malformed neighbours, records are parsed; otherwise payloads are found by the bytes of the schema."""
    deep = GOOD[:-2] + b',"more":' + b"[" * 100 + b"]" * 100 + b"}}"
    strays = [b"%d" % number for number in range(40)]
    counts = [account(make_raw_records(values)) for values in ([deep], [*strays, deep])]
    assert [found["changes"] for found in counts] == [1, 1]
