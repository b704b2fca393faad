"""Column transforms: casts without loss, masks that keep keys, computed columns, refusals."""

from __future__ import annotations

import hashlib
import hmac
from datetime import date
from decimal import Decimal

import pyarrow as pa
import pytest

from adapters.arrow.masks import mask_values
from adapters.engines.local import LocalEngine
from adapters.transforms.expressions import cast_values
from replicator.domain.change import changes_schema
from replicator.domain.errors import ConfigProblem
from replicator.domain.expr import AnyOf, Call, Compare, Lit, source
from replicator.domain.patterns import ColumnSelection
from replicator.domain.policy.policies import plan_for
from replicator.domain.table import Column, TableSpec
from replicator.domain.transform.columns import AddedColumn, ColumnRule, ColumnTransforms, Mask
from replicator.domain.transform.rows import RowTransforms

TABLE = TableSpec(
    "public.t",
    (
        *(Column(name, pa.int64()) for name in ("id", "number")),
        *(Column(name, pa.string()) for name in ("text", "Name", "name")),
        Column("price", pa.float64()),
        Column("parts", pa.list_(pa.string())),
    ),
    ("id",),
    2,
)
DIGEST = Mask("hmac", b"k" * 16)


@pytest.mark.parametrize(
    ("values", "kind", "into", "expected"),
    [
        ([1, 2**40, None], pa.int64(), pa.int32(), [1, "lost", None]),
        ([1, 10**12, 10**10 - 1], pa.int64(), pa.decimal128(12, 2), [Decimal(1), "lost", Decimal(10**10 - 1)]),
        (["1.5", "1.234", "x"], pa.string(), pa.decimal128(12, 2), [Decimal("1.50"), "lost", "lost"]),
        ([Decimal("1.50"), Decimal("2.00")], pa.decimal128(12, 2), pa.int64(), ["lost", 2]),
        ([Decimal("1.10"), Decimal("220.23")], pa.decimal128(12, 2), pa.float64(), [1.1, 220.23]),
        ([Decimal("1.50"), Decimal("1.55")], pa.decimal128(12, 2), pa.decimal128(12, 1), [Decimal("1.5"), "lost"]),
        ([Decimal(10) ** 30], pa.decimal128(38, 0), pa.float64(), ["lost"]),
        ([0.1, 1.5, 1e300], pa.float64(), pa.float32(), ["lost", 1.5, "lost"]),
        ([float("nan"), 3.0], pa.float64(), pa.int64(), ["lost", 3]),
        ([0, 1, 2], pa.int32(), pa.bool_(), [False, True, "lost"]),
        ([0, 86_400_000_000, 1], pa.timestamp("us"), pa.date32(), [date(1970, 1, 1), date(1970, 1, 2), "lost"]),
        (["2024-02-29", "2023-02-29"], pa.string(), pa.date32(), [date(2024, 2, 29), "lost"]),
        ([b"a", b"\xff"], pa.binary(), pa.string(), ["a", "lost"]),
        ([], pa.int64(), pa.string(), []),
    ],
)
def test_cast_is_exact_or_null(values, kind, into, expected):
    done, lost = cast_values(pa.chunked_array([pa.array(values, kind)]), into)
    found = ["lost" if gone else value for value, gone in zip(done.to_pylist(), lost.to_pylist(), strict=True)]
    assert (found, done.type) == (expected, into)


def test_text_cast_to_text_loses_its_source_type():
    """PostgreSQL would otherwise store JSON, a UUID, an interval or a number of any scale."""
    known = Column("v", pa.string(), source_type="io.debezium.data.Json")
    table = TableSpec("public.t", (Column("id", pa.int64()), known), ("id",), 2)
    assert ColumnTransforms((("v", ColumnRule(rename="w")),)).apply_to(table).column("w").source_type == known.source_type
    assert ColumnTransforms((("v", ColumnRule(cast=pa.string())),)).apply_to(table).column("v") == Column("v", pa.string())


def test_equal_values_of_several_types_have_one_hmac():
    """So that keys of two tables still join, whether they have 32 bits, 64 bits or text."""
    kinds = (
        *((7, pa.int32()), (7, pa.int64()), ("7", pa.string()), (Decimal(7), pa.decimal128(5, 0))),
        *((Decimal("7.00"), pa.decimal128(12, 2)), (7.0, pa.float64()), (7.0, pa.float32())),
    )
    found = {mask_values(pa.chunked_array([pa.array([value, None], kind)]), DIGEST).to_pylist()[0] for value, kind in kinds}
    assert found == {hmac.new(b"k" * 16, b"7", hashlib.sha256).hexdigest()}
    assert mask_values(pa.chunked_array([pa.array([None], pa.int64())]), DIGEST).to_pylist() == [None]


def test_truncated_text_starts_as_the_value_and_stays_distinct():
    mask = Mask("truncate", b"k" * 16, 3)
    one, other, same = mask_values(pa.chunked_array([["Alice", "Alina", "Alice"]]), mask).to_pylist()
    assert one == same != other
    assert one.startswith("Ali-") and other.startswith("Ali-") and len(one) == 20
    assert "Alice" not in one


@pytest.mark.parametrize(
    ("remade", "told"),
    [
        (ColumnTransforms((("ide", ColumnRule(rename="a")),)), "does not have"),
        (ColumnTransforms((("id", ColumnRule(drop=True)),)), "leaves out a key column"),
        (ColumnTransforms((("id", ColumnRule(mask=Mask("nothing"))),)), "different keys become equal"),
        (ColumnTransforms((("id", ColumnRule(cast=pa.int32())),)), "different keys could become equal"),
        (ColumnTransforms((("parts", ColumnRule(mask=DIGEST)),)), "can be written in several ways"),
        (ColumnTransforms((("parts", ColumnRule(cast=pa.int64())),)), "which is impossible"),
        (ColumnTransforms((("text", ColumnRule(rename="NUMBER")),)), "two columns with the name"),
        (ColumnTransforms((), (("Text", AddedColumn("topic")),)), "two columns with the name"),
        (ColumnTransforms((), (("text", AddedColumn(expression=source("name"))),)), "two columns with the name"),
        (
            ColumnTransforms((), (("a", AddedColumn(expression=source("txt"))),)),
            "names column 'txt', which table public.t does not have",
        ),
        (ColumnTransforms((), (("a", AddedColumn(expression=Lit(None))),)), "is always NULL"),
        (ColumnTransforms((), (("a", AddedColumn(expression=Call("lower", (source("number"),)))),)), "which needs text"),
        (
            ColumnTransforms((), (("a", AddedColumn(cast=pa.date32(), expression=source("price"))),)),
            "cannot be cast to date32",
        ),
        (
            ColumnTransforms((), (("a", AddedColumn("offset", cast=pa.date32())),)),
            "the metadata of column 'a' .* cannot be cast to date32",
        ),
        (
            ColumnTransforms((), (("a", AddedColumn(constant=True, cast=pa.date32())),)),
            "the constant of column 'a' .* cannot be cast to date32",
        ),
        (
            ColumnTransforms((("text", ColumnRule(mask=DIGEST)),), (("a", AddedColumn(expression=source("text"))),)),
            "which its target masks",
        ),
    ],
)
def test_unsuitable_transforms_are_refused(remade, told):
    with pytest.raises(ConfigProblem, match=told):
        RowTransforms(column_transforms=remade).apply_to(TABLE)


def test_columns_can_exchange_their_names():
    remade = ColumnTransforms(
        (("number", ColumnRule(rename="text")), ("text", ColumnRule(rename="number"))), (("at", AddedColumn("offset")),)
    )
    table = RowTransforms(column_transforms=remade).apply_to(TABLE)
    assert table.column_names == ("id", "text", "number", "Name", "name", "price", "parts", "at")
    assert (table.column("text").type, table.column("number").type) == (pa.int64(), pa.string())


def test_renamed_key_keeps_its_position():
    table = RowTransforms(column_transforms=ColumnTransforms((("id", ColumnRule(mask=DIGEST, rename="who")),))).apply_to(
        TABLE
    )
    assert (table.keys, table.column("who").type) == (("who",), pa.string())


def test_old_key_of_a_key_change_is_transformed_too():
    """Values that the create half lacks are looked up by it."""
    shape = RowTransforms(
        column_transforms=ColumnTransforms(
            (("id", ColumnRule(mask=DIGEST, rename="who")), ("text", ColumnRule(rename="note")))
        )
    )
    plan, row = plan_for("scd1", TABLE, row_transforms=shape), dict.fromkeys(TABLE.column_names)
    place = {"_ts": None, "_topic": "t", "_partition": 0, "_seq_1": 1, "_seq_2": 1}
    left = row | place | {"_op": "d", "_offset": 0, "id": 1, "_moved_to": True}
    came = row | place | {"_op": "c", "_offset": 1, "id": 2, "_moved_from": {"id": 1}, "_unsent": ["text", "number"]}
    changes = pa.Table.from_pylist([left, came], changes_schema(TABLE))
    old, new = LocalEngine().transform_rows(changes, plan).frame.to_pylist()
    assert (old["_moved_from"], new["_moved_from"]) == (None, {"who": old["who"]})
    assert old["who"] == hmac.new(b"k" * 16, b"1", hashlib.sha256).hexdigest() != new["who"]
    assert (old["_unsent"], new["_unsent"]) == (None, ["note", "number"])


TOTAL = Call("*", (source("number"), source("price")))


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        (
            RowTransforms(
                ignore_null=ColumnSelection((), excluded=True),
                column_transforms=ColumnTransforms(additions=(("a", AddedColumn(expression=TOTAL)),)),
            ),
            "a NULL changes",
        ),
        (
            RowTransforms(
                has_column_versions=True,
                column_transforms=ColumnTransforms(additions=(("a", AddedColumn(expression=TOTAL)),)),
            ),
            "need not hold all that",
        ),
    ],
)
def test_unsuitable_computed_columns_are_refused(shape, told):
    with pytest.raises(ConfigProblem, match=told):
        shape.apply_to(TABLE)
    of_one = AddedColumn(expression=Call("+", (source("id"), source("number"))))
    assert (
        RowTransforms(has_column_versions=True, column_transforms=ColumnTransforms(additions=(("a", of_one),)))
        .apply_to(TABLE)
        .column("a")
        .type
        == pa.int64()
    )


def transform_rows(shape, *rows):
    """What is left of changes, and why others are not."""
    plan, row = (
        plan_for("scd1", TABLE, row_transforms=shape),
        dict.fromkeys(TABLE.column_names) | {"_op": "u", "_topic": "t", "_partition": 0},
    )
    frame = pa.Table.from_pylist(
        [row | {"_seq_1": n, "_seq_2": n, "_offset": n} | one for n, one in enumerate(rows)], changes_schema(TABLE)
    )
    done = LocalEngine().transform_rows(frame, plan)
    return done.frame.to_pylist(), {r["_offset"]: r["_error"].partition(":")[0] for r in done.rejects.to_pylist()}


def test_column_is_computed_from_sent_values():
    """Also from columns that a list leaves out, and with the type of a cast; a delete has no value."""
    total = AddedColumn(cast=pa.decimal128(8, 2), expression=TOTAL)
    shape = RowTransforms(
        columns=ColumnSelection(("number", "price"), excluded=True),
        column_transforms=ColumnTransforms(additions=(("total", total),)),
    )
    rows, rejects = transform_rows(
        shape,
        {"id": 1, "number": 3, "price": 0.5},
        {"id": 1, "number": 3, "price": None},
        {"id": 1, "_unsent": ["number", "price", "text"]},
        {"id": 1, "number": 3, "_unsent": ["price"]},
        {"id": 1, "number": 1, "price": 0.125},
        {"id": 1, "number": 3, "price": 0.5, "_op": "d"},
        {"_op": "t"},
    )
    assert [(row["_offset"], row["total"], row["_unsent"]) for row in rows] == [
        (0, Decimal("1.50"), None),
        (1, None, None),
        (2, None, ["text", "total"]),
        (5, None, None),
        (6, None, None),
    ]
    assert rejects == {3: "INCOMPLETE", 4: "OUT_OF_RANGE"}
    assert "price" not in rows[0]


def test_column_from_record_metadata_is_exact_or_rejected():
    shape = RowTransforms(column_transforms=ColumnTransforms(additions=(("at", AddedColumn("offset", cast=pa.int8())),)))
    rows, rejects = transform_rows(
        shape, {"id": 1}, {"id": 1, "_offset": 200}, {"id": 1, "_op": "d", "_offset": 300}, {"_op": "t"}
    )
    assert ([(row["_op"], row["at"]) for row in rows], rejects) == (
        [("u", 0), ("d", None), ("t", None)],
        {200: "OUT_OF_RANGE"},
    )


def test_key_change_recomputes_columns_that_use_the_key():
    label = AddedColumn(expression=Call("concat", (source("id"), source("text"))))
    sent, moved = {"_unsent": ["text"]}, {"_op": "c", "_moved_from": {"id": 1}, "_unsent": ["text"]}
    rows, rejects = transform_rows(
        RowTransforms(column_transforms=ColumnTransforms(additions=(("label", label),))),
        {"id": 1, **sent},
        {"id": 2, **moved},
    )
    assert [row["_unsent"] for row in rows] == [["label", "text"]] and rejects == {1: "INCOMPLETE"}


def test_condition_that_cannot_be_evaluated_rejects_the_change():
    by_zero = Compare(">", Call("/", (source("price"), source("number"))), Lit(1))
    good, bad = {"id": 1, "number": 1, "price": 2.0}, {"id": 1, "number": 0, "price": 2.0}
    for shape in (
        RowTransforms(where=by_zero),
        RowTransforms(deletes=by_zero),
        RowTransforms(where=by_zero, rows_leave=False),
    ):
        rows, rejects = transform_rows(shape, good, bad, {"_op": "d", **bad})
        assert ([row["_offset"] for row in rows], rejects) == ([0, 2], {1: "OUT_OF_RANGE"})
        assert rows[0]["_op"] == ("d" if shape.deletes else "u")
    guarded = AnyOf((Compare("=", source("number"), Lit(0)), by_zero))
    rows, rejects = transform_rows(RowTransforms(where=guarded), good, bad)
    assert ([row["_op"] for row in rows], rejects) == (["u", "u"], {})


WHERE = Compare("=", source("text"), Lit("a"))


@pytest.mark.parametrize(
    "shape",
    [RowTransforms(where=WHERE, has_column_versions=True), RowTransforms(where=Compare("=", source("txt"), Lit("a")))],
)
def test_unsuitable_where_is_refused(shape):
    with pytest.raises(ConfigProblem, match="'where'"):
        shape.apply_to(TABLE)
