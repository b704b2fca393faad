"""The rows that may be read again, and how they are known: by their key and a digest of all their values."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ...duckdb.session import open_session

AT, DIGEST, VERSION = "cursor_value", "digest", "version_of"


class RecentRows:
    """What was read last of each key, while its cursor value is not below the floor: some 32 bytes a row, and its key, so
    that a table of which all rows have one time fits, too.

    The digest has 64 bits, and is compared with the one before of the same key alone.
    """

    def __init__(self, schema: pa.Schema, keys: Sequence[str], cursor: str) -> None:
        self._schema, self._keys = schema, [schema.names.index(key) for key in keys]
        self._cursor = schema.names.index(cursor)
        own = [(f"k{i}", schema.field(i).type) for i in self._keys]
        known = [*own, (AT, schema.field(self._cursor).type), (DIGEST, pa.uint64()), (VERSION, pa.int64())]
        self._known: pa.Table = pa.schema(known).empty_table()

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows that are compared."""
        return self._schema

    def __len__(self) -> int:
        return int(self._known.num_rows)

    def select_news(self, rows: pa.Table) -> pa.Table:
        """Those of the rows that are not known, or that hold other values now."""
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
        """These were read, in any order: of a key the one with the highest version counts."""
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
        """Rows below that are not read again."""
        self._known = self._known.filter(pc.greater_equal(self._known[AT], floor))

    @property
    def _digest_columns(self) -> str:
        keys = [f"c{i} AS k{i}" for i in self._keys]
        every = ", ".join(f"c{i}" for i in range(len(self._schema)))
        return ", ".join([*keys, f"c{self._cursor} AS {AT}", f"hash({every}) AS {DIGEST}"])


def _number_rows(rows: pa.Table) -> pa.Table:
    return pa.table([*rows.columns, pa.array(range(rows.num_rows), pa.int64())], names=[*_number_columns(rows), "i"])


def _number_columns(rows: pa.Table) -> list[str]:
    """By number, as DuckDB folds the case of names."""
    return [f"c{i}" for i in range(rows.num_columns)]
