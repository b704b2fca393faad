"""Rules for single columns: levels, masks, renames and refusals."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from replicator.domain.expr import Call, Case, Compare, IsNull, Lit, source
from replicator.domain.transform.columns import AddedColumn, ColumnRule, ColumnTransforms, Mask
from replicator.settings.tables import find_private_columns, find_type

SECRET = "0123456789abcdef"
HMAC = {"mask": "hmac", "key": SECRET}
ENTRY = "tables[1].to[0]"
"""With policy scd1, of a table with the key `id`, whose records are Debezium's JSON."""


def override_columns(place, **columns):
    return f"{place}.columns={json.dumps(columns)}"


def test_rules_of_the_entry_come_before_those_of_the_table(folder):
    around = override_columns(
        "tables[1]",
        email={**HMAC, "rename": "hash"},
        phone="drop",
        total={"cast": "decimal(12, 2)"},
        at={"metadata": "offset"},
    )
    own = override_columns(ENTRY, email={"rename": "email_hash"}, total={"cast": "double"}, region={"constant": "EU"})
    settings = folder.load(overrides=[around, own]).settings
    mine, other = (lane.row_transforms.column_transforms for lane in settings.resolve_lanes("public.orders"))
    phone, at = ("phone", ColumnRule(drop=True)), ("at", AddedColumn("offset"))
    assert other == ColumnTransforms(
        (("email", ColumnRule(rename="hash")), phone, ("total", ColumnRule(cast=pa.decimal128(12, 2)))), (at,)
    )
    totals = ("total", ColumnRule(cast=pa.float64()))
    assert mine == ColumnTransforms(
        (("email", ColumnRule(rename="email_hash")), phone, totals), (at, ("region", AddedColumn(constant="EU")))
    )
    assert find_private_columns(settings.tables[1], settings.defaults) == {
        "email": Mask("hmac", SECRET.encode()),
        "phone": Mask("nothing"),
    }
    assert not find_private_columns(settings.tables[0], settings.defaults)


@pytest.mark.parametrize("place", ["defaults", "tables[1]", ENTRY])
def test_private_column_is_masked_under_both_names(folder, place):
    """Whichever level renames it: records are masked for all lanes."""
    rules = override_columns("tables[1]", email={**HMAC, "rename": "hash"}, phone="drop", total={"cast": "double"})
    names = f"{place}.renamed_columns={json.dumps({'email': 'mail', 'phone': 'mobile', 'total': 'sum'})}"
    settings = folder.load(overrides=[rules, names]).settings
    mask = Mask("hmac", SECRET.encode())
    assert find_private_columns(settings.tables[1], settings.defaults) == {
        **dict.fromkeys(("email", "mail"), mask),
        **dict.fromkeys(("phone", "mobile"), Mask("nothing")),
    }
    hashed, gone = ColumnRule(rename="hash", can_be_missing=True), ColumnRule(drop=True, can_be_missing=True)
    for lane in settings.resolve_lanes("public.orders"):
        rule = lane.row_transforms.column_transforms.get_rule
        assert [rule(name) for name in ("email", "mail", "phone", "mobile")] == [hashed, hashed, gone, gone]
        assert rule("sum") == ColumnRule()


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"rename": "address"}, (Mask("hmac", SECRET.encode()), "address")),
        ({"mask": "fixed", "text": "*"}, (Mask("fixed", text="*"), "")),
    ],
)
def test_rule_for_the_new_name_does_not_make_it_public(folder, own, expected):
    rules, names = override_columns("tables[1]", email=HMAC, mail=own), 'tables[1].renamed_columns={"email": "mail"}'
    settings = folder.load(overrides=[rules, names]).settings
    lane = settings.resolve_lanes("public.orders")[0]
    assert (
        find_private_columns(settings.tables[1], settings.defaults)["mail"],
        lane.row_transforms.column_transforms.get_rule("mail").rename,
    ) == expected


def test_mask_of_an_entry_applies_to_both_names(folder):
    names = f'{ENTRY}.renamed_columns={{"email": "mail"}}'
    lanes = folder.load(overrides=[override_columns(ENTRY, email=HMAC), names]).settings.resolve_lanes("public.orders")
    assert lanes[0].row_transforms.column_transforms.get_rule("mail").mask == Mask("hmac", SECRET.encode())
    assert not lanes[1].row_transforms.column_transforms


def test_condition_on_a_renamed_private_column_is_refused(folder):
    rules, names = override_columns("tables[1]", email=HMAC), 'tables[1].renamed_columns={"email": "mail"}'
    problem = folder.only(overrides=[rules, names, "tables[1].where=mail is null"])
    assert "asks for" in problem.message and "mail" in problem.message


def test_mask_of_an_entry_applies_to_its_target_only(folder):
    lanes = folder.load(overrides=[override_columns(ENTRY, email=HMAC)]).settings.resolve_lanes("public.orders")
    assert [bool(lane.row_transforms.column_transforms) for lane in lanes] == [True, False]
    assert lanes[0].row_transforms.column_transforms.get_rule("email").mask == Mask("hmac", SECRET.encode())
    assert SECRET not in repr(lanes)


def test_where_applies_to_the_lane_and_drops_changes_with_append(folder):
    settings = folder.load(overrides=["tables[1].where=id < 5", "tables[2].where=id < 5"]).settings
    shapes = [lane.row_transforms for table in ("public.orders", "audit.log") for lane in settings.resolve_lanes(table)]
    assert {shape.where for shape in shapes} == {Compare("<", source("id"), Lit(5))}
    assert [shape.rows_leave for shape in shapes] == [True, True, False]
    assert "where id < 5" in shapes[0].description


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        ({}, "place"),
        ("keep", "type"),
        ({"drop": False}, "value"),
        ({"drop": True, "rename": "a"}, "contradiction"),
        ({"rename": " a"}, "value"),
        ({"cast": "varchar"}, "value"),
        ({"cast": "decimal(77,2)"}, "value"),
        ({"mask": "md5"}, "unknown_value"),
        ({"mask": "hmac"}, "place"),
        ({"mask": "hmac", "key": "short"}, "value"),
        ({"mask": "truncate", "key": SECRET}, "place"),
        ({"mask": "fixed"}, "place"),
        ({"mask": "fixed", "text": "*", "key": SECRET}, "place"),
        ({"rename": "a", "length": 3}, "place"),
        ({"metadata": "topic", "constant": 1}, "contradiction"),
        ({"metadata": "topic", "rename": "a"}, "contradiction"),
        ({"metadata": "tpoic"}, "unknown_value"),
        ({"maks": "hmac"}, "unknown_key"),
        ({"expression": ""}, "expression"),
        ({"expression": "concat(first, "}, "expression"),
        ({"expression": "sum(total)"}, "expression"),
        ({"expression": "(select 1)"}, "expression"),
        ({"expression": "secret(total)"}, "expression"),
        ({"expression": "total", "rename": "a"}, "contradiction"),
        ({"expression": "total", "constant": 1}, "contradiction"),
        ({"expression": "total", "mask": "nothing"}, "contradiction"),
    ],
)
def test_invalid_rules_are_refused(folder, rule, code):
    finding = folder.only(overrides=[override_columns(ENTRY, email=rule)])
    assert finding.code == code, str(finding)
    assert SECRET not in str(finding) and "short" not in str(finding)


@pytest.mark.parametrize(
    ("overrides", "code", "told"),
    [
        ([override_columns("defaults", email="drop")], "inapplicable", "write them in the tables"),
        (
            [override_columns("tables[1].to[1]", email="drop"), override_columns("tables[1]", email=HMAC)],
            "contradiction",
            "keeps the column's values private",
        ),
        (
            [override_columns(ENTRY, email=HMAC), override_columns("tables[1]", email=HMAC)],
            "contradiction",
            "keeps the column's values private",
        ),
        ([override_columns(ENTRY, id="drop")], "contradiction", "removes what identifies rows"),
        (
            [override_columns(ENTRY, id={"mask": "truncate", "key": SECRET, "length": 1})],
            "contradiction",
            "which keeps keys different",
        ),
        (
            [override_columns("tables[1]", email=HMAC), f"{ENTRY}.where=email is null"],
            "contradiction",
            "whose values its table keeps private",
        ),
        (
            [override_columns("tables[1]", at=HMAC), f"{ENTRY}.sequence_by=at"],
            "contradiction",
            "whose values its table keeps private",
        ),
        ([override_columns("tables[2]", aat={"rename": "b"})], "unknown_column", "did you mean 'at'"),
        ([override_columns("tables[2].to[0]", aat={"rename": "b"})], "unknown_column", "did you mean 'at'"),
        ([override_columns("tables[2]", b={"constant": 2**63})], "place", "has a 'constant' of more than 64 bits"),
        ([f"{ENTRY}.where=id <"], "condition", "cannot be read"),
        (["tables[2].where=ids = 5"], "unknown_column", "did you mean 'id'"),
        (["tables[2].where=lower(id) = 'a'"], "expression", "to 'lower', which needs text"),
        ([override_columns("tables[2]", b={"expression": "idd + 1"})], "unknown_column", "did you mean 'id'"),
        ([override_columns("tables[2].to[0]", b={"expression": "lower(id)"})], "expression", "to 'lower', which needs text"),
        (
            [override_columns("tables[2]", b={"expression": "date_trunc('day', id)"})],
            "expression",
            "which needs a date or a time",
        ),
        (
            [override_columns("tables[1]", email=HMAC, low={"expression": "lower(email)"})],
            "contradiction",
            "whose values its table keeps private",
        ),
        (
            [override_columns("tables[1]", low={"expression": "lower(email)"}), override_columns(ENTRY, email=HMAC)],
            "contradiction",
            f"is masked by {ENTRY}.columns.email",
        ),
        (
            [
                override_columns(ENTRY, name={"expression": "concat(id, a, b)"}),
                f"{ENTRY}.partial_updates=by_column",
                f"{ENTRY}.keys=[id]",
            ],
            "contradiction",
            "with 'by_column' one change may lack some of them",
        ),
    ],
)
def test_contradicting_rules_are_refused(folder, overrides, code, told):
    findings = folder.findings(overrides=overrides)
    assert {finding.code for finding in findings} == {code}, [str(finding) for finding in findings]
    assert all(told in str(finding) for finding in findings), [str(finding) for finding in findings]


def test_type_names():
    known = {
        "int64": pa.int64(),
        "DECIMAL(12, 2)": pa.decimal128(12, 2),
        "decimal(5)": pa.decimal128(5, 0),
        "decimal(38,10)": pa.decimal128(38, 10),
        "decimal(76,76)": pa.decimal256(76, 76),
        "timestamp[us, UTC]": pa.timestamp("us", "UTC"),
        "date": pa.date32(),
    }
    assert {name: find_type(name) for name in known} == known
    assert [find_type(name) for name in ("int65", "decimal(0,0)", "decimal(2,3)", "")] == [None] * 4


def test_computed_column_is_parsed_once(folder):
    told = "case when a is null then 'none' else upper(a) end"
    (lane, _) = folder.load(
        overrides=[override_columns(ENTRY, a="drop", b={"expression": told, "cast": "string"})]
    ).settings.resolve_lanes("public.orders")
    made = Case(((IsNull(source("a")), Lit("none")),), Call("upper", (source("a"),)))
    assert lane.row_transforms.column_transforms == ColumnTransforms(
        (("a", ColumnRule(drop=True)),), (("b", AddedColumn(cast=pa.string(), expression=made)),)
    )
    assert list(lane.row_transforms.column_transforms.description) == ["without a", f"b as {told}"]


def test_column_transforms_are_shown_without_secrets():
    mask = Mask("hmac", SECRET.encode())
    remade = ColumnTransforms(
        (("a", ColumnRule(drop=True)), ("b", ColumnRule(mask=mask, rename="c"))), (("d", AddedColumn("topic")),)
    )
    assert list(remade.description) == ["without a", "b masked (hmac) called c", "d from topic"]
    assert SECRET not in repr(remade)


@pytest.mark.parametrize("place", ["on_reject", "tables[1].on_reject"])
def test_private_keys_can_be_blocked(folder, place):
    assert folder.load(overrides=[override_columns("tables[1]", email=HMAC), f"{place}=hold_key"])


@pytest.mark.parametrize(
    ("overrides", "at", "told"),
    [
        (
            [override_columns(ENTRY, a={"rename": "x"}, b={"rename": "X"})],
            "columns.a.rename",
            "makes another column of the name",
        ),
        (
            [override_columns("tables[1]", a={"rename": "x"}), override_columns(ENTRY, x={"constant": 1})],
            "a.rename",
            "the name 'x'",
        ),
        ([override_columns("tables[2]", at={"rename": "id"})], "columns.at.rename", "the name 'id'"),
        ([override_columns(ENTRY, a={"rename": "_cdc_op"})], "columns.a.rename", "which replicator keeps for itself"),
        ([override_columns(ENTRY, a={"rename": "_OFFSET"})], "columns.a.rename", "which replicator keeps for itself"),
        (
            [override_columns("tables[1]", __start_at={"metadata": "offset"})],
            "columns.__start_at",
            "which replicator keeps for itself",
        ),
        (
            [override_columns(ENTRY, a={"expression": "cast(b as date)", "cast": "bool"})],
            "columns.a.cast",
            "cannot be cast to bool",
        ),
        (
            [override_columns("tables[2]", a={"expression": "id = 5", "cast": "date"})],
            "columns.a.cast",
            "cannot be cast to date32",
        ),
        (
            [override_columns(ENTRY, a={"metadata": "source_time", "cast": "bool"})],
            "columns.a.cast",
            "cannot be cast to bool",
        ),
        (
            [override_columns("tables[2]", id={"cast": "date"})],
            "columns.id.cast",
            "casts int64 to date32[day], which is impossible",
        ),
    ],
)
def test_rules_that_would_stop_the_lane_are_refused(folder, overrides, at, told):
    findings = folder.findings(overrides=overrides)
    assert findings and all(told in f.message for f in findings), findings
    assert any(at in f.message for f in findings) and all(f.suggestion for f in findings)


def test_valid_renames_and_casts(folder):
    swapped = override_columns(ENTRY, a={"rename": "b"}, b={"rename": "a"}, c="drop", d={"rename": "c"})
    again = override_columns(
        "tables[2]", at={"rename": "id2", "cast": "string"}, day={"expression": "cast(id as text)", "cast": "int32"}
    )
    other = override_columns("tables[1]", amount={"expression": "price * 2", "cast": "date"})
    words = [
        lane.row_transforms.column_transforms.description
        for lane in folder.load(overrides=[swapped]).settings.resolve_lanes("public.orders")
    ]
    assert [list(one) for one in words] == [["a called b", "b called a", "without c", "d called c"], []]
    tables = folder.load(overrides=[again, other]).settings.tables
    casts = {(name, column.cast) for table in tables[1:3] for name, column in table.columns.items()}
    assert casts == {("at", "string"), ("day", "int32"), ("amount", "date")}
    last = folder.load(overrides=["tables[2].except_column_list=[at]", override_columns("tables[2]", id={"rename": "at"})])
    assert last.settings.tables[2].columns["id"].rename == "at"
