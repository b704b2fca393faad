"""Row transforms of a lane: order by columns, conditions for deletes and truncates, refusals."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from itertools import permutations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.budget import select_every_nth

from adapters.arrow.sequence_elements import to_elements, to_values
from adapters.engines.local import LocalEngine
from adapters.transforms.expressions import evaluate_condition
from replicator.domain.change import changes_schema
from replicator.domain.errors import ConfigProblem
from replicator.domain.expr import Compare, Lit, source
from replicator.domain.patterns import ColumnSelection
from replicator.domain.policy.policies import plan_for
from replicator.domain.sequence import get_display_type, get_element
from replicator.domain.table import Column, TableSpec
from replicator.domain.transform.expressions import refuse_condition
from replicator.domain.transform.rows import NO_ROW_TRANSFORMS, RowTransforms
from replicator.settings.expressions import parse_condition
from replicator.testing.model import Change, fold_changes
from replicator.testing.model_transforms import ModelRowTransforms
from replicator.testing.sink_row_transforms import (
    BY_NUMBER,
    CHRIS,
    EMPLOYEES,
    HIRED,
    PAT,
    REMAINING,
    REMAINING_ROLES,
    SALES,
    SOLD,
)

# Elements.


def decimals(digits, scale):
    return st.integers(1 - 10**digits, 10**digits - 1).map(lambda number: Decimal(f"{number}e-{scale}"))


ORDERED = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.uint32(): st.integers(0, 2**32 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.date32(): st.dates(),
    pa.date64(): st.dates(),
    pa.timestamp("s"): st.datetimes().map(lambda moment: moment.replace(microsecond=0)),
    pa.timestamp("ms", "UTC"): st.datetimes(timezones=st.just(UTC)).map(
        lambda m: m.replace(microsecond=m.microsecond // 1000 * 1000)
    ),
    pa.timestamp("us"): st.datetimes(),
    pa.time32("s"): st.times().map(lambda moment: moment.replace(microsecond=0)),
    pa.time64("us"): st.times(),
    pa.decimal128(5, 0): decimals(5, 0),
    pa.decimal128(18, 4): decimals(18, 4),
    pa.decimal128(6, 6): decimals(6, 6),
    pa.decimal128(38, 10): decimals(38, 10),
    pa.decimal256(60, 2): decimals(60, 2),
    pa.string(): st.text(st.characters(codec="utf-8")),
    pa.large_string(): st.text(st.characters(codec="utf-8")),
    pa.dictionary(pa.int32(), pa.string()): st.text(st.characters(codec="utf-8")),
    pa.binary(): st.binary(),
    pa.binary(3): st.binary(min_size=3, max_size=3),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ORDERED, ids=str)
def test_sequence_elements_have_the_order_of_their_values(kind):
    @given(st.tuples(ORDERED[kind], ORDERED[kind]))
    def check(values):
        found = to_elements(pa.chunked_array([pa.array([*values, None], kind)]))
        assert found.type == (pa.string() if get_element(kind).is_textual else pa.int64())
        one, other, nothing = found.to_pylist()
        assert nothing is None
        a, b = (element.encode() if isinstance(element, str) else element for element in (one, other))
        x, y = (value.encode() if isinstance(value, str) else value for value in values)
        assert ((a < b), (a == b)) == ((x < y), (x == y))

    check()


def test_sequence_elements_of_each_type():
    made = {
        (pa.date32(), date(1969, 12, 31)): -1,
        (pa.timestamp("ms", "UTC"), datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)): 1_000_000,
        (pa.timestamp("ns"), datetime(1970, 1, 1, 0, 0, 1)): 1_000_000_000,
        (pa.time32("s"), time(0, 0, 1)): 1_000_000,
        (pa.decimal128(18, 2), Decimal("-1.50")): -150,
        (pa.decimal128(18, -2), Decimal("1E+3")): "100000000000000001000",
        (pa.decimal128(20, 2), Decimal("-1.50")): "099999999999999999850",
        (pa.decimal128(38, 1), Decimal("-" + "9" * 37 + ".8")): "0" * 38 + "2",
        (pa.uint64(), 2**64 - 1): "18446744073709551615",
        (pa.binary(), b"\x00\xff"): "00ff",
    }
    for (kind, value), element in made.items():
        assert to_elements(pa.chunked_array([pa.array([value], kind)])).to_pylist() == [element], kind


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in ORDERED if get_display_type(kind)], ids=str)
def test_sequence_elements_are_shown_as_their_values(kind):
    @given(ORDERED[kind])
    def check(value):
        values = pa.chunked_array([pa.array([value, None], kind)])
        assert (
            to_values(to_elements(values), get_display_type(kind)).to_pylist()
            == values.cast(get_display_type(kind)).to_pylist()
        )

    check()


def test_other_types_are_shown_as_the_event_time():
    for kind in (pa.time64("us"), pa.timestamp("ns"), pa.decimal128(20, 2), pa.float64(), pa.list_(pa.int64())):
        assert get_display_type(kind) is None


def test_time_beyond_64_bits_has_no_element():
    far = pa.chunked_array([pa.array([2**62, 1], pa.int64()).cast(pa.timestamp("s"))])
    assert to_elements(far).to_pylist() == [None, 1_000_000]


@pytest.mark.parametrize(
    "kind", [pa.float64(), pa.float16(), pa.list_(pa.int64()), pa.struct([]), pa.null(), pa.duration("s")]
)
def test_type_without_order_is_refused(kind):
    table = TableSpec("t", (Column("id", pa.int64()), Column("v", kind)), ("id",))
    with pytest.raises(ConfigProblem, match="has no order that all engines share"):
        plan_for("scd1", table, None, RowTransforms(("v",)))


def test_type_with_another_order_is_another_rule():
    """Rows ordered by cents cannot be compared with rows ordered by tenths of cents. A wider type is the same rule."""

    def rule(kind):
        return plan_for("scd1", TableSpec("t", (Column("id", kind),), ("id",)), None, RowTransforms(("id",))).rule

    assert rule(pa.int32()) == rule(pa.int64()) == "scd1 by id in the order of id (number)"
    assert rule(pa.decimal128(5, 2)) == rule(pa.decimal128(9, 2)) != rule(pa.decimal128(9, 3))
    assert (
        len({rule(k) for k in (pa.int64(), pa.decimal128(19, 2), pa.decimal128(20, 2), pa.string(), pa.timestamp("ns"))})
        == 5
    )


# Conditions.

WIDE = TableSpec(
    "t",
    (
        Column("id", pa.int64()),
        Column("op", pa.string()),
        Column("gone", pa.bool_()),
        Column("price", pa.decimal128(10, 2)),
        Column("big", pa.uint64()),
        Column("share", pa.float64()),
        Column("day", pa.date32()),
        Column("at", pa.timestamp("us", "UTC")),
        Column("local", pa.timestamp("ms")),
        Column("items", pa.list_(pa.int64())),
    ),
    ("id",),
)
ROW = {
    "id": 7,
    "op": "it's",
    "gone": True,
    "price": Decimal("1.50"),
    "big": 2**64 - 1,
    "share": 0.5,
    "day": date(2024, 2, 29),
    "at": datetime(2024, 2, 29, 12, tzinfo=UTC),
    "local": datetime(2024, 2, 29, 12),
}


def evaluate_text(text, **row):
    told = parse_condition(text)
    refuse_condition(told, WIDE, "apply_as_deletes")
    frame = pa.Table.from_pylist([{"_op": "u", **row}], changes_schema(WIDE))
    return evaluate_condition(frame, told)[0].to_pylist()[0]


@pytest.mark.parametrize(
    "text",
    [
        *("op = 'it''s'", "op <> 'its'", "op > 'it'", "op in ('a', 'it''s')", "op not in ('a')", "gone", "not not gone"),
        *(
            "gone = true",
            "gone <> false",
            "true = gone",
            "price = 1.5",
            "price < 1.500001",
            "price in (1, 1.50)",
            "1 < price",
        ),
        *("big = 18446744073709551615", "big > id", "id < big", "id > price", "share = 0.5", "share < id", "id = 7.0"),
        *("day = '2024-02-29'", "day < '2024-03-01'", "at = '2024-02-29 12:00:00'", "at = '2024-02-29T13:00:00+01:00'"),
        *("local >= '2024-02-29'", "items is null", "op is not null", "not op is null", "op = null or gone", "true"),
        *("not (op = null and id = 8)", "op = null or op is not null", "(id = 7 or id = 8) and gone"),
    ],
)
def test_conditions_that_hold(text):
    assert evaluate_text(text, **ROW)
    assert not evaluate_text(f"not ({text})", **ROW)


@pytest.mark.parametrize(
    "text",
    ["op = null", "not op = null", "op <> null", "op not in ('a', null)", "null", "op = null and gone", "gone and null"],
)
def test_condition_with_unknown_result_does_not_hold(text):
    assert not evaluate_text(text, **ROW)


def test_missing_value_fulfils_no_condition():
    for text in ("op is null", "op is not null", "op = 'a'", "not op = 'a'"):
        assert not evaluate_text(text, _unsent=["op"])
    assert evaluate_text("op is null or gone is null", _unsent=["op"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("po = 'a'", "names column 'po', which table t does not have"),
        ('op = "D"', "names column 'D', which table t does not have"),
        ("op = 1", "compares column 'op' (string) with a value that is not text"),
        ("id = '1'", "compares column 'id' (int64) with a value that is not a number"),
        ("gone = 1", "compares column 'gone' (bool) with a value that is not true or false"),
        ("gone < true", "compares 'gone'"),
        ("id", "uses column 'id' (int64) as true or false"),
        ("id = op", "compares columns of different kinds: 'id' (int64) and 'op' (string)"),
        ("at = local", "compares columns of different kinds"),
        ("day = 'soon'", "compares column 'day' (date32[day]) with a value that is not a date"),
        ("at = '2024-13-01'", "with a value that is not a time with a zone"),
        ("local = '2024-01-01T00:00:00Z'", "with a value that is not a time without a zone"),
        ("items = 1", "compares column 'items', whose type list<item: int64> cannot be compared"),
        ("1 = 1", "compares constants with each other"),
    ],
)
def test_invalid_comparisons_are_refused(text, said):
    with pytest.raises(ConfigProblem) as refused:
        plan_for("scd1", WIDE, None, RowTransforms(deletes=parse_condition(text)))
    assert said in str(refused.value) and "'apply_as_deletes'" in str(refused.value)


# Columns and policies.


@pytest.mark.parametrize(
    ("policy", "shape", "said"),
    [
        ("scd1", RowTransforms(("no",)), "'sequence_by' names column 'no'"),
        ("scd1", RowTransforms(columns=ColumnSelection(("op",))), "'column_list' leaves out 'id', a key column of table t"),
        ("scd1", RowTransforms(columns=ColumnSelection(("id",), excluded=True)), "'except_column_list' leaves out 'id'"),
        ("scd1", RowTransforms(columns=ColumnSelection(("id", "no"))), "'column_list' names column 'no'"),
        ("append", RowTransforms(truncates=parse_condition("gone")), "but policy append does not support truncates"),
        (
            "scd2",
            RowTransforms(sequence_by=("price",), truncates=parse_condition("gone")),
            "table t has both 'sequence_by' and 'apply_as_truncates'",
        ),
    ],
)
def test_unsuitable_transforms_are_refused(policy, shape, said):
    with pytest.raises(ConfigProblem, match=said):
        plan_for(policy, WIDE, None, shape)


def test_table_without_key_refuses_sequence_by():
    table = TableSpec("t", (Column("v", pa.int64()),), (), 3, counted=True)
    with pytest.raises(ConfigProblem, match="has no key, so it cannot have 'sequence_by'"):
        plan_for("append", table, None, RowTransforms(("v",)))
    assert plan_for("append", table, None, RowTransforms(deletes=Compare("=", source("v"), Lit(1)))).reconcile.counted


def test_plans_with_different_transforms_share_no_fold():
    plain, ordered = plan_for("scd1", WIDE), plan_for("scd1", WIDE, None, RowTransforms(("id",)))
    assert (
        plain.fold_sharing_key
        != ordered.fold_sharing_key
        != plan_for("scd1", WIDE, None, RowTransforms(("op",))).fold_sharing_key
    )


# A feed in every order in which it can come.

FEED = [*HIRED, *CHRIS, *PAT]


@pytest.mark.slow
def test_model_in_every_order():
    wanted = ModelRowTransforms(
        deletes=lambda image, _: image["operation"] == "DELETE",
        sequence_by=("sequenceNum",),
        columns=frozenset({"id", "role"}),
    )
    for order in select_every_nth(17, permutations(FEED)):
        changes = [Change("c", (place, 0), row) for place, row in enumerate(order)]
        rows, _ = fold_changes("scd1", EMPLOYEES.column_names[1:], ("id",), changes, wanted=wanted)
        assert {row["id"]: row["role"] for row in rows} == REMAINING_ROLES


def every_order_folded(feed, table, shape):
    """Orders of the feed at once, each with keys of its own: the folded rows that stay, the ids that are gone, and how many
    orders those are."""
    engine, plan = LocalEngine(), plan_for("scd1", table, None, shape)
    orders = [*select_every_nth(17, permutations(feed))]
    rows = [{"run": run, **row} for run, order in enumerate(orders) for row in order]
    count = len(rows)
    columns = {name: pa.array([row.get(name) for row in rows], table.column(name).type) for name in table.column_names}
    columns |= {
        "_op": pa.array([row.get("op", "c") for row in rows]),
        "_topic": pa.repeat("t", count),
        "_partition": pa.repeat(pa.scalar(0, pa.int32()), count),
        "_seq_1": pa.array([row.get("log", place) for place, row in enumerate(rows)], pa.int64()),
    }
    columns |= {name: pa.array(range(count), pa.int64()) for name in ("_offset", "_seq_2")}
    schema = changes_schema(table)
    frame = pa.table([columns.get(f.name, pa.nulls(count, f.type)) for f in schema], schema=schema)
    folded = engine.fold(engine.transform_rows(frame, plan).frame, plan).frame.to_pylist()
    return [row for row in folded if row["_op"] != "d"], {row["id"] for row in folded if row["_op"] == "d"}, len(orders)


@pytest.mark.slow
def test_fold_in_every_order():
    stays, gone, orders = every_order_folded(FEED, EMPLOYEES, BY_NUMBER)
    assert gone == {6} and len(stays) == orders * len(REMAINING_ROLES)
    assert {(row["id"], row["role"]) for row in stays} == set(REMAINING_ROLES.items())


def test_model_of_sales_in_every_order():
    columns = SALES.column_names[1:]
    changes = [Change(row["op"], (row["log"],), {name: row.get(name) for name in columns}) for row in SOLD]
    for order in select_every_nth(17, permutations(changes)):
        rows, _ = fold_changes("scd1", columns, ("id",), order)
        assert {row["id"]: row["sales"] for row in rows} == REMAINING


@pytest.mark.slow
def test_fold_of_sales_in_every_order():
    stays, gone, orders = every_order_folded(SOLD, SALES, NO_ROW_TRANSFORMS)
    assert gone == {1} and len(stays) == orders * len(REMAINING)
    assert {(row["id"], row["sales"]) for row in stays} == set(REMAINING.items())
