"""Masked rows: they decode like the original rows."""

from __future__ import annotations

import json
import pickle
from base64 import b64encode
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.masked_records import (
    CUT,
    FIXED,
    HMAC,
    NOTHING,
    compute_hmac,
    decode_changes,
    get_stored_record,
    list_visible_values,
    read_all_text,
)

from adapters.decoders.rows import RowsDecoder
from adapters.decoders.rows.dms_parquet import DmsParquetDecoder
from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem
from replicator.domain.transform.columns import Mask
from replicator.testing.contract import EXAMPLES

TYPES = {"id": "int64", "email": "string", "price": "decimal(10,2)", "raw": "binary", "born": "date", "note": "string"}
MASKS = {"id": HMAC, "email": CUT, "price": HMAC, "raw": HMAC, "born": HMAC}
SECRETS = ("email", "price", "raw")
KEYED: dict[str, Any] = {"keys": {"items": ["id"]}}
OF_TEXT = {"inserts_only": True, "text_values": True, "sequence_columns": []}


def decoder(masks: dict[str, Mask] = MASKS, kind: Any = RowsDecoder, **options: Any) -> Any:
    return kind({**KEYED, "private": {"items": masks, "open": {}}, **options})


def bare(**options: Any) -> Any:
    return decoder(schema={"items": TYPES}, **options)


def frame(*values: Any, topic: str = "items", key: bytes | None = None) -> pa.Table:
    texts = [v if v is None or isinstance(v, bytes) else json.dumps(v, ensure_ascii=False).encode() for v in values]
    place = {"topic": topic, "partition": 0, "timestamp": None, "headers": None, "key": key}
    return pa.Table.from_pylist([place | {"offset": n, "value": v} for n, v in enumerate(texts)], RAW)


def make_typed_row(row: dict[str, Any], **more: str) -> dict[str, Any]:
    return {"schema": {**TYPES, **more}, "payload": row}


def make_row(number: int, op: str, row: dict[str, Any], before: dict[str, Any] | None = None) -> dict[str, Any]:
    place = {"_op": op, "_version": number, "_order": 1, "_row": number}
    return {**place, **row, **({"_before": before} if before else {})}


TEXTS = st.integers(712_345_678, 719_999_999).map(lambda n: f"Zz'é{n}")
ROWS = st.fixed_dictionaries(
    {"id": st.integers(7_123_456_789, 7_199_999_999) | TEXTS, "email": TEXTS | st.none(), "note": st.sampled_from("ab")},
    optional={
        "price": st.integers(7_123_456, 7_199_999).map(lambda n: f"{n}.5") | st.none() | TEXTS,
        "raw": TEXTS.map(lambda text: b64encode(text.encode()).decode()) | TEXTS,
        "born": st.dates().map(str),
    },
)


@pytest.mark.parametrize("kind", ["typed", "bare", "text"])
@settings(max_examples=EXAMPLES)
@given(changes=st.lists(st.tuples(st.sampled_from("cudr"), ROWS, st.none() | ROWS), min_size=1, max_size=5))
def test_masked_row_decodes_like_the_original(kind: str, changes: Any) -> None:
    """Also with values of other types than their columns. Masking it again changes nothing."""
    by = decoder() if kind == "typed" else bare(**OF_TEXT if kind == "text" else {})
    changes = [(op, row, None if kind == "text" else before) for op, row, before in changes]
    rows = [make_row(number, *change) for number, change in enumerate(changes)]
    if kind == "text":
        rows = [{name: None if value is None else str(value) for name, value in row.items()} for _, row, _ in changes]
    keys = json.dumps({"id": changes[0][1]["id"]}).encode()
    records = frame(*(make_typed_row(row) if kind == "typed" else row for row in rows), key=keys)
    veiled, again = by.mask_records(records), pickle.loads(pickle.dumps(by))
    assert decode_changes(veiled, again) == decode_changes(records, by)
    assert again.mask_records(veiled).equals(veiled)
    images = [image for _, *both in changes for image in both if image]
    values = {str(image[name]) for image in images for name in (*SECRETS, "id") if image.get(name) is not None}
    assert list_visible_values(values, veiled) == []


def test_stored_schema_has_the_masked_types() -> None:
    """A reader without the masks can decode the rows too."""
    row = {"id": 7, "email": "a@example.com", "price": "1.50", "raw": "AA==", "born": "2024-02-29", "note": "n"}
    by = decoder({"id": HMAC, "email": FIXED, "price": NOTHING})
    veiled = by.mask_records(frame(make_typed_row(make_row(0, "c", row))))
    whole = json.loads(veiled["value"][0].as_py())
    assert whole["schema"] == {**TYPES, "id": "string"}
    (mine,), (others,) = (
        decode_changes(frame(make_typed_row(make_row(0, "c", row))), by),
        decode_changes(veiled, RowsDecoder(KEYED)),
    )
    assert mine == others
    assert (mine["id"], mine["email"], mine["price"], mine["note"]) == (compute_hmac("7"), "*", None, "n")


def test_masked_key_change_is_decoded_as_one() -> None:
    by = bare()
    records = frame(make_row(0, "u", {"id": 8, **dict.fromkeys([*SECRETS, "born", "note"])}, {"id": 7, "email": "sentinel"}))
    for some in (records, by.mask_records(records)):
        assert [(r["_op"], r["id"]) for r in decode_changes(some, by)] == [
            ("d", compute_hmac("7")),
            ("c", compute_hmac("8")),
        ]
    assert b"sentinel" not in read_all_text(by.mask_records(records))


@pytest.mark.parametrize("value", [b"sentinel", {"id": "sentinel"}, {"_op": "?", "email": "sentinel"}, ["sentinel"]])
def test_unreadable_records_are_redacted(value: Any) -> None:
    records, by = frame(value, key=b"sentinel"), bare()
    assert b"sentinel" not in read_all_text(by.mask_records(records))
    assert by.mask_records(by.mask_records(records)).equals(by.mask_records(records))
    others = frame(value, key=b"sentinel", topic="open")
    assert by.mask_records(others).equals(others)


def test_invalid_before_image_is_redacted() -> None:
    records, by = frame(make_row(0, "u", {"id": 7}, "sentinel")), bare()  # type: ignore[arg-type]
    assert b"sentinel" not in read_all_text(by.mask_records(records))
    one, two = decode_changes(records, by), decode_changes(by.mask_records(records), by)
    assert one == two
    assert one[0]["_error"].startswith("MALFORMED")


def test_rows_of_dms() -> None:
    by = decoder(kind=DmsParquetDecoder)
    records = frame(make_typed_row({"_file": 1, "_row": 2, "Op": "U", "id": 7, "email": "sentinel"}, Op="string"))
    (row,) = decode_changes(records, by)
    assert decode_changes(by.mask_records(records), by) == [row]
    assert (row["_op"], row["id"], json.loads(get_stored_record(records, by)["value"])["payload"]["id"]) == (
        "u",
        *[compute_hmac("7")] * 2,
    )


def test_unsuitable_mask_is_refused() -> None:
    with pytest.raises(ConfigProblem, match="does not have"):
        decode_changes(frame(make_row(0, "c", {"id": 7})), bare(masks={"emial": HMAC}))


def test_frames_with_empty_arrays() -> None:
    by = decoder()
    records = frame(make_typed_row(make_row(1, "c", {"id": 1, "email": "alice@example.com"})))
    chunked = pa.concat_tables([RAW.empty_table(), records, RAW.empty_table(), records])
    table = by.learn(records, "items", "x")
    assert by.decode(chunked, table)["id"].to_pylist() == [compute_hmac("1")] * 2
    assert by.decode(RAW.empty_table(), table).num_rows == 0
