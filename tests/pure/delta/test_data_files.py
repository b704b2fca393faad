"""Files whose statistics in the log show how much a read costs."""

from __future__ import annotations

from datetime import date, datetime
from itertools import product
from typing import Any

import pytest

from adapters.gold.table_version import FEW_BYTES, FEW_ROWS, ColumnBounds, DataFile, has_few_rows, has_only_groups


def file(size: int, rows: int | None) -> DataFile:
    return DataFile(f"{size}.parquet", size, {}, ColumnBounds(rows))


@pytest.mark.parametrize(
    ("files", "few"),
    [
        ([], True),
        ([file(FEW_BYTES, FEW_ROWS)], True),
        ([file(FEW_BYTES, 1), file(1, 1)], False),
        ([file(1, FEW_ROWS), file(1, 1)], False),
        ([file(1, 1), file(1, None)], False),
    ],
)
def test_few_rows_in_few_bytes(files: list[DataFile], few: bool) -> None:
    """Both are summed over all files; files without a row count may have many rows."""
    assert has_few_rows(files) == few


@pytest.mark.parametrize(
    ("bounds", "groups", "only"),
    [
        (ColumnBounds(3, "a", "a", 0), {"a", "b"}, True),
        (ColumnBounds(3, "a", "a", 0), {"b"}, False),
        (ColumnBounds(3, "a", "b", 0), {"a", "b"}, False),
        (ColumnBounds(3, "a", "a", 1), {"a"}, False),
        (ColumnBounds(3, "a", "a", 1), {"a", None}, True),
        (ColumnBounds(3, "a", "a", None), {"a", None}, False),
        (ColumnBounds(3, None, None, 3), {None}, True),
        (ColumnBounds(3, None, None, 3), {"a"}, False),
        (ColumnBounds(3, None, None, 2), {"a", None}, False),
        (ColumnBounds(None, "a", "a", None), {"a", None}, False),
        (ColumnBounds(3, datetime(2024, 1, 1), datetime(2024, 1, 1), 0), {date(2024, 1, 1)}, False),
    ],
)
def test_files_with_rows_of_the_groups_only(bounds: ColumnBounds, groups: set[Any], only: bool) -> None:
    """Unknown bounds may contain other groups."""
    assert has_only_groups([DataFile("a", 1, {}, bounds)], frozenset(groups)) == only


def test_bounds_agree_with_the_values_of_a_file() -> None:
    """For all combinations of up to three values: if the bounds say that only the groups occur, this is so."""
    for values in product([1, 2, 3, None], repeat=3):
        there = [value for value in values if value is not None]
        ends = (min(there), max(there)) if there else (None, None)
        bounds = ColumnBounds(3, *ends, 3 - len(there))
        for groups in map(frozenset, ([1], [1, 2], [None], [2, None], [1, 2, 3, None])):
            if has_only_groups([DataFile("a", 1, {}, bounds)], groups):
                assert groups.issuperset(values)
