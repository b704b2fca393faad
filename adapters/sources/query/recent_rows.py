"""Rows that may be read again, identified by their key and a digest of all values."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ...duckdb.session import open_session

AT, DIGEST, VERSION = "cursor_value", "digest", "version_of"


class RecentRows:
    """The last read row of each key with a cursor value at or above the floor: about 32 bytes per row, and its key. So a
    table with equal times in all rows fits, too.

    The digest has 64 bits, and is only compared with the last one of the same key.
    """

    def __init__(self, schema: pa.Schema, keys: Sequence[str], cursor: str) -> None:
        self._schema, self._keys = schema, [schema.names.index(key) for key in keys]
        self._cursor = schema.names.index(cursor)
        own = [(f"k{i}", schema.field(i).type) for i in self._keys]
        known = [*own, (AT, schema.field(self._cursor).type), (DIGEST, pa.uint64()), (VERSION, pa.int64())]
        self._known: pa.Table = pa.schema(known).empty_table()

    @property
    def schema(self) -> pa.Schema:
        """The columns of the compared rows."""
        return self._schema

    def __len__(self) -> int:
        return int(self._known.num_rows)

    def select_news(self, rows: pa.Table) -> pa.Table:
        """The rows that are new or have other values."""
        if not self._known.num_rows:
            return rows
        same = " AND ".join(f"o.k{i} = n.k{i}" for i in self._keys)
        with open_session() as duck:
            duck.register("o", self._known)
            duck.register("r", _number_rows(rows))
            found = duck.sql(
                f"WITH n AS (SELECT i, {self._digest_columns} FROM r) SELECT n.i FROM n LEFT JOIN o ON {same} "
                f"WHERE o.{DIGEST} IS NULL OR o.{DIGEST} <> n.{DIGEST} ORDER BY n.i"
            ).to_arrow_table()
        return rows.take(found["i"])

    def add(self, rows: pa.Table, versions: pa.Array) -> None:
        """Add rows that were read, in any order: for each key the highest version counts."""
        by = ", ".join(f"k{i}" for i in self._keys)
        told = pa.table([*rows.columns, versions], names=[*_number_columns(rows), VERSION])
        with open_session() as duck:
            duck.register("o", self._known)
            duck.register("r", told)
            found = duck.sql(
                f"SELECT {by}, arg_max({AT}, {VERSION}) AS {AT}, arg_max({DIGEST}, {VERSION}) AS {DIGEST}, "
                f"max({VERSION}) AS {VERSION} "
                f"FROM (SELECT * FROM o UNION ALL SELECT {self._digest_columns}, {VERSION} FROM r) GROUP BY {by}"
            ).to_arrow_table()
        self._known = pa.table(found).cast(self._known.schema)

    def drop_below(self, floor: pa.Scalar) -> None:
        """Remove rows below `floor`, which are not read again."""
        self._known = self._known.filter(pc.greater_equal(self._known[AT], floor))

    @property
    def _digest_columns(self) -> str:
        keys = [f"c{i} AS k{i}" for i in self._keys]
        every = ", ".join(f"c{i}" for i in range(len(self._schema)))
        return ", ".join([*keys, f"c{self._cursor} AS {AT}", f"hash({every}) AS {DIGEST}"])


def _number_rows(rows: pa.Table) -> pa.Table:
    return pa.table([*rows.columns, pa.array(range(rows.num_rows), pa.int64())], names=[*_number_columns(rows), "i"])


def _number_columns(rows: pa.Table) -> list[str]:
    """Columns by number, because DuckDB ignores the case of names."""
    return [f"c{i}" for i in range(rows.num_columns)]
