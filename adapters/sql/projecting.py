"""Queries of projections in DuckDB: over versions of tables, whole or by groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from replicator.domain.errors import Fatal
from replicator.domain.projections import Groups

from .dialect import DUCKDB
from .duck import session

GROUPS = "_groups"
NARROWER = {"HUGEINT": "BIGINT", "UHUGEINT": "BIGINT"}
"""Sums of whole numbers are wider here than on other engines."""

Side = tuple[ds.Scanner, str]
"""Rows, to be read any number of times, and the condition that those are under which count."""

q = DUCKDB.quoted


def unreadable(query: str) -> str:
    """Why DuckDB does not read a query; empty when it does."""
    try:
        duckdb.extract_statements(query)
    except duckdb.Error as error:
        return _words(error)
    return ""


def _words(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0][:300]


@contextmanager
def asking(name: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection whose times are of UTC; what it cannot do is a Fatal of the projection `name`."""
    with session() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        try:
            yield connection
        except duckdb.Error as error:
            raise Fatal(
                f"projection {name} cannot be computed: {_words(error)}", next_step="Correct its query, or what it reads."
            ) from error


ADDED = "_change_type IN ('insert', 'update_postimage')"
"""Rows of a change data feed that are there after the change; the others were there before."""


def differing(
    connection: duckdb.DuckDBPyConnection, sides: tuple[Side, Side], names: Mapping[str, str], key: str | None, most: int
) -> list[Any]:
    """The groups of which rows differ between two sides, at most one more than `most`; without a key something where any
    differ. `names`: the columns that are compared, and what the query calls them."""
    sums = []
    for sign, (rows, condition) in zip("-+", sides, strict=True):
        connection.register(f"_rows_{sign}", rows)
        of_side = f"SELECT {_columns(names)} FROM {q(f'_rows_{sign}')} WHERE {condition}"
        listed = ", ".join(_hashable(name, rows.projected_schema.field(stored).type) for stored, name in names.items())
        each = f"SELECT {key or 'TRUE'} AS _group, {', '.join(_hashes(listed))} FROM ({of_side})"
        # Sides are summed alone: a sign for each row takes twice the time.
        of_group = f"{sign}count(*) AS _number, {sign}sum(_one) AS _ones, {sign}sum(_other) AS _others"
        sums.append(f"SELECT _group, {of_group} FROM ({each}) GROUP BY _group")
    # The same rows on both sides have the same sums; others have them once in 2^64.
    unlike = "sum(_number) <> 0 OR sum(_ones) <> 0 OR sum(_others) <> 0"
    text = f"SELECT _group FROM ({' UNION ALL '.join(sums)}) GROUP BY _group HAVING {unlike} LIMIT {most + 1}"
    return [one for (one,) in connection.execute(text).fetchall()]


def _hashes(listed: str) -> tuple[str, str]:
    """Two for each row. They begin with a number of their own, and are hashed twice: what DuckDB makes of small numbers, of
    0 above all, and of several columns, adds up to the same more often than by chance."""
    return f"hash(hash(1, {listed})) AS _one", f"hash(hash(2, {listed})) AS _other"


def _hashable(name: str, kind: pa.DataType) -> str:
    """A column, so that DuckDB makes the same of equal values only: nested ones as text, since it makes the same of NULL, of
    an empty list, and of one of NULL."""
    return f"CAST({q(name)} AS VARCHAR)" if pa.types.is_nested(kind) else q(name)


def _columns(names: Mapping[str, str]) -> str:
    return ", ".join(f"{q(stored)} AS {q(name)}" for stored, name in names.items())


def offer(connection: duckdb.DuckDBPyConnection, name: str, rows: Any, names: Mapping[str, str], within: str) -> None:
    """Have queries find those `rows` that are under a condition as the table `name`."""
    connection.register(f"_all_{name}", rows)
    text = f"SELECT * FROM (SELECT {_columns(names)} FROM {q(f'_all_{name}')}) WHERE {within}"
    connection.execute(f"CREATE TEMP VIEW {q(name)} AS {text}")


def offer_groups(connection: duckdb.DuckDBPyConnection, groups: Groups, kind: pa.DataType) -> None:
    """Have `of_groups` mean these."""
    named = pa.array([group for group in groups if group is not None], kind)
    connection.register(GROUPS, pa.table({"value": named}))


def of_groups(key: str, groups: Groups) -> str:
    """The condition that a row is of a group that was offered. NULL is asked for apart, so that others are looked up and not
    compared with every group."""
    named = f"({key}) IN (FROM {GROUPS})"
    return f"({named} OR ({key}) IS NULL)" if None in groups else named


def result(connection: duckdb.DuckDBPyConnection, query: str, column: str | None, groups: Groups | None) -> pa.Table:
    """The rows of a query: of these groups, which were offered, or all, in the order of `column` where it is named."""
    if groups is None:
        which = "" if column is None else f" ORDER BY {q(column)} NULLS FIRST"
    else:
        which = "" if column is None else f" WHERE {of_groups(q(column), groups)}"
    found = connection.sql(f"SELECT * FROM ({query}) AS _result{which}")
    kinds = dict(zip(found.columns, map(str, found.types), strict=True))
    if not NARROWER.keys() & {*kinds.values()}:
        return found.to_arrow_table()
    narrowed = ", ".join(f"CAST({q(n)} AS {NARROWER[k]}) AS {q(n)}" if k in NARROWER else q(n) for n, k in kinds.items())
    return found.project(narrowed).to_arrow_table()


def repeated(rows: pa.Table, keys: Sequence[str]) -> bool:
    """True when two rows have the same values of `keys`."""
    listed = ", ".join(q(name) for name in keys)
    with session() as connection:
        connection.register("_rows", rows)
        found = connection.execute(f"SELECT 1 FROM _rows GROUP BY {listed} HAVING count(*) > 1 LIMIT 1")
        return bool(found.fetchall())
