"""Queries of projections in DuckDB: over versions of tables, whole or by groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa

from replicator.domain.errors import Fatal
from replicator.domain.projections import Groups

from .dialect import DUCKDB
from .duck import session

GROUPS = "_groups"
NARROWER = {"HUGEINT": "BIGINT", "UHUGEINT": "BIGINT"}
"""Sums of whole numbers are wider here than on other engines."""

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


def differing(
    connection: duckdb.DuckDBPyConnection, sides: Mapping[str, Any], names: Mapping[str, str], key: str | None, most: int
) -> list[Any]:
    """The groups of which rows differ on the two `sides`, `_removed` and `_added`, at most one more than `most`; without
    a key something where any differ. `names`: the columns that are compared, and what the query calls them."""
    for side, rows in sides.items():
        connection.register(side, rows)
    columns = _columns(names)
    signed = " UNION ALL ".join(
        f"SELECT {columns}, {by} AS _by FROM {name}" for name, by in (("_added", 1), ("_removed", -1))
    )
    listed = ", ".join(q(name) for name in names.values())
    # The same row as often in both is none that has changed.
    changed = f"SELECT {listed} FROM ({signed}) GROUP BY {listed} HAVING sum(_by) <> 0"
    found = connection.sql(f"SELECT DISTINCT {key or 'TRUE'} AS _group FROM ({changed}) LIMIT {most + 1}")
    return [group for (group,) in found.fetchall()]


def _columns(names: Mapping[str, str]) -> str:
    return ", ".join(f"{q(stored)} AS {q(name)}" for stored, name in names.items())


def offer(connection: duckdb.DuckDBPyConnection, name: str, rows: Any, names: Mapping[str, str], key: str | None) -> None:
    """Have queries find `rows` as the table `name`; with a key those of the groups that were offered."""
    connection.register(f"_all_{name}", rows)
    within = "" if key is None else f" WHERE {of_groups(key)}"
    text = f"SELECT * FROM (SELECT {_columns(names)} FROM {q(f'_all_{name}')}){within}"
    connection.execute(f"CREATE TEMP VIEW {q(name)} AS {text}")


def offer_groups(connection: duckdb.DuckDBPyConnection, groups: Groups, kind: pa.DataType) -> None:
    """Have `of_groups` mean these."""
    connection.register(GROUPS, pa.table({"value": pa.array(list(groups), kind)}))


def of_groups(key: str) -> str:
    """The condition that a row is of a group that was offered."""
    return f"EXISTS (SELECT 1 FROM {GROUPS} WHERE {GROUPS}.value IS NOT DISTINCT FROM ({key}))"


def result(connection: duckdb.DuckDBPyConnection, query: str, column: str | None) -> pa.Table:
    """The rows of a query; with the name of a column those of the groups that were offered."""
    within = "" if column is None else f" WHERE {of_groups(q(column))}"
    found = connection.sql(f"SELECT * FROM ({query}) AS _result{within}")
    kinds = zip(found.columns, map(str, found.types), strict=True)
    narrowed = ", ".join(f"CAST({q(n)} AS {NARROWER[k]}) AS {q(n)}" if k in NARROWER else q(n) for n, k in kinds)
    return found.project(narrowed).to_arrow_table()


def repeated(rows: pa.Table, keys: Sequence[str]) -> bool:
    """True when two rows have the same values of `keys`."""
    listed = ", ".join(q(name) for name in keys)
    with session() as connection:
        connection.register("_rows", rows)
        found = connection.sql(f"SELECT 1 FROM _rows GROUP BY {listed} HAVING count(*) > 1 LIMIT 1")
        return bool(found.fetchall())
