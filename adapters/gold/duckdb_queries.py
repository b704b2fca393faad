"""Queries of projections in DuckDB over versions of tables, for all rows or by groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from replicator.domain.errors import Fatal
from replicator.domain.projection import Groups

from ..duckdb.session import open_session
from ..sql.dialect import DUCKDB

GROUPS = "_groups"
Rows: TypeAlias = ds.Scanner | pa.Table
"""Rows that can be read repeatedly."""

q = DUCKDB.quote_name


def describe_query_error(query: str) -> str:
    """The reason why DuckDB cannot parse a query; empty when it can."""
    try:
        duckdb.extract_statements(query)
    except duckdb.Error as error:
        return _error_text(error)
    return ""


def _error_text(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0][:300]


@contextmanager
def open_query_session(name: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection. Its errors are raised as Fatal for the projection `name`."""
    with open_session() as connection:
        try:
            yield connection
        except (duckdb.Error, pa.ArrowException) as error:
            raise Fatal(
                f"projection {name} cannot be computed: {_error_text(error)}",
                next_step="Correct its query, or what it reads.",
            ) from error


ADDED = "_change_type IN ('insert', 'update_postimage')"
"""Rows of a change data feed that exist after the change. The others existed before."""


def find_differing_groups(
    connection: duckdb.DuckDBPyConnection, sides: tuple[Rows, Rows], names: Mapping[str, str], key: str | None, most: int
) -> list[Any]:
    """The groups with different rows on two sides, at most `most` + 1. Without a key, one element if any row
    differs.

    `names`: the compared columns, and their names in the query.
    """
    sums = []
    for sign, rows in zip("-+", sides, strict=True):
        connection.register(f"_rows_{sign}", rows)
        of_side = f"SELECT {_column_list(names)} FROM {q(f'_rows_{sign}')}"
        listed = _comparable_columns(names, rows.schema if isinstance(rows, pa.Table) else rows.projected_schema)
        each = f"SELECT {key or 'TRUE'} AS _group, {', '.join(_row_hashes(listed))} FROM ({of_side})"
        # Each side is summed on its own: a sign per row takes twice the time.
        of_group = f"{sign}count(*) AS _number, {sign}sum(_one) AS _ones, {sign}sum(_other) AS _others"
        sums.append(f"SELECT _group, {of_group} FROM ({each}) GROUP BY _group")
    # Equal rows on both sides have equal sums. Different rows have equal sums once in 2^64.
    unlike = "sum(_number) <> 0 OR sum(_ones) <> 0 OR sum(_others) <> 0"
    text = f"SELECT _group FROM ({' UNION ALL '.join(sums)}) GROUP BY _group HAVING {unlike} LIMIT {most + 1}"
    return [one for (one,) in connection.execute(text).fetchall()]


def find_changed_groups(
    connection: duckdb.DuckDBPyConnection, feed: pa.Table, names: Mapping[str, str], key: str | None, most: int
) -> list[Any]:
    """See `find_differing_groups`, for the rows of a change data feed. A row that is as frequent after the
    changes as before is unchanged."""
    connection.register("_feed", feed)
    columns = f"SELECT {_column_list(names)}, _change_type FROM _feed"
    often = f"sum(CASE WHEN {ADDED} THEN 1 ELSE -1 END) <> 0"
    unlike = (
        f"SELECT {key or 'TRUE'} AS _group FROM ({columns}) GROUP BY 1, "
        f"{_comparable_columns(names, feed.schema)} HAVING {often}"
    )
    text = f"SELECT DISTINCT _group FROM ({unlike}) LIMIT {most + 1}"
    return [one for (one,) in connection.execute(text).fetchall()]


def _row_hashes(listed: str) -> tuple[str, str]:
    """Two hashes for each row.

    They start with different numbers and are hashed twice. DuckDB's hashes of small numbers (above all 0) and
    of several columns have equal sums more often than by chance.
    """
    return f"hash(hash(1, {listed})) AS _one", f"hash(hash(2, {listed})) AS _other"


def _comparable_columns(names: Mapping[str, str], schema: pa.Schema) -> str:
    """The columns in a form in which DuckDB hashes only equal values alike.

    Nested columns are text, because DuckDB's hashes of NULL, an empty list and a list of NULL are equal.
    """
    nested = {name for stored, name in names.items() if pa.types.is_nested(schema.field(stored).type)}
    return ", ".join(f"CAST({q(name)} AS VARCHAR)" if name in nested else q(name) for name in names.values())


def _column_list(names: Mapping[str, str]) -> str:
    return ", ".join(f"{q(stored)} AS {q(name)}" for stored, name in names.items())


def register_rows(
    connection: duckdb.DuckDBPyConnection, name: str, rows: Any, names: Mapping[str, str], within: str | None
) -> None:
    """Registers `rows` as the table `name`, or those that meet the condition `within`. Their columns are those
    of `names`."""
    if within is None and all(stored == named for stored, named in names.items()):
        connection.register(name, rows)
        return
    connection.register(f"_all_{name}", rows)
    text = f"SELECT * FROM (SELECT {_column_list(names)} FROM {q(f'_all_{name}')}) WHERE {within or 'TRUE'}"
    connection.execute(f"CREATE TEMP VIEW {q(name)} AS {text}")


def register_groups(connection: duckdb.DuckDBPyConnection, groups: Groups, kind: pa.DataType) -> None:
    """Registers the groups for `groups_condition`."""
    named = pa.array([group for group in groups if group is not None], kind)
    connection.register(GROUPS, pa.table({"value": named}))


def groups_condition(key: str, groups: Groups) -> str:
    """The condition that a row belongs to a registered group.

    NULL has its own condition, so that other groups are looked up instead of compared one by one.
    """
    named = f"({key}) IN (FROM {GROUPS})"
    return f"({named} OR ({key}) IS NULL)" if None in groups else named


def run_query(connection: duckdb.DuckDBPyConnection, query: str, column: str | None, groups: Groups | None) -> pa.Table:
    """The rows of a query: of registered groups, or all, ordered by `column` if it is given."""
    if groups is None:
        which = "" if column is None else f" ORDER BY {q(column)} NULLS FIRST"
    else:
        which = "" if column is None else f" WHERE {groups_condition(q(column), groups)}"
    found = connection.sql(f"SELECT * FROM ({query}) AS _result{which}")
    kinds = [*map(str, found.types)]
    if "UHUGEINT" in kinds:
        columns = (
            q(n) if k != "UHUGEINT" else f"CAST({q(n)} AS BIGINT) AS {q(n)}"
            for n, k in zip(found.columns, kinds, strict=True)
        )
        found = found.project(", ".join(columns))
    rows = found.to_arrow_table()
    # Cast in Arrow, because DuckDB would plan the query again.
    for at, kind in enumerate(kinds):
        if kind == "HUGEINT":
            rows = rows.set_column(at, rows.field(at).name, _narrow_sums(rows.column(at), rows.field(at).name))
    return rows


def filter_groups(rows: pa.Table, column: str, groups: Groups) -> pa.Table:
    """The rows with one of the groups in `column`, for rows where nearly all have one and DuckDB did not
    filter.

    Raises Fatal when they lack the column.
    """
    named = next((name for name in rows.column_names if name.lower() == column.lower()), None)
    if named is None:
        raise Fatal(f"the query gives no column {column!r}", next_step="Correct `partition_by`, or the query.")
    values = rows[named]
    if groups.issuperset(values.unique().to_pylist()):
        return rows
    return rows.filter(pa.array([value in groups for value in values.to_pylist()], pa.bool_()))


def _narrow_sums(sums: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Sums of integers, which have 128 bits in DuckDB, in 64 bits as on other engines."""
    try:
        return sums.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise pa.ArrowInvalid(f"a value of column {name} has more than 64 bits") from error


def has_repeated_keys(rows: pa.Table, keys: Sequence[str]) -> bool:
    """True when two rows have the same values of `keys`."""
    listed = ", ".join(q(name) for name in keys)
    with open_session() as connection:
        connection.register("_rows", rows)
        found = connection.execute(f"SELECT 1 FROM _rows GROUP BY {listed} HAVING count(*) > 1 LIMIT 1")
        return bool(found.fetchall())
