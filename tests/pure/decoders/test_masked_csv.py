"""Masked rows of DMS CSV files: they decode like the original rows."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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

from adapters.decoders.dms_csv import DmsCsvDecoder
from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem
from replicator.domain.transform.columns import Mask
from replicator.testing.contract import EXAMPLES

TYPES = {"id": "int64", "email": "string", "price": "decimal(10,2)", "born": "date32", "note": "string"}
MASKS = {"id": HMAC, "email": CUT, "price": HMAC, "born": HMAC}
FILE = 1_700_000_000_000 << 21
DIALECTS: Mapping[str, dict[str, Any]] = {
    "usual": {},
    "null": {"null_value": "NULL", "unsent_value": "?"},
    "escaped": {"escape": "\\", "null_value": "\\N", "delimiter": ";"},
    "bare": {"quote": "none", "delimiter": "|"},
    "bare-escaped": {"quote": "none", "escape": "\\"},
}


def decoder(masks: dict[str, Mask] = MASKS, **csv: Any) -> Any:
    keys = {"keys": {"app.items": ["id"]}, "schema": {"app.items": TYPES}}
    return DmsCsvDecoder({"private": {"app.items": masks, "app.open": {}}, "csv": csv, **keys})


def frame(*values: bytes | None, columns: bytes | None = None, topic: str = "app.items") -> pa.Table:
    headers = None if columns is None else [{"name": "dms.columns", "value": columns}]
    place = {"topic": topic, "partition": 0, "timestamp": None, "headers": headers}
    return pa.Table.from_pylist([place | {"offset": FILE + n, "value": v} for n, v in enumerate(values)], RAW)


def write_cell(text: str | None, csv: dict[str, Any]) -> str:
    """Not as the program writes it: quotes where they are needed only."""
    if text is None:
        return str(csv.get("null_value", "")).replace("\\", "\\\\" if csv.get("escape") else "\\")
    if csv.get("escape"):
        for sign in ("\\", csv.get("delimiter", ",")):
            text = text.replace(sign, f"\\{sign}")
    if csv.get("quote") == "none":
        return text
    return '"' + text.replace('"', '""') + '"' if set(text) & set('",\n\r;') or not text else text


NUMBERS = st.integers(712_345_678, 719_999_999)
PLAIN = NUMBERS.map(lambda n: f"Zzé{n}")
SIGNS = st.sampled_from([",", '"', "\n", ";", "\\", "|"])


@st.composite
def rows(draw: st.DrawFn, bare: bool) -> list[str | None]:
    text = PLAIN if bare else st.tuples(SIGNS, SIGNS, NUMBERS).map(lambda t: f"{t[0]}{t[1]}{t[2]}")
    key = draw(NUMBERS.map(str) | PLAIN)
    others = [draw(st.none() | kind) for kind in (text, NUMBERS.map(lambda n: f"{n // 100}.5"), st.dates().map(str))]
    return [draw(st.sampled_from("IUD")), key, *others, f"note {draw(st.just('') if bare else SIGNS)}"]


@pytest.mark.parametrize("kind", list(DIALECTS))
@settings(max_examples=EXAMPLES)
@given(data=st.data(), headed=st.booleans())
def test_masked_row_decodes_like_the_original(kind: str, data: st.DataObject, headed: bool) -> None:
    """Also with values of other types than their columns. Masking it again changes nothing."""
    csv = DIALECTS[kind]
    by, delimiter = decoder(**csv, header=headed), csv.get("delimiter", ",")
    given_rows = data.draw(st.lists(rows(kind.startswith("bare")), min_size=1, max_size=6))
    texts = [delimiter.join(write_cell(text, csv) for text in row).encode() for row in given_rows]
    records = frame(*texts, columns=delimiter.join(["Op", *TYPES]).encode() if headed else None)
    veiled, again = by.mask_records(records), pickle.loads(pickle.dumps(by))
    assert decode_changes(veiled, again) == decode_changes(records, by)
    assert again.mask_records(veiled).equals(veiled)
    assert all(not row.get("_error") or "'id'" in row["_error"] for row in decode_changes(records, by))
    assert list_visible_values({text for row in given_rows for text in row[1:4] if text}, veiled) == []


def test_other_columns_are_unchanged() -> None:
    by = decoder({"email": HMAC, "price": NOTHING}, unsent_value="?")
    value = b'U,7,a@example.com,?,,"n ""m"""'
    (row,) = decode_changes(frame(value), by)
    assert {name: row[name] for name in TYPES} == {
        **{"id": 7, "email": compute_hmac("a@example.com"), "price": None, "born": None, "note": 'n "m"'}
    }
    assert row["_unsent"] == ["price"]
    assert (
        get_stored_record(frame(value), by)["value"] == f'"U","7","{compute_hmac("a@example.com")}","?",,"n ""m"""'.encode()
    )


@pytest.mark.parametrize("value", [b"I,sentinel", b'I,1,"sentinel', b"I,1,\xffsentinel,,,", b"X,1,sentinel,,,"])
def test_unreadable_records_are_redacted(value: bytes) -> None:
    by = decoder()
    veiled = by.mask_records(frame(value))
    assert b"sentinel" not in read_all_text(veiled)
    assert decode_changes(veiled, by) == decode_changes(frame(value), by)
    assert by.mask_records(veiled).equals(veiled)
    assert by.mask_records(frame(value, topic="app.open")).equals(frame(value, topic="app.open"))


def test_rows_with_unknown_columns_are_redacted() -> None:
    by = DmsCsvDecoder({"private": {"app.items": MASKS, "app.open": {}}})
    assert b"sentinel" not in read_all_text(by.mask_records(frame(b"I,1,sentinel")))
    assert by.mask_records(frame(b"I,1", topic="app.other")).equals(frame(b"I,1", topic="app.other"))


def test_mask_text_that_needs_quotes_is_refused_without_quoting() -> None:
    with pytest.raises(ConfigProblem, match="cannot hold without quotes"):
        decoder({"email": Mask("fixed", text="a,b")}, quote="none")


def test_first_row_used_as_a_header_is_masked() -> None:
    """A file has no header row although the config says so; its first row is in a header of every record."""
    by = decoder(header=True)
    veiled = by.mask_records(frame(b"I,8,b,1,2024-01-01,n", columns=b"I,7,sentinel,1,2024-01-01,n"))
    assert b"sentinel" not in read_all_text(veiled)
    assert by.mask_records(veiled).equals(veiled)
    assert b"withheld" not in read_all_text(by.mask_records(frame(b"I,8,b,1,2024-01-01", columns=b"Op,id,email,price,born")))
