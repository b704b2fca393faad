"""The entry of a table, and the lanes of the entry."""

from __future__ import annotations

from itertools import product
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.domain.patterns import count_literals, describe_malformed, has_overlap, matches
from replicator.domain.schema_evolution import EVOLVE_ALL
from replicator.domain.table import get_unqualified_name


@pytest.mark.parametrize(
    ("patterns", "name", "winner"),
    [
        (["*", "public.*", "public.orders"], "public.orders", "public.orders"),
        (["public.orders*", "public.orders"], "public.orders", "public.orders"),
        (["*", "public.*"], "public.orders", "public.*"),
        (["public.*", "public.order*"], "public.order_items", "public.order*"),
        (["public.[a-z]*", "public.orders*"], "other.x", None),
        (["Public.*"], "public.x", None),
        (["*.orders"], "a.b.orders", "*.orders"),
        (["public.order?"], "public.orders", "public.order?"),
        (["public.*", "^public[.]o.*"], "public.orders", "^public[.]o.*"),
        (["^.*[.]orders", "^public[.].*", "public.orders"], "public.orders", "public.orders"),
        (["^.*[.]orders", "^public[.].*"], "public.orders", "^.*[.]orders"),
        (["^public"], "public.orders", None),
        (["^a|public.orders$"], "public.orders", "^a|public.orders$"),
    ],
)
def test_most_specific_match_wins_as_a_whole(folder, patterns, name, winner):
    tables = ", ".join(f"{{match: '{p}', source: shop, to: [{{sink: lake}}]}}" for p in patterns)
    loaded = folder.load(overrides=[f"tables=[{tables}]"])
    found = loaded.settings.find_table(name)
    assert (found.match if found else None) == winner


REGEX = r"^shop_(?P<shop>\d+)\.(\w*)$"


def of_regex(match, into, to="[{sink: lake}]"):
    return [f"tables[2].match='{match}'", f"tables[2].into='{into}'", f"tables[2].to={to}"]


BOTH = "[{sink: lake}, {sink: target, into: 't_{2}'}]"


def test_groups_of_a_regular_expression_in_the_target_name(folder):
    settings = folder.load(overrides=of_regex(REGEX, "{2}_of_{shop}_{1}", BOTH)).settings
    assert [(lane.into, lane.refused) for lane in settings.resolve_lanes("shop_12.orders")] == [
        ("orders_of_12_12", ""),
        ("t_orders", ""),
    ]
    assert settings.resolve_lanes("shop_.orders") == settings.resolve_lanes("a_shop_1.orders") == ()
    assert settings.resolve_lanes("shop_1.orders\ud800") == ()


def test_invalid_target_name_is_refused(folder):
    settings = folder.load(overrides=of_regex(r"^shop_(.*)\.(.*)", "{1}")).settings
    for name, told in (("shop_.a", "not empty"), ("shop_a/b.c", "no slashes"), ("shop__replicator.a", "reserved")):
        (lane,) = settings.resolve_lanes(name)
        assert told in lane.refused, name


@pytest.mark.parametrize(
    ("match", "into", "code", "told"),
    [
        (REGEX, "{3}", "unknown_group", "groups: {1}, {2}, {shop}"),
        (REGEX, "{table}", "unknown_group", "takes group 'table', which 'match' does not have"),
        (REGEX, "{1}{", "unknown_group", "has a brace alone"),
        (REGEX, "orders", "same_target", "every table that 'match' matches"),
        ("shop_*", "{1}", "same_target", "take {1} of a regular expression"),
        ("^shop_(", "{1}", "glob", "it is not a regular expression"),
        (r"^(a)\1", "{1}", "glob", "no backreferences, no lookaround"),
        ("^(?=a)(b)", "{1}", "glob", "no backreferences, no lookaround"),
        ("^" + "(a)" * 10, "{1}", "glob", "it has more than 9 groups"),
    ],
)
def test_invalid_regular_expressions_are_refused(folder, match, into, code, told):
    (finding,) = folder.findings(overrides=of_regex(match, into))
    assert finding.code == code and told in str(finding), str(finding)


def test_regular_expressions_match_in_linear_time():
    began = perf_counter()
    assert not matches("^(a+)+$", "a" * 5000 + "b") and not matches("^(a|aa)+(a|aa)+$", "a" * 5000 + "b")
    assert perf_counter() - began < 5


def test_lanes_are_resolved_from_entry_table_and_defaults(folder):
    settings = folder.load(overrides=["defaults.tombstones=ignore", "defaults.policy=append"]).settings
    mirror, lake = settings.resolve_lanes("public.orders")
    assert (mirror.sink, mirror.kind, mirror.into, mirror.policy) == ("target", "postgres", "orders_now", "scd1")
    assert (mirror.keys, mirror.deletes, mirror.tombstones) == (("id",), "hard", "delete")
    assert mirror.schema_rules == EVOLVE_ALL
    assert (lake.sink, lake.into, lake.policy, lake.source, lake.table) == (
        "lake",
        "orders",
        "scd1",
        "shop",
        "public.orders",
    )
    (other,) = settings.resolve_lanes("public.customers")
    assert (other.into, other.policy, other.keys, other.tombstones) == ("customers", "append", None, "ignore")
    (audit,) = settings.resolve_lanes("audit.log")
    assert audit.declared == {"id": "int64", "at": "timestamptz"}
    assert settings.resolve_lanes("elsewhere.x") == ()


def test_keys_of_the_entry_then_of_the_table_then_of_the_defaults(folder):
    overrides = ["tables[1].to[0].keys=[a, b]", "tables[1].to[1].keys=[a, b]", "defaults.keys=[z]"]
    settings = folder.load(overrides=overrides).settings
    assert [lane.keys for lane in settings.resolve_lanes("public.orders")] == [("a", "b"), ("a", "b")]
    assert [lane.keys for lane in settings.resolve_lanes("public.customers")] == [("z",)]


def test_lane_has_its_config_line(folder):
    loaded = folder.load()
    lines = [loaded.describe_origin(*lane.at).rpartition(":")[2] for lane in loaded.settings.resolve_lanes("public.orders")]
    text = folder.file.read_text().splitlines()
    assert [text[int(line) - 1].strip() for line in lines] == ["- sink: target", "- sink: lake"]


def test_event_logs_are_not_lanes_of_a_table(folder):
    settings = folder.load().settings
    assert settings.list_table_event_logs("public.customers") == ("raw",)
    assert settings.list_table_event_logs("public.orders") == ()
    assert settings.list_event_logs("shop") == ("raw",)
    assert settings.list_event_logs("recorded") == ()


def test_tables_of_two_sources_are_distinguished(folder):
    settings = folder.load(overrides=["tables[2].match=public.*", "tables[2].to=[{sink: target, policy: append}]"]).settings
    assert settings.find_table("public.x", "shop").source == "shop"
    assert settings.find_table("public.x", "recorded").source == "recorded"


def test_unqualified_names():
    assert [get_unqualified_name(name) for name in ("public.orders", "db.dbo.orders", "orders")] == [
        "orders",
        "orders",
        "orders",
    ]


def test_settings_cannot_be_changed(folder):
    settings = folder.load().settings
    with pytest.raises(ValueError, match="frozen"):
        settings.pipeline = "other"


PATTERNS = st.text("ab*?.", min_size=1, max_size=5) | st.sampled_from(["[ab]", "[!a]*", "a[a-c]?", "*[.]b", "[!ab]"])
SHORT_NAMES = ["".join(letters) for size in range(1, 5) for letters in product("abc.", repeat=size)]


@given(PATTERNS, PATTERNS)
def test_globs_overlap_if_they_share_a_name(one, other):
    shared = any(matches(one, name) and matches(other, name) for name in SHORT_NAMES)
    if shared:
        assert has_overlap(one, other)
    assert has_overlap(one, other) == has_overlap(other, one)
    if has_overlap(one, other) and not {"?", "*"} & set(one + other) and "[" not in one + other:
        assert one == other


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("public.*", "*.orders", True),
        ("public.*", "audit.*", False),
        ("a?c", "a[b-d]c", True),
        ("a[x-z]", "a[a-c]", False),
        ("a[!x]", "ax", False),
        ("*a*", "*b*", True),
        ("a*b", "a*c", False),
        ("", "*", True),
    ],
)
def test_overlap(one, other, expected):
    assert has_overlap(one, other) is expected


def test_specificity_counts_literal_characters():
    assert [count_literals(p) for p in ("public.*", "*", "a[bc]d?", "[!]]x")] == [7, 0, 2, 1]
    assert describe_malformed("a[b")
    assert describe_malformed("")
    assert not describe_malformed("a[]b]c")


@pytest.mark.parametrize(
    ("match", "into", "told"),
    [
        ("shop_*.orders", None, "would all have the target 'orders'"),
        (REGEX, "{2}", "differ in group {1} of 'match' alone"),
        (REGEX, "o_{shop}", "differ in group {2} of 'match' alone"),
        (REGEX, "{2}_{1}", None),
        (r"^shop_(?:\d+)\.(\w*)$", "{1}", None),
        ("shop.*", None, None),
        ("audit.log", "orders_of_all", None),
    ],
)
def test_patterns_with_a_possibly_shared_target_are_a_warning(folder, match, into, told):
    said = [f"tables[2].match='{match}'", "tables[2].to=[{sink: lake}]", *([f"tables[2].into='{into}'"] if into else [])]
    found = [w for w in folder.load(overrides=said).warnings if w.code == "shared_target"]
    assert bool(found) == bool(told)
    if told:
        assert told in found[0].message and "read them together through a view" in found[0].suggestion
