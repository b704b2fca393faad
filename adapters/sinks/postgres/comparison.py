"""A PostgreSQL target at one commit of its lane, for comparisons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg
import pyarrow as pa

from replicator.domain.expr import Expr
from replicator.domain.position import Position
from replicator.ports.frames import Lane
from replicator.ports.reads import ComparedColumn, TableSplit

from ...postgres.checksums import SETTINGS, TableChecksums
from ...postgres.connection import PostgresSession
from ...postgres.ddl import Catalogue
from ...postgres.lane_state import read_state
from ...postgres.names import escape, quote_name
from ...postgres.table_reader import AS_TEXT, BATCH, read_type, select_expression, to_array
from ...postgres.types import AnyType
from ...sql.checksums import can_render_postgres
from ...sql.dialect import POSTGRES
from ...sql.render import current_rows_condition, render_expression

FORMATS = """
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"""
IDENTITY = "SELECT pg_current_snapshot()::text, to_regclass(%s)::oid::text"
BEGIN = (
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL idle_in_transaction_session_timeout = 0; "
    f"SET LOCAL row_security = off; {SETTINGS}"
)
"""The transaction is idle while rows are compared. With row security, a user may not see all rows."""


@contextmanager
def open_postgres_comparison(dsn: str, schema: str, lane: Lane) -> Iterator[PostgresTargetSnapshot | None]:
    """See `ports.sink.SinkFeatures.open_comparison`. One transaction reads the lane's state and its rows."""
    session = PostgresSession(dsn, "diff")
    try:
        columns = Catalogue(session).read_columns(schema, lane.into)
        if columns is None:
            yield None
            return
        with session.transaction(f"reading the target {schema}.{lane.into}") as cursor:
            cursor.execute(BEGIN, prepare=False)
            state = read_state(cursor, lane.pipeline, lane.id)
            if state is None:
                yield None
                return
            name = quote_name(schema, lane.into)
            [(number, identity)] = cursor.execute(IDENTITY, (name,)).fetchall()
            formats = dict(cursor.execute(FORMATS, (name,)).fetchall())
            yield PostgresTargetSnapshot(
                lane, schema, columns, formats, state.position, f"snapshot {number}", identity, cursor
            )
    finally:
        session.close()


@dataclass
class PostgresTargetSnapshot:
    """`ports.reads.TargetSnapshot` of a transaction."""

    lane: Lane
    schema: str
    types: dict[str, AnyType]
    formats: dict[str, str]
    position: Position
    commit: str
    identity: str
    cursor: psycopg.Cursor
    columns: pa.Schema = field(init=False)

    def __post_init__(self) -> None:
        self.columns = pa.schema([pa.field(name, read_type(sql_type)[0]) for name, sql_type in self.types.items()])

    def can_sum(self, columns: Sequence[ComparedColumn]) -> bool:
        return all(can_render_postgres(column.kind, self.formats[column.target]) for column in columns)

    def sum(self, split: TableSplit) -> pa.Table:
        columns = [(column.target, column) for column in split.columns]
        return self._checksums.sum_rows(
            self.cursor, columns, split.keys, within=split.within, without=split.without, condition=self._current
        )

    def read(self, split: TableSplit, buckets: Sequence[int] | None) -> pa.Table:
        columns = [(column.target, column) for column in split.columns]
        wanted = self._checksums.render_buckets(columns, split.keys, split.within, buckets)
        return self._query(f"{self._current} AND {wanted} AND {_render_where(split.where)}", ())

    def read_keys(self, keys: pa.Table, where: Expr | None) -> pa.Table:
        wanted, parameters = self._checksums.render_key_condition(keys)
        return self._query(f"{self._current} AND {wanted} AND {_render_where(where)}", parameters)

    def read_all(self) -> pa.Table:
        return self._query("true", ())

    def convert(self, name: str, values: pa.Array) -> pa.Array:
        """See `ports.reads.TargetSnapshot.convert`: the database reads the texts as values of the column's type."""
        kind, how = read_type(self.types[name])
        is_text = pa.types.is_string(values.type) and (pa.types.is_string(kind) or pa.types.is_time(kind))
        if not is_text or (values.type == kind and how != AS_TEXT):
            return values
        converted = how.replace("{0}", f"v.x::{escape(self.formats[name])}")
        query = f"SELECT {converted} FROM unnest(%s::text[]) WITH ORDINALITY AS v(x, n) ORDER BY v.n"
        self.cursor.execute(query.encode(), [values.to_pylist()], binary=True)
        return to_array([value for (value,) in self.cursor.fetchall()], kind)

    @property
    def _current(self) -> str:
        return escape(current_rows_condition(POSTGRES, self.lane, self.types))

    @property
    def _checksums(self) -> TableChecksums:
        return TableChecksums(quote_name(self.schema, self.lane.into), self.formats)

    def _query(self, condition: str, parameters: Sequence[object]) -> pa.Table:
        """The rows that match a condition, in which percent signs are doubled."""
        schema = self.columns
        select_list = ", ".join(select_expression(name, read_type(sql_type)[1]) for name, sql_type in self.types.items())
        query = f"SELECT {escape(select_list)} FROM {self._checksums.relation} AS t WHERE {condition}"
        self.cursor.execute(query.encode(), parameters, binary=True)
        batches = []
        while rows := self.cursor.fetchmany(BATCH):
            arrays = [to_array(values, f.type) for values, f in zip(zip(*rows, strict=True), schema, strict=True)]
            batches.append(pa.record_batch(arrays, schema=schema))
        return pa.Table.from_batches(batches, schema)


def _render_where(where: Expr | None) -> str:
    return "true" if where is None else escape(render_expression(where, POSTGRES, "t"))
