"""Bytes that are no DTS record: each one is rejected, and nothing is raised."""

from __future__ import annotations

import tracemalloc
from io import BytesIO
from typing import Any

import pyarrow as pa
import pytest
from fastavro import schemaless_writer
from hypothesis import strategies as st
from support.dts_records import (
    BIGINT,
    SAMPLES,
    TEXT,
    TIMESTAMP,
    VARCHAR,
    encode_record,
    make_dts_frame,
    make_integer,
    make_record,
    make_text,
    make_value,
)

from adapters.decoders import avro as guarded
from adapters.decoders.dts_avro import DtsAvroDecoder
from replicator.domain.change import RAW
from replicator.domain.errors import Reject
from replicator.testing.contract import for_all


def long(number: int) -> bytes:
    """A number as Avro writes it."""
    out = BytesIO()
    schemaless_writer(out, "long", number)
    return out.getvalue()


KINDS = {"id": BIGINT, "name": VARCHAR, "at": TIMESTAMP, "note": TEXT}
ROW = [make_integer(1), make_text("é"), make_value("Timestamp", timestamp=1, millis=2), None]
BORN = long(1_696_984_408)
"""Of the records that are made here, and of the recorded one."""
GOOD = [
    encode_record(make_record("UPDATE", KINDS, ROW, ROW), born=True),
    *(p.read_bytes() for p in sorted(SAMPLES.glob("*_insert*.bin"))),
]
MEGABYTE = 1024 * 1024
MOST = 128 * MEGABYTE
"""What any record may take while it is read, itself included."""


NONE = long(0)
"""Null, an empty map, and the end of an array."""
HEAD = encode_record(make_record("INSERT", tags={}, processTimestamps=None)).removesuffix(NONE * 5)
"""A record before its last five fields: times, tags, fields and both images."""
TIMES, ARRAY = long(1), long(2)
"""Which branch of their unions arrays are."""


def route(*values: bytes) -> list[dict[str, Any]]:
    return DtsAvroDecoder({}).route(make_dts_frame(*values)).to_pylist()


def code(row: dict[str, Any]) -> str:
    return Reject.parse(row["error"]).code


def test_record_without_fields_is_rejected():
    assert "does not list its fields" in route(HEAD + NONE * 5)[0]["error"]


def test_truncated_records_are_rejected():
    """Except a record without its bornTimestamp."""
    for whole_one in GOOD:
        short = len(whole_one.removesuffix(BORN))
        rows = route(*(whole_one[:end] for end in range(len(whole_one))))
        fine = [end for end, row in enumerate(rows) if row["error"] is None]
        assert fine == ([short] if short < len(whole_one) else [])
        assert {code(row) for row in rows if row["error"]} == {"MALFORMED"}


def test_altered_records_raise_nothing():
    """Bytes of a record are exchanged, removed and inserted; it is routed, decoded and stored without an exception."""
    decoder = DtsAvroDecoder({})
    first = make_dts_frame(GOOD[0])
    [known] = decoder.route(first).to_pylist()
    table = decoder.learn(first, known["table"], known["fingerprint"])

    @for_all(
        sent=st.sampled_from(GOOD),
        edits=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 3), st.binary(max_size=10)), max_size=6),
    )
    def check(sent: bytes, edits: list[tuple[float, int, bytes]]) -> None:
        bad = sent
        for where, gone, put in edits:
            at = int(where * len(bad))
            bad = bad[:at] + put + bad[at + gone :]
        raw = make_dts_frame(GOOD[0], bad, GOOD[0])
        assert decoder.route(raw).num_rows == decoder.envelope(raw).num_rows == 3
        rows = decoder.decode(raw, table).to_pylist()
        assert not any("not JSON" in (row["_error"] or "") for row in rows)
        ends = [row for row in rows if row["_offset"] != 101]
        assert [(row["_op"], row["id"], row["name"], row["_error"]) for row in ends] == [("u", 1, "é", None)] * 2


def block(count: int, item: bytes) -> bytes:
    """A block of an array, and its end."""
    return long(count) + item * count + long(0)


def bombs() -> dict[str, bytes]:
    many = 15 * MEGABYTE
    fields, images = HEAD + NONE * 2 + ARRAY, HEAD + NONE * 3 + ARRAY
    return {
        "times": HEAD + TIMES + block(many, long(1)) + NONE * 4,
        "tags": HEAD + NONE + block(many // 4, long(1) + b"a" + long(1) + b"b") + NONE * 3,
        "fields": fields + block(many // 2, long(0) + long(1)) + NONE * 2,
        "named fields": fields + block(many // 3, long(1) + b"a" + long(1)) + NONE * 2,
        "nulls": images + block(many, NONE) + NONE,
        "nulls after": HEAD + NONE * 4 + ARRAY + block(many, NONE),
        "dates": images + block(many // 8, long(6) + NONE * 7) + NONE,
        "empty objects": images + block(many // 2, long(12) + NONE) + NONE,
        "many blocks": images + (long(1) + NONE) * (many // 2) + NONE * 2,
        "sized blocks": images + (long(-1) + long(1) + NONE) * (many // 3) + NONE * 2,
        "a long text": HEAD + NONE * 2 + long(1) + long(many) + b"a" * many + NONE * 2,
    }


LARGEST = ("times", "fields", "many blocks", "a long text")
"""Items that take the least and the most memory for each byte, blocks of one item, and no items: one guard refuses all."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in LARGEST else pytest.param(name, marks=pytest.mark.long) for name in bombs()]
)
def test_memory_is_limited(name):
    """For records of the maximum size that contain only array items."""
    bomb = bombs()[name]
    assert len(bomb) <= 16 * MEGABYTE
    raw = pa.Table.from_pylist([{"topic": "dts", "partition": 0, "offset": 1, "value": bomb}], RAW)
    decoder = DtsAvroDecoder({})
    tracemalloc.start()
    try:
        [row] = decoder.route(raw).to_pylist()
        decoder.envelope(raw)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert code(row) == ("MALFORMED" if name == "a long text" else "TOO_LARGE"), row
    assert peak < MOST


@pytest.mark.parametrize("count", [2**31, 2**62, -(2**62), -(2**63)])
def test_array_counts_beyond_the_end_are_rejected(count):
    """More items than there are bytes."""
    tails = (TIMES + long(count), NONE + long(count), NONE * 2 + ARRAY + long(count), NONE * 3 + ARRAY + long(count) * 2)
    rows = route(*(HEAD + tail + b"\x02" * rest for tail in tails for rest in (0, 9, 200)))
    assert {code(row) for row in rows} <= {"MALFORMED", "TOO_LARGE"}


def test_overlong_numbers_are_rejected():
    """Bytes of numbers that never end, and negative lengths."""
    texts = HEAD[: HEAD.index(b"7246") - 1]
    rows = route(b"\xff" * 5000, b"\x80" * 5000 + b"\x00", texts + long(-5) + b"a" * 50, texts + long(2**62) + b"a")
    assert {code(row) for row in rows} <= {"MALFORMED", "TOO_LARGE"}


def test_record_of_the_maximum_width_is_decoded():
    """With as many columns as allowed, each of the slowest kind; one more is too large."""
    most = 4096
    at = make_value("DateTime", year=2024, month=2, day=29, hour=1, minute=2, second=3, millis=4)
    padding = {"padding": "x" * guarded.FREE_BYTES}

    def wide(count: int) -> bytes:
        kinds = {"id": BIGINT, **{f"column_{n}": 12 for n in range(count - 1)}}
        row = [make_integer(1), *[at] * (count - 1)]
        return encode_record(make_record("UPDATE", kinds, row, row, tags=padding))

    good, bad = route(wide(most), wide(most + 1))
    assert good["error"] is None and code(bad) == "TOO_LARGE"
