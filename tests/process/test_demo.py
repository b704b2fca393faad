"""How the demo compares its targets with the source. `tests/end_to_end/test_demo.py` runs it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from adapters.stack.demo import LOGS, MIRRORS, TABLES, Demo

ROW = {"id": 1, "city": "Vienna", "created_at": datetime(2026, 1, 2, tzinfo=UTC)}
TARGET_ROW = {**ROW, "_cdc_op": "u"}
LOGGED = {**ROW, "created_at": "2026-01-02T00:00:00Z"}


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """The rows that a demo reads, by database. Each table has the same rows."""
    found = {"source_db": {1: ROW}, **{p: {1: TARGET_ROW} for p in MIRRORS}, **{p: {1: LOGGED} for p in LOGS}}
    monkeypatch.setattr(Demo, "read", lambda self, place, table: found[place])
    return found


@pytest.fixture
def demo(tmp_path):
    return Demo(tmp_path, lambda _: None)


def test_targets_that_equal_the_source(demo, rows):
    assert demo.find_difference() is None
    assert demo.describe_tables()[0]["targets"]["deltalake"] == {"rows": 1, "differ": 0}


@pytest.mark.parametrize("place", [*MIRRORS, *LOGS])
@pytest.mark.parametrize(
    ("wrong", "differences"),
    [
        ({}, "1 row"),
        ({1: {**TARGET_ROW, "city": "Graz"}, 2: TARGET_ROW}, "2 rows"),
        ({1: {"id": 1, "created_at": ROW["created_at"]}}, "1 row"),
    ],
    ids=["missing", "another value, and too many", "without a column"],
)
def test_what_differs_is_found(place, wrong, differences, demo, rows):
    rows[place] = wrong
    assert demo.find_difference() == f"table {TABLES[0]} in {place} differs from the source in {differences}"


def test_a_mirror_is_compared_in_every_column(demo, rows):
    rows["target_db"] = {1: {**TARGET_ROW, "created_at": datetime(2026, 1, 3, tzinfo=UTC)}}
    assert demo.count_differences("target_db", "customers") == 1
