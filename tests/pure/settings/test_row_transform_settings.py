"""Row transforms of lanes: levels, conditions and refusals."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from replicator.domain.expr import AllOf, AnyOf, Compare, IsNull, Lit, Not, source
from replicator.domain.patterns import ColumnSelection
from replicator.domain.transform.rows import RowTransforms
from replicator.settings.expressions import InvalidExpressionText, parse_condition
from replicator.wiring import adapters

OP, N = source("op"), source("n")
ENTRY = "        into: orders_now\n"
"""A line of an entry with policy scd1, whose table has the key `id`."""
APPEND = "    policy: append\n"
"""The last line but one of a table that declares the columns `id` and `at`."""


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("op = 'DELETE'", Compare("=", OP, Lit("DELETE"))),
        ("op == 'it''s'", Compare("=", OP, Lit("it's"))),
        ("op <> 'a\\b'", Compare("<>", OP, Lit("a\\b"))),
        ("-1.50 < n", Compare("<", Lit(Decimal("-1.5")), N)),
        ("n >= 1e2", Compare(">=", N, Lit(100))),
        ("n in (1, null)", AnyOf((Compare("=", N, Lit(1)), Compare("=", N, Lit(None))))),
        ("n not in (1)", Not(AnyOf((Compare("=", N, Lit(1)),)))),
        ("n IS NOT NULL", Not(IsNull(N))),
        ("not n is null", Not(IsNull(N))),
        ("gone", source("gone")),
        ('"a b.c" <= true', Compare("<=", source("a b.c"), Lit(True))),
        ("op = n or op is null and n > 1", AnyOf((Compare("=", OP, N), AllOf((IsNull(OP), Compare(">", N, Lit(1))))))),
        ("(op = n or op is null) and n > 1", AllOf((AnyOf((Compare("=", OP, N), IsNull(OP))), Compare(">", N, Lit(1))))),
    ],
)
def test_conditions_are_a_part_of_sql(text, read):
    assert parse_condition(text) == read


NONSENSE = [
    *("", "op =", "op = 'x", "(op = 1", "op = 1)", "(" * 3000 + "gone" + ")" * 3000, "op = 1 group by n", "delete from t"),
    *(
        "t.op = 1",
        "op like 'x%'",
        "op is true",
        "n in ()",
    ),
    *(
        "op = 1; n = 2",
        "n in (select 1)",
        "n = any(op)",
        "n = 1e99",
        "n = 1e-99",
        "try_cast(n as int) = 1",
        "n <=> 1",
        "?",
        "1",
        "'x'",
    ),
    *(
        "n is null is null",
        "sum(n) > 1",
        "secret(n) = 1",
        "now() > at",
        "row_number() over () = 1",
        "exists(select 1)",
        "[1] = n",
        "n = x'00'",
        "`op` = 1",
    ),
]


@pytest.mark.parametrize("text", NONSENSE)
def test_invalid_condition_is_refused(text):
    with pytest.raises(InvalidExpressionText):
        parse_condition(text)


def test_finding_has_the_expected_syntax(folder):
    line = folder.change(ENTRY, f"{ENTRY}        apply_as_deletes: op = 'DELETE' and\n")
    finding = folder.only()
    assert (finding.code, finding.line) == ("condition", line)
    assert "cannot be read at character 17; expressions consist of columns, 'text', numbers" in finding.message


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("sequence_by: []", "type"),
        ("sequence_by: ''", "type"),
        ("sequence_by: 5", "type"),
        ("sequence_by: [at, at]", "contradiction"),
        ("sequence_by: [_cdc_seq_1]", "value"),
        ("sequence_by: {at: 1}", "type"),
        ("column_list: []", "type"),
        ("except_column_list: [at, at]", "contradiction"),
        ("apply_as_deletes: 5", "type"),
        ("apply_as_truncates: true", "type"),
        ("column_list: [at]", "contradiction"),
        ("except_column_list: [id]", "contradiction"),
    ],
)
def test_invalid_values_are_refused(folder, said, code):
    line = folder.change(ENTRY, f"{ENTRY}        {said}\n")
    finding = folder.only()
    assert (finding.code, finding.line) == (code, line), str(finding)


def test_undeclared_columns_are_refused(folder):
    for said in ("sequence_by: ta", "column_list: [id, ta]", "except_column_list: [ta]", "apply_as_deletes: ta is null"):
        line = folder.change(APPEND, f"{APPEND}    {said}\n")
        finding = folder.only()
        assert (finding.code, finding.line) == ("unknown_column", line), str(finding)
        assert "names 'ta', which is no column of the declared 'schema'" in finding.message


def test_declared_floating_point_key_is_refused(folder):
    """Undeclared ones are refused at their first record."""
    text = folder.file.read_text()
    text = text.replace("schema: {id: int64, at: timestamptz}", "schema: {id: double, at: timestamptz}")
    folder.write(text.replace(APPEND, "    policy: scd2\n    keys: [id]\n"))
    finding = folder.only()
    assert (finding.code, "floating-point" in finding.message) == ("contradiction", True), str(finding)


def test_truncate_condition_needs_scd1(folder):
    """In the entry or at another level: with another policy nothing would be cleared."""
    line = folder.change(APPEND, f"{APPEND}    apply_as_truncates: id = 0\n")
    finding = folder.only()
    assert (finding.code, finding.line) == ("inapplicable", line)
    assert "means nothing for tables[2].to[0], whose policy is 'append'" in finding.message
    folder.change(ENTRY, f"{ENTRY}        apply_as_truncates: id = 0\n")
    assert folder.load().settings.resolve_lanes("public.orders")[0].row_transforms.truncates == Compare(
        "=", source("id"), Lit(0)
    )


def test_ignore_null_updates(folder):
    """The nearest level counts; the option needs scd1."""
    around = ["defaults.ignore_null_updates=true", "tables[1].ignore_null_updates_column_list=[at]"]
    folder.change(ENTRY, f"{ENTRY}        ignore_null_updates: false\n")
    loaded = folder.load(overrides=around)
    mirror, lake = (lane.row_transforms.ignore_null for lane in loaded.settings.resolve_lanes("public.orders"))
    assert (mirror, lake) == (None, ColumnSelection(("at",)))
    assert loaded.settings.resolve_lanes("public.any")[0].row_transforms.ignore_null == ColumnSelection((), excluded=True)
    assert loaded.settings.resolve_lanes("audit.log")[0].row_transforms.ignore_null is None
    folder.change(ENTRY, f"{ENTRY}        ignore_null_updates: false\n        ignore_null_updates_column_list: [at]\n")
    assert folder.only().code == "contradiction"
    line = folder.change(APPEND, f"{APPEND}    ignore_null_updates: true\n")
    finding = folder.only()
    assert (finding.code, finding.line) == ("inapplicable", line)
    assert "none of its entries has the policy 'scd1'" in finding.message


def test_soft_deletes_need_scd1(folder):
    """Other policies keep deleted rows anyway, at every level."""
    loaded = folder.load(overrides=["tables[1].deletes=soft"])
    mirror, lake = (lane.row_transforms.soft_deletes for lane in loaded.settings.resolve_lanes("public.orders"))
    assert (mirror, lake) == (False, True)
    line = folder.change(APPEND, f"{APPEND}    deletes: soft\n")
    finding = folder.only()
    assert (finding.code, finding.line) == ("contradiction", line)
    assert "says 'soft', but tables[2].to[0] has the policy 'append'" in finding.message
    folder.change(APPEND, f"{APPEND}    deletes: hard\n")
    line = folder.change("        deletes: hard\n", "        deletes: soft\n        ignore_null_updates: true\n")
    finding = folder.only()
    assert (finding.code, finding.line) == ("contradiction", line)
    assert "they do not go together" in finding.message
    folder.change("        deletes: hard\n", "        deletes: soft\n        ignore_null_updates: false\n")
    assert folder.load().settings.resolve_lanes("public.orders")[0].row_transforms.soft_deletes
    folder.change("        deletes: hard\n", "        deletes: soft\n        ignore_null_updates_column_list: [at]\n")
    assert folder.only(overrides=["defaults.ignore_null_updates=false"]).code == "contradiction"


def test_partial_updates_by_column(folder):
    """The nearest level counts; such a lane never purges deletes."""
    loaded = folder.load(overrides=["tables[1].partial_updates=by_column", "tables[1].to[0].partial_updates=ordered"])
    lanes = loaded.settings.resolve_lanes("public.orders")
    assert [lane.row_transforms.has_column_versions for lane in lanes] == [False, True]
    assert [lane.retention for lane in lanes] == [timedelta(days=7), None]
    line = folder.change(APPEND, f"{APPEND}    partial_updates: by_column\n")
    finding = folder.only()
    assert (finding.code, finding.line) == ("inapplicable", line)


@pytest.mark.parametrize(
    "said",
    ["deletes: soft", "ignore_null_updates: true", "ignore_null_updates_column_list: [at]", "tombstone_retention: 3 days"],
)
def test_options_refused_with_partial_updates_by_column(folder, said):
    folder.change("        deletes: hard\n", f"        partial_updates: by_column\n        {said}\n")
    finding = folder.only()
    assert finding.code == "contradiction"
    assert f"says '{said.split(':')[0]}': they do not go together" in finding.message


@pytest.mark.parametrize("said", ["deletes: ignore", "ignore_null_updates: false", "tombstone_retention: off"])
def test_options_accepted_with_partial_updates_by_column(folder, said):
    folder.change("        deletes: hard\n", f"        partial_updates: by_column\n        {said}\n")
    assert folder.load().settings.resolve_lanes("public.orders")[0].row_transforms.has_column_versions


def test_spark_supports_partial_updates_by_column(folder):
    folder.change("        deletes: hard\n", "        partial_updates: by_column\n")
    assert (
        folder.load(overrides=["engine=spark"]).settings.resolve_lanes("public.orders")[0].row_transforms.has_column_versions
    )


def test_event_logs_refuse_row_transforms(folder):
    line = folder.change("      - sink: raw\n", "      - sink: raw\n        sequence_by: at\n")
    finding = folder.only()
    assert (finding.code, finding.line) == ("inapplicable", line)


def test_no_row_transforms_by_default(folder):
    for table in ("public.orders", "audit.log", "public.any"):
        assert not any(lane.row_transforms for lane in folder.load().settings.resolve_lanes(table))


def test_nearest_level_of_each_option_wins(folder):
    """Of the two column lists, the nearest level that has one of them counts as a whole."""
    folder.change(ENTRY, f"{ENTRY}        except_column_list: [op]\n        sequence_by: at\n")
    around = ["defaults.sequence_by=[id, at]", "tables[1].column_list=[id]", "defaults.apply_as_deletes=id = 0"]
    loaded = folder.load(overrides=[*around, "defaults.deletes=ignore"])
    mirror, lake = (
        adapters.build_lane(loaded, lane).row_transforms for lane in loaded.settings.resolve_lanes("public.orders")
    )
    gone = Compare("=", source("id"), Lit(0))
    assert mirror == RowTransforms(("at",), gone, columns=ColumnSelection(("op",), excluded=True))
    assert lake == RowTransforms(("id", "at"), gone, columns=ColumnSelection(("id",)), without_deletes=True)


def test_append_lane_keeps_deletes_as_rows(folder):
    loaded = folder.load(overrides=["defaults.deletes=ignore"])
    assert not loaded.settings.resolve_lanes("audit.log")[0].row_transforms
