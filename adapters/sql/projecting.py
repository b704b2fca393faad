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

GROUPS, NULL_TOO = "_groups", "_null_too"
NARROWER = {"HUGEINT": "BIGINT", "UHUGEINT": "BIGINT"}
"""Sums of whole numbers are wider here than on other engines."""

Part = tuple[Any, str]
"""Rows, and what is 1 for those that are there now, and -1 for those that were."""

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
    connection: duckdb.DuckDBPyConnection, parts: Sequence[Part], names: Mapping[str, str], key: str | None, most: int
) -> list[Any]:
    """The groups of which rows differ, at most one more than `most`; without a key something where any differ. `names`: the
    columns that are compared, and what the query calls them."""
    listed = ", ".join(q(name) for name in names.values())
    signed = []
    for number, (rows, by) in enumerate(parts):
        connection.register(f"_part_{number}", rows)
        hashes = f"hash(hash({listed})) AS _one, hash(hash(1, {listed})) AS _other"
        of_part = f"SELECT {_columns(names)}, {by} AS _by FROM _part_{number}"
        signed.append(f"SELECT {key or 'TRUE'} AS _group, _by, {hashes} FROM ({of_part})")
    # The same rows on both sides have the same sums; others have them once in 2^64. Hashed twice: where two rows swap a
    # value, sums of what DuckDB makes of several columns stay the same more often than that.
    sums = " OR ".join(f"sum({term}) <> 0" for term in ("_by", "_by * _one::HUGEINT", "_by * _other::HUGEINT"))
    together = " UNION ALL ".join(signed)
    found = connection.sql(f"SELECT _group FROM ({together}) GROUP BY _group HAVING {sums} LIMIT {most + 1}")
    return [one for (one,) in found.fetchall()]


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
    named = pa.array([group for group in groups if group is not None], kind)
    connection.register(GROUPS, pa.table({"value": named}))
    connection.register(NULL_TOO, pa.table({"value": pa.array([1] if None in groups else [], pa.int8())}))


def of_groups(key: str) -> str:
    """The condition that a row is of a group that was offered. In two parts, each of which is looked up and not compared
    with every group."""
    return f"(({key}) IN (FROM {GROUPS}) OR (({key}) IS NULL AND EXISTS (FROM {NULL_TOO})))"


def result(connection: duckdb.DuckDBPyConnection, query: str, column: str | None, *, whole: bool) -> pa.Table:
    """The rows of a query, in the order of `column` where it is named; without `whole` those of the groups that were
    offered."""
    within = "" if whole or column is None else f" WHERE {of_groups(q(column))}"
    order = f" ORDER BY {q(column)} NULLS FIRST" if whole and column is not None else ""
    found = connection.sql(f"SELECT * FROM ({query}) AS _result{within}{order}")
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
