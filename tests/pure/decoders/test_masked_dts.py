"""Masked DTS records: they decode like the original records."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dts_records import BIGINT, DATE, VARCHAR, encode_record, make_datetime, make_integer, make_record, make_text
from support.masked_records import (
    CUT,
    HMAC,
    NOTHING,
    compute_hmac,
    decode_changes,
    get_stored_record,
    list_visible_values,
    read_all_text,
)

from adapters.decoders.dts_avro import DtsAvroDecoder
from replicator.domain.change import RAW
from replicator.domain.transform.columns import Mask
from replicator.testing.contract import EXAMPLES

FIELDS = {"id": BIGINT, "email": VARCHAR, "born": DATE, "note": VARCHAR}
MASKS = {"id": HMAC, "email": CUT, "born": HMAC}


def decoder(masks: dict[str, Mask] = MASKS) -> Any:
    return DtsAvroDecoder({"private": {"mydb.t1": masks, "mydb.open": {}}})


def frame(*values: bytes | None, key: bytes | None = b"sentinel") -> pa.Table:
    place = {"topic": "all", "partition": 0, "timestamp": None, "headers": None, "key": key}
    return pa.Table.from_pylist([place | {"offset": n, "value": v} for n, v in enumerate(values)], RAW)


NUMBERS = st.integers(7_123_456_789, 7_199_999_999)
PLAIN = NUMBERS.map(lambda n: f"Zzé{n}")
IMAGES = st.tuples(
    (NUMBERS.map(lambda n: (str(n), make_integer(n))) | PLAIN.map(lambda t: (t, make_text(t)))),
    st.sampled_from([("", None), ("", "NULL"), ("", "NONE")]) | PLAIN.map(lambda t: (t, make_text(t))),
    st.dates().map(lambda day: ("", make_datetime(day.year, day.month, day.day))) | PLAIN.map(lambda t: (t, make_text(t))),
    st.just(("", make_text("note"))),
)
KINDS = st.sampled_from(["INSERT", "UPDATE", "DELETE", "INIT"])


@settings(max_examples=EXAMPLES)
@given(changes=st.lists(st.tuples(KINDS, IMAGES, IMAGES), min_size=1, max_size=4), born=st.booleans())
def test_masked_record_decodes_like_the_original(changes: Any, born: bool) -> None:
    """Also with values of other types than their columns. Masking it again changes nothing."""
    by = decoder()
    tags = {"pk_uk_info": '{"PRIMARY":["id"]}', "row": "sentinel"}
    values, private = [], {"sentinel"}
    for number, (kind, before, after) in enumerate(changes):
        images = [[value for _, value in image] for image in (before, after)]
        images = [images[0] if kind in ("UPDATE", "DELETE") else None, images[1] if kind != "DELETE" else None]
        values.append(encode_record(make_record(kind, FIELDS, *images, id=number, tags=tags), born=born))
        private |= {said for image in (before, after) for said, _ in image if said}
    records = frame(*values)
    veiled, again = by.mask_records(records), pickle.loads(pickle.dumps(by))
    assert decode_changes(veiled, again) == decode_changes(records, by)
    assert again.mask_records(veiled).equals(veiled)
    assert list_visible_values(private, veiled) == []


def test_each_image_is_masked() -> None:
    by = decoder({"id": HMAC, "email": NOTHING})
    images = [[make_integer(n), make_text(f"{n}@example.com"), None, make_text("n")] for n in (7, 8)]
    found = decode_changes(
        by.mask_records(frame(encode_record(make_record("UPDATE", FIELDS, *images)))),
        DtsAvroDecoder({"schema": {"*": SAID}}),
    )
    assert [(row["_op"], row["id"], row["email"]) for row in found] == [
        ("d", compute_hmac("7"), None),
        ("c", compute_hmac("8"), None),
    ]


SAID = {"id": "string", "email": "string", "note": "string"}


@pytest.mark.parametrize(
    "value",
    [
        b"sentinel",
        encode_record(make_record("INSERT", FIELDS, None, [make_text("sentinel")])),
        encode_record(make_record("FILL", after="sentinel")),
    ],
)
def test_unreadable_records_are_redacted(value: bytes) -> None:
    by = decoder()
    veiled = by.mask_records(frame(value))
    assert b"sentinel" not in read_all_text(veiled)
    assert by.mask_records(veiled).equals(veiled)


def test_statements_are_redacted() -> None:
    by = decoder()
    records = frame(encode_record(make_record("DDL", after="ALTER ... 'sentinel'", tags={"sql": "sentinel"})), key=None)
    assert b"sentinel" not in read_all_text(by.mask_records(records))
    assert by.route(by.mask_records(records)).equals(by.route(records))
    others = frame(encode_record(make_record("INSERT", FIELDS, None, [make_integer(1)] * 4, objectName="mydb.open")))
    assert by.mask_records(others).equals(others)
    assert get_stored_record(frame(None), by)["value"] is None
