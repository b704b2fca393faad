"""Rows of groups in DuckDB: passed to a query, and filtered in its result."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from adapters.gold.local import (
    filter_groups,
    groups_condition,
    open_query_session,
    register_groups,
    register_rows,
    run_query,
)
from replicator.domain.errors import Fatal

ROWS = pa.table({"x_city": ["Rome", "Oslo", None], "n": [1, 2, 3]})


@pytest.mark.parametrize(
    ("groups", "left"),
    [
        ({"Rome", "Oslo", None}, 3),
        ({"Rome", "Oslo", None, "Bonn"}, 3),
        ({"Rome"}, 1),
        ({None}, 1),
        ({"Bonn"}, 0),
        (set(), 0),
    ],
)
@pytest.mark.parametrize("kind", [pa.string(), pa.dictionary(pa.int32(), pa.string())])
def test_rows_of_other_groups_are_filtered(groups: set[Any], left: int, kind: pa.DataType) -> None:
    """In any case of the column's name, and with any type that DuckDB gives it."""
    rows = ROWS.set_column(0, "X_City", ROWS["x_city"].cast(kind))
    found = filter_groups(rows, "x_cITY", frozenset(groups))
    assert found.schema == rows.schema and found.num_rows == left
    assert {*found["X_City"].to_pylist()} <= groups


def test_query_without_the_group_column_is_refused() -> None:
    with pytest.raises(Fatal, match="gives no column 'town'"):
        filter_groups(ROWS, "town", frozenset({"Rome"}))


@pytest.mark.parametrize("names", [{"x_city": "x_city", "n": "n"}, {"x_city": "city", "n": "n"}])
@pytest.mark.parametrize("groups", [None, frozenset({"Rome"}), frozenset({"Oslo", None})])
def test_query_reads_rows_of_the_groups_only(names: dict[str, str], groups: frozenset[Any] | None) -> None:
    """By the query's names of the columns."""
    key = names["x_city"]
    with open_query_session("one") as connection:
        if groups is not None:
            register_groups(connection, groups, pa.string())
        register_rows(connection, "some rows", ROWS, names, None if groups is None else groups_condition(key, groups))
        found = run_query(connection, f'SELECT {key} AS place, n FROM "Some Rows"', "place", None)
    wanted = [(place, n) for place, n in zip(*ROWS.to_pydict().values(), strict=True) if groups is None or place in groups]
    assert [*zip(*found.to_pydict().values(), strict=True)] == sorted(wanted, key=lambda row: row[0] or "")
