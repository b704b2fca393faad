"""Checksums that show which groups of two sides differ."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import combinations_with_replacement
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from adapters.gold.local import _row_hashes, find_changed_groups, find_differing_groups, open_query_session

SMALL = range(150)
SHAPES: dict[str, list[tuple[Any, ...]]] = {
    "numbers": [(n,) for n in SMALL],
    "beside zero": [(0, n) for n in SMALL],
    "before zero": [(n, 0) for n in SMALL],
    "beside false": [(False, n) for n in SMALL],
    "truths": [(n % 2 == 0, n, n % 3 == 0) for n in SMALL],
    "floats": [(float(n),) for n in SMALL],
    "decimals": [(Decimal(n),) for n in SMALL],
    "days": [(date(1970, 1, 1) + timedelta(days=n),) for n in SMALL],
    "times": [(datetime(1970, 1, 1) + timedelta(seconds=n),) for n in SMALL],
    "texts": [(str(n),) for n in SMALL],
    "several": [(n % 4, n % 7, n % 11) for n in SMALL],
}


def list_differing_groups(
    before: Sequence[tuple[Any, ...]], after: Sequence[tuple[Any, ...]], kinds: Sequence[pa.DataType]
) -> list[Any]:
    """The groups (the first column) that differ in all columns."""
    names = [f"c{number}" for number in range(len(kinds))]
    columns = [
        pa.table({n: pa.array([row[i] for row in rows], k) for i, (n, k) in enumerate(zip(names, kinds, strict=True))})
        for rows in (before, after)
    ]
    called = dict(zip(names, names, strict=True))
    with open_query_session("tests") as connection:
        scanned, other = (ds.dataset(rows).scanner() for rows in columns)
        of_sides = sorted(find_differing_groups(connection, (scanned, other), called, "c0", 100))
        assert sorted(find_differing_groups(connection, (columns[0], columns[1]), called, "c0", 100)) == of_sides
        before, after = (
            rows.append_column("_change_type", pa.array([what] * rows.num_rows, pa.string()))
            for rows, what in zip(columns, ("delete", "insert"), strict=True)
        )
        assert sorted(find_changed_groups(connection, pa.concat_tables([before, after]), called, "c0", 100)) == of_sides
    return of_sides


WHOLE = [pa.int64(), pa.int64()]


def test_duplicate_rows_are_counted() -> None:
    assert list_differing_groups([(1, 1), (1, 1), (2, 5)], [(1, 1), (2, 5), (1, 1)], WHOLE) == []
    assert list_differing_groups([(1, 1), (2, 5)], [(1, 1), (1, 1), (2, 5)], WHOLE) == [1]
    assert list_differing_groups([(1, None)], [(1, 0)], WHOLE) == [1]
    assert list_differing_groups([], [(1, 1), (2, 1)], WHOLE) == [1, 2]


def test_numbers_with_equal_sums_differ() -> None:
    """Hashes of 0, 6 and 12 add up."""
    assert list_differing_groups([(0, 6), (0, 6)], [(0, 0), (0, 12)], WHOLE) == [0]
    assert list_differing_groups([(0, 1), (0, 2), (1, 1)], [(0, 2), (0, 2), (1, 1)], WHOLE) == [0]


def test_rows_that_exchange_a_value_differ() -> None:
    kinds = [*WHOLE, pa.string()]
    assert list_differing_groups([(1, 1, "a"), (1, 2, "b")], [(1, 1, "b"), (1, 2, "a")], kinds) == [1]


LISTS = [None, [], [None], [0], ["NULL"]]
NESTED = [
    (pa.list_(pa.string()), [None, [], [None], ["NULL"], ["a", "b"], ["a, b"]]),
    (pa.list_(pa.list_(pa.int64())), [None, [], [[]], [None], [[1], [2]], [[1, 2]]]),
    (pa.map_(pa.string(), pa.string()), [None, [], [("a", None)], [("a", "b")], [("a", "NULL")]]),
    (pa.struct([("a", pa.int64())]), [None, {"a": None}, {"a": 0}]),
]


@pytest.mark.parametrize(("kind", "values"), NESTED, ids=str)
def test_similar_nested_values_differ(kind: pa.DataType, values: list[Any]) -> None:
    for one in range(len(values)):
        for other in range(len(values)):
            differs = list_differing_groups([(1, values[one])], [(1, values[other])], [pa.int64(), kind]) == [1]
            assert differs == (one != other), (values[one], values[other])


@pytest.mark.parametrize("name", SHAPES)
def test_sums_of_hashes_are_unique(name: str) -> None:
    """No three rows of small values have the sums of three others, for either hash."""
    rows = pa.table({f"c{i}": [row[i] for row in SHAPES[name]] for i in range(len(SHAPES[name][0]))})
    with open_query_session("tests") as connection:
        connection.register("_rows", rows)
        hashes = connection.sql(
            f"SELECT DISTINCT {', '.join(_row_hashes(', '.join(rows.column_names)))} FROM _rows"
        ).fetchall()
    for number in range(2):
        values = [row[number] for row in hashes]
        assert len({*values}) == rows.num_rows
        sums = Counter(map(sum, combinations_with_replacement(values[:100], 3)))
        assert len(sums) == math.comb(102, 3)
