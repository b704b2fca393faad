"""A comparison as text: the counts, the values that look alike, and the next step."""

import re
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from support.lane_diffs import make_diff

from replicator.cli.diff_report import (
    VALUE_WIDTH,
    format_differences,
    format_key,
    format_lane,
    format_outcome,
    format_pair,
    format_seconds,
    format_time,
    format_value,
    list_next_steps,
    names_rejected_record,
    summarize,
)
from replicator.domain.differences import LaneDiff, RowDifference

WIDE = 500
REPAIR = "replicator diff public.orders --sink lake --repair"


def show_pair(expected, actual, width=VALUE_WIDTH):
    return tuple(map(str, format_pair(expected, actual, width)))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "NULL"), ("NULL", "'NULL'"), ("", "''"), ("a ", "'a '"), (" ", "' '"), (5, "5"), ("5", "'5'"), (True, "true"),
        (1.5, "1.5"), (Decimal("12.50"), "12.50"), (b"\x01\xff", "01ff"), ("a\nb", "'a\\nb'"), ("a\\nb", "'a\\\\nb'"),
        ("a\tb", "'a\\tb'"), ("a\x1b[31m", "'a\\x1b[31m'"), ("a\u00a0", "'a\\xa0'"), ([1, None], "[1, null]"),
        ({"a": "é"}, '{"a": "é"}'),
        (float("nan"), "nan"), (datetime(2026, 1, 31, 12, tzinfo=UTC), "2026-01-31 12:00:00+00:00"),
    ],
)  # fmt: skip
def test_value_shows_what_it_is(value, text):
    assert format_value(value, VALUE_WIDTH) == text


def test_long_value_is_cut_outside_its_quotes():
    assert format_value("x" * 41, 40) == f"'{'x' * 40}'…"
    assert format_value("x" * 40, 40) == f"'{'x' * 40}'"


def test_long_values_show_where_they_differ():
    left, right = show_pair("a" * 500 + "L" + "b" * 500, "a" * 500 + "R" + "b" * 500, 20)
    assert left == f"…'{'a' * 10}L{'b' * 9}'…"
    assert right == f"…'{'a' * 10}R{'b' * 9}'…"


@pytest.mark.parametrize("tail", ["", " ", "x", "y" * 100])
def test_longer_value_shows_its_tail(tail):
    left, right = show_pair("a" * 500, "a" * 500 + "z" + tail, 20)
    assert re.fullmatch("…'a{10,19}'", left) and right.startswith(left[:-1] + "z")


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (None, "NULL"), (None, ""), ("", " "), ("a", "a "), (5, "5"), ("\u00e9", "e\u0301"), ("\ufb01", "fi"), (1, True),
        (0.0, -0.0),
        ("a\nb", "a\\nb"), ("a" * 99, "a" * 100), (["a"], '["a"]'), (0.1, 0.10000000000000002), ("\u200b", ""),
    ],
)  # fmt: skip
def test_values_that_differ_never_look_alike(expected, actual):
    left, right = show_pair(expected, actual)
    assert left != right
    assert show_pair(actual, expected) == (right, left)


def test_only_the_part_that_differs_is_marked():
    left, right = format_pair("status open!", "status shut!", 40)
    assert (left.before, left.changed, left.after) == ("'status ", "open", "!'")
    assert (right.before, right.changed, right.after) == ("'status ", "shut", "!'")


@pytest.mark.parametrize(
    ("expected", "actual", "changed"), [(None, "NULL", "NULL NULL"), (True, False, "true false"), (5, "5", "5 5")]
)
def test_values_of_two_kinds_differ_as_a_whole(expected, actual, changed):
    assert " ".join(one.changed for one in format_pair(expected, actual, 40)) == changed


def test_texts_that_look_alike_are_escaped():
    assert show_pair("caf\u00e9", "cafe\u0301") == ("'caf\\xe9'", "'cafe\\u0301'")
    assert show_pair("caf\u00e9", "tea") == ("'caf\u00e9'", "'tea'")


def test_key_names_its_columns():
    assert format_key({"tenant": "north ", "id": 7}, 40) == "tenant='north ', id=7"


def test_equal_lane_is_one_line():
    diff = make_diff(rows=1_234_567, position=("0/1A2B3C", "0/1A2B3C"), commit="version 42", seconds=3.21)
    assert format_lane(diff, 100) == ["lake.orders: equal, 1,234,567 rows at 0/1A2B3C (version 42), 3.2 s"]


@pytest.mark.parametrize(
    ("missing", "extra", "different", "text"),
    [
        (1, 1, 1, "3 rows differ (1 missing, 1 extra, 1 different)"),
        (1, 0, 0, "1 row differs (1 missing)"),
        (0, 1_200, 0, "1,200 rows differ (1,200 extra)"),
    ],
)
def test_outcome_counts_each_kind(missing, extra, different, text):
    diff = make_diff(missing=missing, extra=extra, different=different, position=("0/1", "0/2"), rows=1)
    assert format_outcome(diff) == f"lake.orders: {text} of 1 row at 0/1 to 0/2 (version 1), 1.0 s"


@pytest.mark.parametrize(
    ("reason", "named"),
    [
        ("", False), ("A trigger has changed the row.", False), ("A record of this row was rejected (LATE).", True),
        ("The lane rejects this row: it is too large.", True), ("Its dead letter is open.", True),
    ],
)  # fmt: skip
def test_rejected_records_are_recognised(reason, named):
    assert names_rejected_record(RowDifference("missing", {}, {}, reason)) is named


def test_times_have_seconds():
    assert format_time("2026-11-28T22:10:11.123456+00:00") == "2026-11-28 22:10:11+00:00"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 0 s"),
        (119.6, "2 min 0 s"),
        (3_599.9, "1 h 0 min"),
        (7_384, "2 h 3 min"),
    ],
)
def test_duration_is_short(seconds, text):
    assert format_seconds(seconds) == text


DIFFERENT = RowDifference("different", {"id": 1}, {"status": ("open", "open "), "note": (None, "NULL")})
MISSING = RowDifference("missing", {"id": 2}, {"id": (2, None), "note": ("", None)}, "A record of this row was rejected.")
EXTRA = RowDifference("extra", {"id": 3}, {"id": (None, 3), "note": (None, None)})


def test_differences_are_a_table():
    assert format_differences([DIFFERENT, MISSING, EXTRA], WIDE) == [
        "key   kind       column  expected  actual     reason",
        "----  ---------  ------  --------  ---------  ----------------------------------",
        "id=1  different  status  'open'    'open '",
        "                 note    NULL      'NULL'",
        "id=2  missing            note=''   no row     A record of this row was rejected.",
        "id=3  extra              no row    note=NULL",
    ]


def test_column_of_reasons_needs_a_reason():
    assert "reason" not in format_differences([DIFFERENT], WIDE)[0]


def test_narrow_terminal_gets_blocks():
    table = format_differences([DIFFERENT, MISSING], WIDE)
    assert format_differences([DIFFERENT, MISSING], max(map(len, table))) == table
    assert format_differences([DIFFERENT, MISSING], max(map(len, table)) - 1) == [
        "id=1  different",
        "  status",
        "    expected 'open'",
        "    actual   'open '",
        "  note",
        "    expected NULL",
        "    actual   'NULL'",
        "id=2  missing",
        "  row",
        "    expected note=''",
        "    actual   no row",
        "  reason: A record of this row was rejected.",
    ]


def test_wide_characters_keep_columns_aligned():
    """A Chinese character fills two cells."""
    one = RowDifference("different", {"id": 1}, {"name": ("中文", "中国"), "flag": (True, False)})
    lines = format_differences([one], WIDE)
    assert lines[2] == "id=1  different  name    '中文'    '中国'"
    assert lines[3] == "                 flag    true      false"


def test_row_with_many_columns_is_cut():
    one = RowDifference("different", {"id": 1}, {f"c{n}": (n, -1) for n in range(20)})
    lines = format_differences([one], WIDE)
    assert len(lines) == 2 + 8 + 1 and lines[-1].strip() == "and 12 more"


def test_hostile_names_and_values_stay_in_their_line():
    one = RowDifference("different", {"i\nd": "a\nb"}, {"c\x1b[2J": ("x\ry", "z")}, "re\nason")
    lines = format_lane(make_diff(lane="lake.o\nrders", different=1, differences=(one,)), WIDE)
    assert not any(c in line for line in lines for c in "\n\r\x1b")
    assert len(format_differences([one], WIDE)) == 3


def test_rows_that_are_not_shown_are_counted():
    lines = format_lane(make_diff(different=12, differences=(DIFFERENT,)), WIDE)
    assert "  11 more rows differ: --show N prints N." in lines
    assert "  1 row differs: --show N prints N." in format_lane(make_diff(extra=1), WIDE)
    assert not any("--show" in line for line in format_lane(make_diff(different=1, differences=(DIFFERENT,)), WIDE))


def test_parts_that_were_not_compared_are_printed():
    sentences = ("a is not compared: it has no checksum.", "b is not compared: only the target has it.")
    printed = [f"  {sentence}" for sentence in sentences]
    assert format_lane(make_diff(not_compared=sentences), WIDE)[1:] == printed
    assert format_lane(make_diff(extra=1, not_compared=sentences), WIDE)[2:4] == printed


@pytest.mark.parametrize(
    ("differences", "against", "commands"),
    [
        ((DIFFERENT,), "source", [REPAIR]),
        ((DIFFERENT, MISSING), "source", ["replicator dlq list --state open", REPAIR]),
        ((DIFFERENT,), "log", ["replicator replay public.orders"]),
    ],
)
def test_next_step_fits_the_reason(differences, against, commands):
    diff = make_diff(different=len(differences), differences=differences, against=against)
    assert [step.split("`")[1] for step in list_next_steps(diff)] == commands
    assert list_next_steps(make_diff()) == []


@pytest.mark.parametrize(
    ("diffs", "text"),
    [
        ([make_diff()], "1 lane compared, equal"),
        ([make_diff(), make_diff()], "2 lanes compared, all equal"),
        ([make_diff(missing=1)], "1 lane compared, 1 row differs in 1 lane"),
        ([make_diff(missing=1), make_diff(extra=1), make_diff()], "3 lanes compared, 2 rows differ in 2 lanes"),
        ([], "no lane compared"),
    ],
)
def test_summary_counts_lanes_and_rows(diffs, text):
    assert summarize(diffs) == text


def test_result_as_json_says_if_it_is_equal():
    assert make_diff().to_dict()["equal"] is True
    assert make_diff(extra=1, differences=(EXTRA,)).to_dict()["differences"][0]["columns"]["id"] == (None, 3)
    assert isinstance(make_diff(), LaneDiff)
