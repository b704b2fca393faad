"""Rows: the meaning of operations, sequences and values, and the resulting changes."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from adapters.decoders.rows import RowsDecoder
from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem, Fatal, Reject, find_remedy
from replicator.domain.table import TableSpec

TYPES = {"id": "int64", "name": "string", "price": "decimal(10,2)"}
KEYED = {"keys": {"items": ["id"]}}
DECLARED = {**KEYED, "schema": {"items": TYPES}, "operation_column": "op", "sequence_columns": ["at"]}


def make_typed_row(
    op: Any = "c", at: Any = 1, types: dict[str, Any] = TYPES, before: Any = None, **row: Any
) -> dict[str, Any]:
    own = {"_op": op, "_version": at, "_order": 1, "_row": 5}
    return {"schema": types, "payload": {**own, **({} if before is None else {"_before": before}), **row}}


def frame(*values: Any) -> pa.Table:
    texts = [v if v is None or isinstance(v, bytes) else json.dumps(v, separators=(",", ":")).encode() for v in values]
    rows = [{"topic": "items", "partition": 0, "offset": n, "timestamp": 7000, "value": v} for n, v in enumerate(texts)]
    return pa.Table.from_pylist(rows, RAW)


def learnt(decoder: RowsDecoder, raw: pa.Table) -> TableSpec:
    return decoder.learn(raw, "items", "any")


def decode(*values: Any, options: dict[str, Any] = KEYED) -> list[dict[str, Any]]:
    decoder, raw = RowsDecoder(options), frame(*values)
    return decoder.decode(raw, learnt(decoder, raw)).to_pylist()


def code(row: dict[str, Any]) -> str:
    return Reject.parse(row["_error"]).code if row["_error"] else ""


def test_row_is_a_change():
    [row] = decode(make_typed_row("u", 3, id=1, name="é", price="1.50"))
    assert (row["_op"], row["_seq_1"], row["_seq_2"], row["_seq_3"], row["_offset"]) == ("u", 3, 1, 5, 0)
    assert (row["id"], row["name"], row["price"]) == (1, "é", Decimal("1.50"))
    assert row["_ts"].second == 7 and row["_unsent"] is None and row["_error"] is None


def test_every_layout_gives_the_same_row():
    """Also if the schema is followed by more than the payload."""
    compact = json.dumps(make_typed_row(id=1, name="é", price="1.50"), separators=(",", ":")).encode()
    payload = compact[compact.index(b',"payload":') : -1]
    layouts = [compact[:-1] + payload + b"}", compact[:-1] + b',"more":1}', b" " + compact, compact.replace(b",", b" ,")]
    for text in layouts:
        alone, *crowded = [decode(text)[-1], decode(compact, text)[-1], decode(*[b" " + compact] * 20, text)[-1]]
        assert alone["_error"] is None and alone["id"] == 1
        assert all(row | {"_offset": 0, "_seq_3": 5} == alone for row in crowded)
        seen = RowsDecoder(KEYED).envelope(frame(text)).to_pylist()[0]
        assert seen["error"] is None and json.loads(seen["after"])["id"] == 1


def test_columns_named_like_the_parts_of_a_record():
    row = make_typed_row(id=1)["payload"] | {"schema": "public", "payload": make_typed_row(id=9)["payload"]}
    [found] = decode(row, options=KEYED | {"schema": {"items": {"id": "int64", "schema": "string"}}})
    assert (found["id"], found["schema"], found["_error"]) == (1, "public", None)


def test_missing_columns_of_a_row():
    """In an update they were not sent; in other rows they are null. The key is required."""
    rows = decode(*(make_typed_row(op, id=1) for op in "curd"), make_typed_row("u", name="x"), make_typed_row("d", id=None))
    assert [row["_unsent"] for row in rows[:4]] == [None, ["name", "price"], None, None]
    assert [code(row) for row in rows] == ["", "", "", "", "NULL_KEY", "NULL_KEY"]


@pytest.mark.parametrize("name", [" id", "ID", "id "])
def test_key_column_with_a_similar_name_is_reported(name):
    rows = decode(
        {"op": "c", "at": 1, name: 1}, {"op": "c", "at": 1, "id": None, name: 1}, {"op": "c", "at": 1}, options=DECLARED
    )
    rejects = [Reject.parse(row["_error"]) for row in rows]
    other = f"key column 'id' of table items is missing, and the record has {name!r} instead"
    lacking = "key column 'id' of table items is null or missing"
    assert [one.sentence for one in rejects] == [other, lacking, lacking]
    assert f"Correct the name {name!r} at the source" in find_remedy(rejects[0], "items")


def test_key_change_is_a_delete_and_a_create():
    before = {"id": 1, "name": "old"}
    rows = decode(
        make_typed_row("u", id=2, name="new", price="1"), make_typed_row("u", before=before, id=2, name="new", price="1")
    )
    assert [(r["_op"], r["_seq_2"], r["id"], r["name"], r["_offset"]) for r in rows] == [
        ("u", 1, 2, "new", 0),
        ("d", 0, 1, "old", 1),
        ("c", 1, 2, "new", 1),
    ]
    assert {row["price"] for row in rows} == {Decimal(1)}
    unkeyed = decode(make_typed_row("u", before=before, id=2, name="new"), options={})
    assert [row["_op"] for row in unkeyed] == ["u"]
    other = decode(make_typed_row("u", before={"name": "old"}, id=2, name="new"), make_typed_row("c", before=before, id=2))
    assert [row["_op"] for row in other] == ["u", "c"]


def test_key_change_with_an_invalid_old_key_is_rejected_as_a_whole():
    rows = decode(make_typed_row("u", id=2, types={"id": "int8", "name": "string"}, name="a", before={"id": 1000}))
    assert [code(row) for row in rows] == ["OUT_OF_RANGE"] * 2


def test_key_change_must_be_a_whole_row():
    """The row starts there: missing values are nowhere else."""
    rows = decode(make_typed_row("u", before={"id": 1}, id=2, name="new"), make_typed_row(id=3))
    assert {code(row) for row in rows[:2]} == {"INCOMPLETE"} and "'price'" in rows[0]["_error"]
    assert code(rows[2]) == ""


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (make_typed_row("x", id=1), "UNKNOWN_OPERATION"),
        (make_typed_row(None, id=1), "UNKNOWN_OPERATION"),
        (make_typed_row(True, id=1), "UNKNOWN_OPERATION"),
        (make_typed_row(at=None, id=1), "NO_SEQUENCE"),
        (make_typed_row(at=-1, id=1), "NO_SEQUENCE"),
        (make_typed_row(at=2**56, id=1), "NO_SEQUENCE"),
        (make_typed_row(at=2**70, id=1), "NO_SEQUENCE"),
        (make_typed_row(at="7a", id=1), "NO_SEQUENCE"),
        (make_typed_row(at=1.5, id=1), "NO_SEQUENCE"),
        (make_typed_row(id="1"), "MALFORMED"),
        (make_typed_row(id=1, name=1), "MALFORMED"),
        (make_typed_row(id=2**63), "OUT_OF_RANGE"),
        (make_typed_row(id=1, price="1.555"), "OUT_OF_RANGE"),
        (make_typed_row(id=1, price="NaN"), "OUT_OF_RANGE"),
        (make_typed_row("u", before=[1], id=1), "MALFORMED"),
    ],
)
def test_bad_rows_are_rejected_alone(bad, expected):
    rows = decode(make_typed_row(id=1), bad, make_typed_row(id=2))
    assert [code(row) for row in rows] == ["", expected, ""]
    assert [row["_offset"] for row in rows] == [0, 1, 2]


def test_delete_with_an_unconvertible_value_is_applied():
    [row] = decode(make_typed_row("d", id=1, name="x", price="1.555"))
    assert (row["_op"], row["_error"], row["_unsent"], row["price"]) == ("d", None, ["price"], None)


def test_rows_without_types_have_declared_types():
    """Sequences may be digits; undeclared columns are left out."""
    rows = decode(
        {"op": "I", "at": "12", "id": 1, "price": 1.5, "more": [1]}, {"op": "D", "at": 13, "id": 1}, options=DECLARED
    )
    assert [(r["_op"], r["_seq_1"], r["id"], r["price"]) for r in rows] == [("c", 12, 1, Decimal("1.5")), ("d", 13, 1, None)]
    assert "more" not in rows[0] and "op" not in rows[0]
    declared = {**DECLARED, "schema": {"items": {**TYPES, "op": "string", "at": "int64"}}}
    [row] = decode({"op": "U", "at": 7, "id": 1, "name": "x", "price": "1"}, options=declared)
    assert (row["_op"], row["op"], row["_seq_1"], row["at"]) == ("u", "U", 7, 7)


TEXTS = {**KEYED, "text_values": True, "schema": {"items": {**TYPES, "at": "timestamp[us]", "ok": "bool"}}}


def test_text_values():
    """CSV rows have only text; columns for operation and sequence are no columns of the table."""
    said = {"operation_column": "op", "sequence_columns": ["n"]}
    row = {"op": "UPDATE", "n": "7", "id": "1", "price": "1.5", "at": "2024-02-29 01:02:03", "ok": "F", "name": None}
    good, unsent, bad = decode(row, {"op": "D", "n": "8", "id": "1"}, {**row, "price": "much"}, options={**TEXTS, **said})
    assert (good["_op"], good["_seq_1"], good["id"], good["price"], good["ok"]) == ("u", 7, 1, Decimal("1.50"), False)
    assert (good["at"].hour, good["name"], good["_unsent"]) == (1, None, None) and "op" not in good
    assert (unsent["_op"], unsent["_error"]) == ("d", None)
    assert code(bad) == "OUT_OF_RANGE" and "'price'" in bad["_error"] and "much" not in bad["_error"]


@pytest.mark.parametrize("token", [b"1e999", b'"\xff"', b"1" * 5000])
def test_unreadable_operations_and_sequences_are_rejected_alone(token):
    """Tokens of objects are read late if the name of a column needs an escape."""
    types = {"id": "int64", 'a"b': "string"}
    row = b'{"op":"c","at":1,"id":1,"a\\"b":"x"}'
    bad = [row.replace(b'"at":1', b'"at":' + token), row.replace(b'"op":"c"', b'"op":' + token)]
    rows = decode(row, *bad, options={**DECLARED, "schema": {"items": types}})
    assert [code(one) for one in rows] == ["", "NO_SEQUENCE", "UNKNOWN_OPERATION"]
    assert rows[0]['a"b'] == "x"


def test_offset_is_the_order_without_sequence_columns():
    options = {**DECLARED, "sequence_columns": [], "epoch": 3}
    decoder = RowsDecoder(options)
    raw = frame({"op": "I", "id": 1}, {"op": "UPSERT", "id": 1})
    far = pa.array([5, (9 << 30) + 6], pa.int64())
    raw = raw.set_column(raw.schema.get_field_index("offset"), RAW.field("offset"), far)
    table = learnt(decoder, raw)
    assert table.sequence_types == (pa.int64(), pa.int64())
    rows = decoder.decode(raw, table).to_pylist()
    assert [(r["_op"], r["_seq_1"] - (3 << 56), r["_seq_2"], r["_error"]) for r in rows] == [
        ("c", 0, 5, None),
        ("u", 9, 6, None),
    ]
    assert [(e["seq_1"], e["seq_2"]) for e in decoder.envelope(raw).to_pylist()] == [(0, 5), (9, 6)]


@pytest.mark.parametrize("inserts_only", [True, False])
def test_inserts_only_rows_need_no_operation(inserts_only):
    options = {**DECLARED, "inserts_only": inserts_only}
    decoder, raw = RowsDecoder(options), frame({"at": 1, "id": 1}, {"at": 1, "id": 1, "op": "?"})
    assert [bool(route["error"]) for route in decoder.route(raw).to_pylist()] == [not inserts_only, True]
    rows = decoder.decode(raw, learnt(decoder, raw)).to_pylist()
    assert [(row["_op"], code(row)) for row in rows] == [
        ("c", "") if inserts_only else (None, "UNKNOWN_OPERATION"),
        (None, "UNKNOWN_OPERATION"),
    ]


OF_TOPIC = {**KEYED, "inserts_only": True, "sequence_columns": [], "tombstones": "delete", "schema": {"items": TYPES}}


def make_keyed_frame(*records: tuple[bytes | None, Any], topic: str = "items") -> pa.Table:
    raw = frame(*(value for _, value in records))
    raw = raw.set_column(0, raw.schema.field("topic"), pa.array([topic] * len(records), pa.string()))
    place = raw.schema.get_field_index("key")
    return raw.set_column(place, raw.schema.field(place), pa.array([key for key, _ in records], pa.binary()))


@pytest.mark.parametrize(
    ("kind", "key", "expected"),
    [
        ("int64", b'{"id": 1, "more": 2}', 1),
        ("int64", b'{"schema":{"type":"struct"},"payload":{"id":1}}', 1),
        ("int64", b'{"schema":{"type":"int64"},"payload":1}', 1),
        ("int64", b"1", 1),
        ("string", b"1", "1"),
        ("string", b'"1"', "1"),
        ("string", b"a b", "a b"),
    ],
)
def test_record_without_value_deletes_the_row_of_its_key(kind, key, expected):
    decoder = RowsDecoder({**OF_TOPIC, "schema": {"items": {**TYPES, "id": kind}}})
    raw = make_keyed_frame((None, {"id": expected, "name": "x"}), (key, None), (None, None))
    routes = decoder.route(raw).to_pylist()
    assert [(r["table"], r["ignored"], r["error"]) for r in routes] == [
        *[("items", None, None)] * 2,
        (None, "tombstone", None),
    ]
    rows = decoder.decode(raw.slice(0, 2), learnt(decoder, raw.slice(1, 1))).to_pylist()
    assert [(r["_op"], r["id"], r["name"], r["_seq_2"], r["_error"]) for r in rows] == [
        ("c", expected, "x", 0, None),
        ("d", expected, None, 1, None),
    ]
    assert [e["op"] for e in decoder.envelope(raw).to_pylist()] == ["c", "d", None]


@pytest.mark.parametrize("key", [b"a", b"[1]", b'{"more": 1}', b"\xff", b'{"id": null}', b"1.5"])
def test_invalid_key_is_rejected(key):
    decoder, raw = RowsDecoder(OF_TOPIC), make_keyed_frame((None, {"id": 1}), (key, None))
    spec = learnt(decoder, raw)
    wrong = [decoder.route(raw)["error"][1].as_py(), decoder.decode(raw, spec)["_error"][1].as_py()]
    assert any(wrong)


@pytest.mark.parametrize(
    "more", [{"tombstones": "ignore"}, {"tombstones": {"items": "ignore"}}, {"keys": {}}, {"schema": {"other": TYPES}}]
)
def test_record_without_value_is_ignored_otherwise(more):
    [route] = RowsDecoder({**OF_TOPIC, **more}).route(make_keyed_frame((b"1", None))).to_pylist()
    assert (route["table"], route["ignored"]) == (None, "tombstone")


@pytest.mark.parametrize("more", [{"inserts_only": False}, {"sequence_columns": ["at"]}])
def test_tombstones_need_the_order_of_offsets(more):
    with pytest.raises(ConfigProblem, match="in the order of their offsets"):
        RowsDecoder({**OF_TOPIC, **more})


def test_rows_of_a_delta_source_report_missing_options():
    wrong, right = decode(
        make_typed_row("d", id=1), {"schema": TYPES, "payload": {"id": 1}}, options={**OF_TOPIC, "schema": {}}
    )
    assert "`operation_column: _op`" in wrong["_error"] and "[_version, _order, _row]" in wrong["_error"]
    assert (right["_op"], right["_error"]) == ("c", None)


def test_other_schema_is_ignored_if_columns_are_declared():
    connect = {
        "schema": {"type": "struct", "fields": [{"field": "id", "type": "int64"}]},
        "payload": {"op": "I", "at": 1, "id": 4},
    }
    assert [row["id"] for row in decode(connect, options=DECLARED)] == [4]
    [route] = RowsDecoder(KEYED).route(frame(connect)).to_pylist()
    assert "its table declares no columns" in route["error"]


def test_column_names_with_special_characters():
    types = {'a"b': "int64", "c\\d": {"list": "date32"}, "e\nf": "binary"}
    row = {'a"b': 1, "c\\d": ["2024-02-29", None], "e\nf": "AP8="}
    rows = decode(make_typed_row("u", types=types, before={'a"b': 2}, **row), options={"keys": {"items": ['a"b']}})
    assert [(r["_op"], r['a"b']) for r in rows] == [("d", 2), ("c", 1)]
    assert rows[1]["e\nf"] == b"\x00\xff" and rows[1]["c\\d"][0].isoformat() == "2024-02-29"


def test_routes():
    decoder = RowsDecoder(KEYED)
    bare = {"_op": "c", "_version": 1}
    routes = decoder.route(
        frame(make_typed_row(id=1), None, bare, {"id": 1}, b"[]", make_typed_row(types={"id": "int65"}))
    ).to_pylist()
    assert [r["table"] for r in routes] == ["items", None, "items", "items", "items", "items"]
    assert routes[1]["ignored"] == "tombstone"
    assert [Reject.parse(r["error"]).code for r in routes[3:]] == ["UNKNOWN_OPERATION", "MALFORMED", "MALFORMED"]
    long = RowsDecoder({**KEYED, "limits": {"message_bytes": 50}}).route(frame(make_typed_row(id=1))).to_pylist()
    assert long[0]["error"].startswith("TOO_LARGE") and long[0]["table"] == "items"
    wide = RowsDecoder({**KEYED, "limits": {"columns": 2}}).route(frame(make_typed_row(id=1))).to_pylist()
    assert wide[0]["error"].startswith("TOO_LARGE")


def test_frames_with_empty_arrays():
    decoder, raw = RowsDecoder(KEYED), frame(make_typed_row(id=1))
    raw = pa.table([pa.chunked_array([pa.array([], f.type), *raw[f.name].chunks], f.type) for f in RAW], schema=RAW)
    assert decoder.route(raw).num_rows == decoder.decode(raw, learnt(decoder, raw)).num_rows == 1
    assert decoder.envelope(raw).num_rows == 1


def test_table_without_types_cannot_be_learnt():
    decoder = RowsDecoder({})
    with pytest.raises(ConfigProblem, match="carry no types") as said:
        learnt(decoder, frame({"_op": "c"}))
    assert "schema: {id: int64" in said.value.next_step
    with pytest.raises(Fatal, match="'_ts'"):
        learnt(decoder, frame(make_typed_row(types={"id": "int64", "_ts": "string"})))


def test_cdc_columns_of_a_target_are_no_columns():
    types = {"id": "int64", "_cdc_op": "string", "_cdc_seq_1": "int64", "_event_id": "string"}
    told = {"operation_column": "_cdc_op", "sequence_columns": ["_cdc_seq_1"], **KEYED}
    decoder, raw = RowsDecoder(told), frame(make_typed_row(types=types, id=1, _cdc_op="d", _cdc_seq_1=4))
    spec = learnt(decoder, raw)
    [row] = decoder.decode(raw, spec).to_pylist()
    assert (spec.column_names, row["_op"], row["_seq_1"]) == (("id",), "d", 4)


def test_epoch_is_first_in_the_sequence():
    [row] = decode(make_typed_row(at=3, id=1), options={**KEYED, "epoch": 2})
    assert row["_seq_1"] == (2 << 56) + 3


def test_envelopes():
    raw = frame(make_typed_row("u", 9, id=1), make_typed_row("d", id=1), {"_op": "x"}, b"junk", None)
    rows = RowsDecoder(KEYED).envelope(raw).to_pylist()
    assert [(r["op"], r["table"], r["seq_1"]) for r in rows[:2]] == [("u", "items", 9), ("d", "items", 1)]
    assert [(bool(r["before"]), bool(r["after"])) for r in rows] == [(False, True), (True, False), *[(False, False)] * 3]
    assert [bool(r["error"]) for r in rows] == [False, False, True, True, False]
    assert json.loads(rows[0]["after"])["id"] == 1


WRONG = [
    ({"operations": {"create": ["x"], "update": ["x"]}}, "create and update have a value in common"),
    ({"operations": {"upsert": ["x"]}}, "operations"),
    ({"text_values": True, "schema": {"items": {"id": "list<int64>"}}}, "column 'id' of table items is declared as"),
    ({"sequence_columns": ["a", "b", "c", "d", "e"]}, "sequence_columns"),
    ({"sequence_columns": ["a", "a"]}, "name a column twice"),
    ({"operation_column": "_row"}, "name a column twice"),
    ({"tombstones": {"items": "delete"}}, "tombstones"),
    ({"schema": {"items": {"id": "int65"}}}, "column 'id' of table items is declared as 'int65'"),
    ({"unknown": 1}, "unknown"),
]


@pytest.mark.parametrize(("options", "sentence"), WRONG)
def test_invalid_options_are_refused(options, sentence):
    with pytest.raises(ConfigProblem, match=sentence):
        RowsDecoder(options)
