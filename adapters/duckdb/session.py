"""DuckDB in this process: one instance, and a separate connection for each use."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import duckdb
import pyarrow as pa

_lock = threading.Lock()
_instance: tuple[int, duckdb.DuckDBPyConnection] | None = None


@contextmanager
def open_session() -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection with its own temporary tables and registered frames. The time zone is UTC. Connections share one
    in-memory instance.

    A new instance costs 12 ms of CPU time and a thread pool (measured), more than folding a small batch. It has one
    thread: batches are small here, and the other cores decode the next batch.
    """
    connection = _shared_instance().cursor()
    try:
        yield connection
    finally:
        connection.close()


def _shared_instance() -> duckdb.DuckDBPyConnection:
    global _instance  # noqa: PLW0603  (one instance a process; a forked child makes its own)
    with _lock:
        if _instance is None or _instance[0] != os.getpid():
            connection = duckdb.connect(config={"threads": 1})
            connection.execute("SET GLOBAL TimeZone = 'UTC'")
            _instance = (os.getpid(), connection)
        return _instance[1]


# Conversion of columns to types that DuckDB reads. It has no decimals of more than 38 digits.


def to_duckdb_types(table: pa.Table) -> pa.Table:
    """`table` in types that DuckDB reads. Equal values stay equal, different values different. Their order may change."""
    schema = pa.schema([pa.field(f.name, _duckdb_type(f.type)) for f in table.schema])
    return table if schema.types == table.schema.types else table.cast(schema)


def _duckdb_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal256(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_duckdb_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _duckdb_type(f.type)) for f in kind])
    return kind


# Row by row comparison of two states of a table.


def diff_tables(before: pa.Table, after: pa.Table, keys: Sequence[str]) -> pa.Table:
    """`op` (c, u, d) and the row numbers `old` and `new` of every key whose rows differ. Deletes are in the order of
    `before`, then the others in the order of `after`.

    Both tables have the same columns, and unique keys without NULL. Equality is DuckDB's: NULL equals NULL, NaN equals
    NaN, 0.0 equals -0.0. The query numbers the columns, since DuckDB ignores the case of names.
    """
    names = after.schema.names
    by = [f"c{names.index(key)}" for key in keys]
    same = " AND ".join(f"n.{c} = o.{c}" for c in by)
    others = [f"(n.c{i} IS DISTINCT FROM o.c{i})" for i, name in enumerate(names) if name not in keys]
    with open_session() as duck:
        duck.register("o", _number_rows(before))
        duck.register("n", _number_rows(after))
        differences = duck.sql(
            f"""SELECT CASE WHEN n.i IS NULL THEN 'd' WHEN o.i IS NULL THEN 'c' ELSE 'u' END AS op, o.i AS old, n.i AS new
            FROM o FULL JOIN n ON {same}
            WHERE n.i IS NULL OR o.i IS NULL OR {" OR ".join(others) or "false"}
            ORDER BY new NULLS FIRST, old"""
        )
        return pa.table(differences.to_arrow_table())


def _number_rows(rows: pa.Table) -> pa.Table:
    names = [*(f"c{i}" for i in range(rows.num_columns)), "i"]
    return pa.table([*rows.columns, pa.array(range(rows.num_rows), pa.int64())], names=names)
