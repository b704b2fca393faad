"""Two versions of a table, compared row by row."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa

from replicator.domain.differences import compare_tables

BEFORE = pa.table({"id": [1, 2, 3], "v": ["a", None, "c"], "run": [1, 1, 1]})


def test_missing_extra_and_different_rows_are_counted() -> None:
    after = pa.table({"v": ["a", "b", "d"], "id": [1, 2, 4], "run": [2, 2, 2], "w": [0, 0, 0]})
    found = compare_tables(BEFORE, after, ["id"], ignored=["run"])
    assert (found.same, found.only_before, found.only_after, found.different) == (1, 1, 1, 1) and not found.is_empty
    assert found.columns == {"v": 1} and (found.columns_only_before, found.columns_only_after) == ([], ["w"])
    assert found.first["differing"] == [{"key": {"id": 2}, "columns": {"v": [None, "b"]}}]
    assert found.first["only_before"][0]["id"] == 3 and found.first["only_after"][0]["id"] == 4


def test_row_order_does_not_matter() -> None:
    assert (
        compare_tables(BEFORE, BEFORE.take([2, 0, 1]), ["id"]).is_empty
        and compare_tables(BEFORE, BEFORE.take([2, 0, 1]), []).is_empty
    )


def test_rows_without_a_key_are_compared_as_a_whole() -> None:
    """Each as often as it occurs."""
    one, other = pa.table({"v": [1, 1, 2]}), pa.table({"v": [1, 2, 2, 3]})
    for keys in ([], ["gone"]):
        found = compare_tables(one, other, keys)
        assert (found.same, found.only_before, found.only_after, found.different) == (2, 1, 2, 0)


def test_values_of_every_type_and_empty_tables() -> None:
    kinds = {"id": [1], "f": [float("nan")], "d": [Decimal("1.50")], "l": [[1, None]], "s": [{"a": b"x"}]}
    table = pa.table(kinds)
    assert compare_tables(table, table, ["id"]).same == 1 and compare_tables(table.slice(1), table.slice(1), ["id"]).is_empty
    found = compare_tables(table, table.slice(1), ["id"], max_shown=0)
    assert found.only_before == 1 and not found.first["only_before"]
