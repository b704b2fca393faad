"""A PostgreSQL target at one commit of its lane, for comparisons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
import pyarrow as pa

from replicator.domain.errors import Fatal
from replicator.domain.position import Position
from replicator.ports.comparison import Chunk
from replicator.ports.frames import Lane

from ...postgres.connection import PostgresSession
from ...postgres.ddl import DIALECT, Catalogue
from ...postgres.key_texts import to_texts
from ...postgres.lane_state import read_state
from ...postgres.names import quote_name
from ...postgres.table_reader import AS_TEXT, BATCH, read_type, select_expression, to_array
from ...postgres.types import AnyType
from ...sql.comparison import current_rows_condition
from ...sql.dialect import POSTGRES

BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL enable_hashjoin = on; SET LOCAL enable_mergejoin = on"


@contextmanager
def open_postgres_comparison(dsn: str, schema: str, lane: Lane) -> Iterator[PostgresTargetSnapshot]:
    """See `ports.comparison.Compares.open_comparison`. One transaction reads the lane's state and its rows."""
    session = PostgresSession(dsn, "diff")
    try:
        columns = Catalogue(session).read_columns(schema, lane.into)
        if columns is None:
            raise Fatal(f"lane {lane.id} has no target yet", next_step="Start the daemon, and repeat the command.")
        with session.transaction(f"comparing {schema}.{lane.into}") as cursor:
            cursor.execute(BEGIN, prepare=False)
            state = read_state(cursor, lane.pipeline, lane.id)
            if state is None:
                raise Fatal(f"lane {lane.id} has no position yet", next_step="Start the daemon, and repeat the command.")
            [(number,)] = cursor.execute("SELECT pg_current_snapshot()::text").fetchall()
            yield PostgresTargetSnapshot(lane, schema, columns, state.position, f"snapshot {number}", cursor)
    finally:
        session.close()


@dataclass(frozen=True)
class PostgresTargetSnapshot:
    """`ports.comparison.TargetSnapshot` of a transaction."""

    lane: Lane
    schema: str
    types: dict[str, AnyType]
    position: Position
    commit: str
    cursor: psycopg.Cursor

    @property
    def columns(self) -> pa.Schema:
        return pa.schema([pa.field(name, read_type(found)[0]) for name, found in self.types.items()])

    def sum(self, chunk: Chunk) -> pa.Table | None:
        """None: see `ports.comparison.TargetSnapshot.sum`."""

    def read(self, chunk: Chunk | None, buckets: Sequence[int] | None) -> pa.Table:
        return self._query("", ())

    def read_keys(self, keys: pa.Table) -> pa.Table:
        names = [f"k{i}" for i in range(keys.num_columns)]
        given = ", ".join("%s::text[]" for _ in names)
        matches = " AND ".join(
            f"t.{quote_name(column)} = k.{name}::{self._sql_type(column)}"
            for name, column in zip(names, keys.column_names, strict=True)
        )
        where = f" AND EXISTS (SELECT FROM unnest({given}) AS k({', '.join(names)}) WHERE {matches.replace('%', '%%')})"
        return self._query(where, [to_texts(keys[name]) for name in keys.column_names])

    def read_all(self) -> pa.Table:
        return self._query("", (), "true")

    def convert(self, name: str, values: pa.Array) -> pa.Array:
        """See `ports.comparison.TargetSnapshot.convert`: the database reads the texts as values of the column's type."""
        kind, how = read_type(self.types[name])
        if (values.type == kind and how != AS_TEXT) or not pa.types.is_string(values.type):
            return values
        converted = how.replace("{0}", f"v.x::{self._sql_type(name)}".replace("%", "%%"))
        query = f"SELECT {converted} FROM unnest(%s::text[]) WITH ORDINALITY AS v(x, n) ORDER BY v.n"
        self.cursor.execute(query.encode(), [values.to_pylist()], binary=True)
        return to_array([value for (value,) in self.cursor.fetchall()], kind)

    def _sql_type(self, column: str) -> str:
        return str(self.types[column].compile(dialect=DIALECT))

    def _query(self, where: str, parameters: Sequence[object], condition: str | None = None) -> pa.Table:
        """The current rows, or those that match `condition`; and of them those that match `where`."""
        plans = {name: read_type(found) for name, found in self.types.items()}
        chosen = ", ".join(select_expression(f"{name}", how) for name, (_, how) in plans.items())
        condition = condition or current_rows_condition(POSTGRES, self.lane, self.types)
        query = f"SELECT {chosen} FROM {quote_name(self.schema, self.lane.into)} AS t WHERE {condition}"
        self.cursor.execute(query.replace("%", "%%").encode() + where.encode(), parameters, binary=True)
        schema = self.columns
        batches = []
        while rows := self.cursor.fetchmany(BATCH):
            arrays = [to_array(values, f.type) for values, f in zip(zip(*rows, strict=True), schema, strict=True)]
            batches.append(pa.record_batch(arrays, schema=schema))
        return pa.Table.from_batches(batches, schema)
