"""Queries of projections in DuckDB: over versions of tables, whole or by groups."""

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
"""Rows that can be read any number of times."""

q = DUCKDB.quote_name


def describe_query_error(query: str) -> str:
    """Why DuckDB does not read a query; empty when it does."""
    try:
        duckdb.extract_statements(query)
    except duckdb.Error as error:
        return _error_text(error)
    return ""


def _error_text(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0][:300]


@contextmanager
def open_query_session(name: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection; what it cannot do is a Fatal of the projection `name`."""
    with open_session() as connection:
        try:
            yield connection
        except (duckdb.Error, pa.ArrowException) as error:
            raise Fatal(
                f"projection {name} cannot be computed: {_error_text(error)}",
                next_step="Correct its query, or what it reads.",
            ) from error


ADDED = "_change_type IN ('insert', 'update_postimage')"
"""Rows of a change data feed that are there after the change; the others were there before."""


def find_differing_groups(
    connection: duckdb.DuckDBPyConnection, sides: tuple[Rows, Rows], names: Mapping[str, str], key: str | None, most: int
) -> list[Any]:
    """The groups of which rows differ between two sides, at most one more than `most`; without a key something where any
    differ. `names`: the columns that are compared, and what the query calls them."""
    sums = []
    for sign, rows in zip("-+", sides, strict=True):
        connection.register(f"_rows_{sign}", rows)
        of_side = f"SELECT {_column_list(names)} FROM {q(f'_rows_{sign}')}"
        listed = _comparable_columns(names, rows.schema if isinstance(rows, pa.Table) else rows.projected_schema)
        each = f"SELECT {key or 'TRUE'} AS _group, {', '.join(_row_hashes(listed))} FROM ({of_side})"
        # Sides are summed alone: a sign for each row takes twice the time.
        of_group = f"{sign}count(*) AS _number, {sign}sum(_one) AS _ones, {sign}sum(_other) AS _others"
        sums.append(f"SELECT _group, {of_group} FROM ({each}) GROUP BY _group")
    # The same rows on both sides have the same sums; others have them once in 2^64.
    unlike = "sum(_number) <> 0 OR sum(_ones) <> 0 OR sum(_others) <> 0"
    text = f"SELECT _group FROM ({' UNION ALL '.join(sums)}) GROUP BY _group HAVING {unlike} LIMIT {most + 1}"
    return [one for (one,) in connection.execute(text).fetchall()]


def find_changed_groups(
    connection: duckdb.DuckDBPyConnection, feed: pa.Table, names: Mapping[str, str], key: str | None, most: int
) -> list[Any]:
    """As `find_differing_groups`, of the rows of a change data feed: what is there as often after the changes as before is
    the same."""
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
    """Two for each row. They begin with a number of their own, and are hashed twice: what DuckDB makes of small numbers, of
    0 above all, and of several columns, adds up to the same more often than by chance."""
    return f"hash(hash(1, {listed})) AS _one", f"hash(hash(2, {listed})) AS _other"


def _comparable_columns(names: Mapping[str, str], schema: pa.Schema) -> str:
    """The columns, so that DuckDB makes the same of equal values only: nested ones as text, since it makes the same of NULL,
    of an empty list, and of one of NULL."""
    nested = {name for stored, name in names.items() if pa.types.is_nested(schema.field(stored).type)}
    return ", ".join(f"CAST({q(name)} AS VARCHAR)" if name in nested else q(name) for name in names.values())


def _column_list(names: Mapping[str, str]) -> str:
    return ", ".join(f"{q(stored)} AS {q(name)}" for stored, name in names.items())


def register_rows(
    connection: duckdb.DuckDBPyConnection, name: str, rows: Any, names: Mapping[str, str], within: str | None
) -> None:
    """Have queries find those `rows` that are under a condition, or all, as the table `name`. Of rows, the columns are those
    of `names`."""
    if within is None and all(stored == named for stored, named in names.items()):
        connection.register(name, rows)
        return
    connection.register(f"_all_{name}", rows)
    text = f"SELECT * FROM (SELECT {_column_list(names)} FROM {q(f'_all_{name}')}) WHERE {within or 'TRUE'}"
    connection.execute(f"CREATE TEMP VIEW {q(name)} AS {text}")


def register_groups(connection: duckdb.DuckDBPyConnection, groups: Groups, kind: pa.DataType) -> None:
    """Have `groups_condition` mean these."""
    named = pa.array([group for group in groups if group is not None], kind)
    connection.register(GROUPS, pa.table({"value": named}))


def groups_condition(key: str, groups: Groups) -> str:
    """The condition that a row is of a group that was offered. NULL is asked for apart, so that others are looked up and not
    compared with every group."""
    named = f"({key}) IN (FROM {GROUPS})"
    return f"({named} OR ({key}) IS NULL)" if None in groups else named


def run_query(connection: duckdb.DuckDBPyConnection, query: str, column: str | None, groups: Groups | None) -> pa.Table:
    """The rows of a query: of these groups, which were offered, or all, in the order of `column` where it is named."""
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
    # Not by DuckDB, which would think the query over once more.
    for at, kind in enumerate(kinds):
        if kind == "HUGEINT":
            rows = rows.set_column(at, rows.field(at).name, _narrow_sums(rows.column(at), rows.field(at).name))
    return rows


def filter_groups(rows: pa.Table, column: str, groups: Groups) -> pa.Table:
    """Those of the rows whose value of a column of theirs is one of the groups; meant for where that is nearly always true
    of all, and nobody has asked DuckDB. Fatal where they have no such column."""
    named = next((name for name in rows.column_names if name.lower() == column.lower()), None)
    if named is None:
        raise Fatal(f"the query gives no column {column!r}", next_step="Correct `partition_by`, or the query.")
    values = rows[named]
    if groups.issuperset(values.unique().to_pylist()):
        return rows
    return rows.filter(pa.array([value in groups for value in values.to_pylist()], pa.bool_()))


def _narrow_sums(sums: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Sums of whole numbers, which have 128 bits here, in the 64 bits that they have on other engines."""
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
