"""Masked messages of Canal, Maxwell and GoldenGate: they decode like the original messages."""

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

from adapters.decoders.canal_json import CanalJsonDecoder
from adapters.decoders.maxwell_json import MaxwellJsonDecoder
from adapters.decoders.ogg_json import OggJsonDecoder
from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem
from replicator.domain.transform.columns import Mask
from replicator.testing.contract import EXAMPLES

MYSQL = {"id": "bigint", "email": "varchar(40)", "born": "date", "price": "decimal(10,2)", "raw": "blob", "note": "text"}
MYSQL |= {"at": "datetime(6)", "share": "double"}
DECLARED = {
    **{"id": "int64", "email": "string", "born": "date32", "price": "decimal(10,2)", "raw": "binary", "note": "string"},
    **{"at": "timestamp", "share": "double"},
}
DECODERS = {"canal": CanalJsonDecoder, "maxwell": MaxwellJsonDecoder, "ogg": OggJsonDecoder}
MASKS = {"id": HMAC, "email": CUT, "born": HMAC, "price": HMAC, "raw": HMAC, "at": HMAC, "share": CUT}


def decoder(kind: str, masks: dict[str, Mask] = MASKS) -> Any:
    private = {"shop.items": masks, "shop.open": {}}
    declared = {} if kind == "canal" else {"schema": {"shop.*": DECLARED}, "keys": {"shop.*": ["id"]}}
    return DECODERS[kind]({"private": private, **declared})


def canal(op: str, rows: list[Any], olds: list[Any] | None) -> dict[str, Any]:
    kind = {"c": "INSERT", "u": "UPDATE", "d": "DELETE"}[op]
    said = {
        "type": kind,
        "database": "shop",
        "table": "items",
        "isDdl": False,
        "es": 1_700_000_000_500,
        "sql": "'sentinel-9'",
    }
    return {
        **said,
        "mysqlType": MYSQL,
        "pkNames": ["id"],
        "data": [texts(row) for row in rows],
        "old": olds and list(map(texts, olds)),
    }


def maxwell(op: str, rows: list[Any], olds: list[Any] | None) -> dict[str, Any]:
    kind = {"c": "insert", "u": "update", "d": "delete"}[op]
    said = {"type": kind, "database": "shop", "table": "items", "ts": 1_700_000_000, "xid": 9, "data": rows[0]}
    return {**said, "primary_key": [rows[0].get("id")], "query": "'sentinel-9'", **({"old": olds[0]} if olds else {})}


def ogg(op: str, rows: list[Any], olds: list[Any] | None) -> dict[str, Any]:
    said = {
        "op_type": {"c": "I", "u": "U", "d": "D"}[op],
        "table": "shop.items",
        "op_ts": "2024-02-29 10:00:00",
        "pos": "1" * 20,
    }
    images = {"before": rows[0]} if op == "d" else {"before": olds and olds[0], "after": rows[0]}
    return {**said, **images, "tokens": {"TK": "sentinel-9"}}


MESSAGES = {"canal": canal, "maxwell": maxwell, "ogg": ogg}


def texts(row: dict[str, Any]) -> dict[str, str | None]:
    return {name: None if value is None else str(value) for name, value in row.items()}


def frame(*values: Any, keys: Any = None, headers: Any = None) -> pa.Table:
    said = [v if v is None or isinstance(v, bytes) else json.dumps(v).encode() for v in values]
    place = {"topic": "all", "partition": 0, "timestamp": None, "headers": headers}
    rows = [place | {"offset": n, "value": v, "key": keys[n] if keys else None} for n, v in enumerate(said)]
    return pa.Table.from_pylist(rows, RAW)


NUMBERS = st.integers(7_123_456_789_123_456, 7_999_999_999_999_999)
TEXTS = st.integers(712_345_678, 719_999_999).map(lambda n: f'Zz"é{n}')
DAYS = st.dates().map(str)
ROWS = st.fixed_dictionaries(
    {"id": NUMBERS | TEXTS, "email": TEXTS | st.none(), "born": DAYS | TEXTS | st.none()},
    optional={
        "price": st.integers(7_123_456, 7_199_999).map(lambda n: f"{n}.5") | st.none() | TEXTS,
        "raw": TEXTS.map(lambda t: b64encode(t.encode()).decode()),
        "note": st.sampled_from(["a", "b", None]),
        "at": st.datetimes().map(lambda at: f"{at.date()} {at.time().isoformat('microseconds')}") | TEXTS | st.none(),
        "share": st.integers(71_234_567_891, 71_999_999_999).map(lambda n: n + 0.5) | TEXTS,
    },
)
CHANGES = st.lists(
    st.tuples(
        st.sampled_from("cud"), st.lists(ROWS, min_size=1, max_size=3), st.none() | st.lists(ROWS, min_size=3, max_size=3)
    ),
    min_size=1,
    max_size=5,
)


def secrets(rows: list[dict[str, Any]]) -> set[str]:
    """What nobody may see of them; days are too short to be looked for."""
    return {
        str(v) for row in rows for n, v in row.items() if n in MASKS and v is not None and len(str(v)) > len("2024-02-29")
    }


@pytest.mark.parametrize("kind", list(DECODERS))
@settings(max_examples=EXAMPLES)
@given(changes=CHANGES)
def test_masked_message_decodes_like_the_original(kind: str, changes: Any) -> None:
    """Also with values of other types than their columns. Masking it again changes nothing."""
    by = decoder(kind)
    messages, said = [], []
    for op, several, olds in changes:
        rows = several if kind == "canal" else several[:1]
        said += [*rows, *(olds or [])]
        messages.append(MESSAGES[kind](op, rows, olds[: len(rows)] if olds else None))
    keys = [json.dumps({"database": "shop", "pk.id": rows[0]["id"]}).encode() for _, rows, _ in changes]
    records = frame(*messages, keys=keys)
    veiled = by.mask_records(records)
    again = pickle.loads(pickle.dumps(by))
    assert decode_changes(veiled, again) == decode_changes(records, by)
    assert again.mask_records(veiled).equals(veiled)
    assert list_visible_values((*secrets(said), "sentinel-9"), veiled) == []


def test_equal_values_have_equal_masks() -> None:
    by = decoder("maxwell")
    rows = decode_changes(frame(*(maxwell("c", [{"id": v, "price": p}], None) for v, p in ((7, "1.5"), ("007", 1.50)))), by)
    assert {(row["id"], row["price"]) for row in rows} == {(compute_hmac("7"), compute_hmac("1.5"))}


def test_each_mask() -> None:
    row = {"id": "7", "email": "a@example.com", "born": "2024-02-29", "price": None, "raw": "\xff\x00", "note": "n"}
    by = decoder("canal", {"id": HMAC, "email": CUT, "born": FIXED, "price": FIXED, "note": NOTHING, "raw": HMAC})
    (found,) = decode_changes(frame(canal("c", [row], None)), by)
    kept = {
        "id": compute_hmac("7"),
        "email": f"a@-{compute_hmac('a@example.com')[:16]}",
        "born": "*",
        "price": None,
        "note": None,
    }
    assert {name: found[name] for name in row} == kept | {"raw": compute_hmac("ff00")}
    told = json.loads(get_stored_record(frame(canal("c", [row], None)), by)["value"])
    assert told["data"] == [kept | {"raw": compute_hmac("ff00")}]


def test_masked_key_change_is_decoded_as_one() -> None:
    by = decoder("maxwell")
    records = frame(maxwell("u", [{"id": 8, "email": "b"}], [{"id": 7}]))
    for some in (records, by.mask_records(records)):
        assert [(r["_op"], r["id"]) for r in decode_changes(some, by)] == [
            ("d", compute_hmac("7")),
            ("c", compute_hmac("8")),
        ]


@pytest.mark.parametrize(
    ("key", "kept"),
    [
        (
            b'{"database":"shop","table":"items","pk.id":4711}',
            {"database": "shop", "table": "items", "pk.id": compute_hmac("4711")},
        ),
        (b'{"id":"4711","note":"n"}', {"id": compute_hmac("4711"), "note": "n"}),
        (b'{"other":4711}', None),
        (b"4711", None),
        (b"\xff4711", None),
        (b'{"schema":{},"payload":4711}', None),
    ],
)
def test_keys_of_records(key: bytes, kept: Any) -> None:
    found = get_stored_record(frame(maxwell("c", [{"id": 4711}], None), keys=[key]), decoder("maxwell"))["key"]
    assert (found and json.loads(found)) == kept


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("maxwell", b"sentinel"),
        ("maxwell", b'{"database":"shop","table":"items","type":"insert","data":{"email":"sentinel"'),
        ("maxwell", {"database": "shop", "table": "items", "type": "upsert", "data": {"email": "sentinel"}}),
        ("maxwell", {"database": "shop", "table": "items", "type": "insert", "data": ["sentinel"]}),
        ("maxwell", {"data": {"email": "sentinel"}}),
        ("canal", {**canal("c", [{"email": "sentinel"}], None), "mysqlType": None}),
        ("ogg", {"table": "shop.items", "op_type": "I", "after": {"email": "sentinel"}, "pos": "x"}),
    ],
)
def test_unreadable_records_are_redacted(kind: str, value: Any) -> None:
    records, by = frame(value, keys=[b"sentinel"], headers=[{"name": "h", "value": b"sentinel"}]), decoder(kind)
    assert b"sentinel" not in read_all_text(by.mask_records(records))
    assert b"withheld" in get_stored_record(records, by)["value"]
    assert by.mask_records(by.mask_records(records)).equals(by.mask_records(records))


def test_statements_are_redacted() -> None:
    by = decoder("canal")
    query = {"type": "QUERY", "database": "shop", "table": "items", "isDdl": False, "sql": "SELECT 'sentinel'", "data": None}
    found = get_stored_record(frame(query), by)
    assert json.loads(found["value"]) == {"type": "QUERY", "database": "shop", "table": "items", "isDdl": False}
    assert by.route(frame(found["value"]))["ignored"].to_pylist() == by.route(frame(query))["ignored"].to_pylist()
    heartbeat = get_stored_record(frame({"type": "heartbeat", "sql": "x"}), decoder("maxwell"))
    assert json.loads(heartbeat["value"]) == {"type": "heartbeat"}


def test_messages_of_other_tables_are_unchanged() -> None:
    by = decoder("maxwell")
    whole = {**maxwell("c", [{"id": 1, "email": "b"}], None), "table": "open"}
    for value in (
        whole,
        {**whole, "type": "upsert"},
        {"type": "table-alter", "database": "shop", "table": "open", "sql": "x"},
    ):
        records = frame(value, keys=[b"1"])
        assert by.mask_records(records).equals(records)
    unmasked = MaxwellJsonDecoder({"schema": {"shop.*": DECLARED}})
    assert unmasked.mask_records(frame(b"broken")).equals(frame(b"broken"))


@pytest.mark.parametrize("kind", list(DECODERS))
def test_values_of_unknown_headers_are_removed(kind: str) -> None:
    headers = [{"name": "email", "value": b"sentinel"}, {"name": "replicator.other", "value": b"x"}]
    found = get_stored_record(frame(MESSAGES[kind]("c", [{"id": 7}], None), headers=headers), decoder(kind))["headers"]
    assert [(h["name"], h["value"]) for h in found[:2]] == [("email", None), ("replicator.other", None)]
    query = {"type": "QUERY", "database": "shop", "table": "items", "sql": "SELECT 1", "data": None}
    assert (
        kind != "canal" or get_stored_record(frame(query, headers=headers[:1]), decoder(kind))["headers"][0]["value"] is None
    )


def test_key_of_a_tombstone_is_redacted() -> None:
    assert b"withheld" in get_stored_record(frame(None, keys=[b"4711"]), decoder("canal"))["key"]


def test_column_masked_later() -> None:
    """Masked values stay unchanged."""
    records = frame(maxwell("c", [{"id": 7, "email": "a@example.com"}], None))
    first = decoder("maxwell", {"id": HMAC}).mask_records(records)
    assert b"example" in read_all_text(first)
    by = decoder("maxwell", {"id": HMAC, "email": HMAC})
    assert decode_changes(first, by) == decode_changes(records, by)
    assert b"example" not in read_all_text(by.mask_records(first))


@pytest.mark.parametrize(
    ("masks", "said"),
    [({"id": NOTHING}, "masks a key column so that different keys become equal"), ({"emial": HMAC}, "does not have")],
)
def test_unsuitable_mask_is_refused(masks: dict[str, Mask], said: str) -> None:
    with pytest.raises(ConfigProblem, match=said):
        decode_changes(frame(maxwell("c", [{"id": 7}], None)), decoder("maxwell", masks))


def test_delete_with_an_unconvertible_value_stays_a_delete() -> None:
    by = decoder("maxwell")
    records = frame(maxwell("d", [{"id": 7, "price": "much"}], None), maxwell("d", [{"id": "much"}], None))
    one, other = decode_changes(records, by)
    assert (one["_op"], one["id"], one["price"]) == ("d", compute_hmac("7"), None)
    assert other["_error"] == "OUT_OF_RANGE: column 'id' holds a value that its type cannot hold"
