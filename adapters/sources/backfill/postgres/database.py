"""A PostgreSQL database whose tables are read whole."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa

from ....sql.pg_connection import Session
from ....sql.pg_errors import translated
from ....sql.pg_names import quoted
from ..database import Moment, Row, Table, Tell
from ..taking import TableBackfill
from .columns import Column
from .place import snapshot, system
from .table import look
from .texts import texts

FETCH = 5_000


class PostgresLog:
    """`Log` of Debezium's connector for PostgreSQL. Places are of one number: `[place, 0]` is the sequence."""

    name = "postgresql"
    fields = (
        ("schema", "string", False),
        ("table", "string", False),
        ("txId", "int64", True),
        ("lsn", "int64", True),
        ("xmin", "int64", True),
    )

    def block(self, table: Table[Any], moment: Moment) -> Mapping[str, Any]:
        """See `Log`."""
        return {"sequence": json.dumps([str(moment.place[0]), "0"]), "schema": table.schema, "table": table.name}

    def transaction(self, moment: Moment) -> None:
        """See `Log`."""


class PostgresDatabase:
    """`Database`. Options: `dsn`, `publication`, `slot`."""

    log = PostgresLog()

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._session = Session(str(options["dsn"]), "backfill")
        self._publication, self._slot = str(options["publication"]), str(options["slot"])

    def look(self, table: str, keys: Sequence[str] | None) -> Table[Column]:
        """See `Database`."""
        with _translating(table), closing(self._session.open(autocommit=True)) as connection:
            return look(connection, table, self._publication, self._slot, keys)

    def identity(self) -> str:
        """See `Database`."""
        with _translating("a table"):
            return system(self._session)

    @contextmanager
    def snapshot(self, table: Table[Column], tell: Tell) -> Iterator[_Snapshot]:
        """See `Database`."""
        name = f"{table.schema}.{table.name}"
        tell(f"{name}: waiting for the transactions that are open in the source")
        with _translating(name), snapshot(self._session, self._publication) as (connection, moment):
            yield _Snapshot(connection, table, moment)

    def placed(self, table: Table[Column], keys: pa.Table, borders: Sequence[Sequence[str]]) -> Iterator[tuple[str, int]]:
        """See `Database`."""
        columns = table.key_columns
        names = [f"k{i}" for i, _ in enumerate(columns)]
        cast = ", ".join(f"c.{n}::{c.sql} AS {quoted(c.name)}" for n, c in zip(names, columns, strict=True))
        which = "".join(f" WHEN {_compared(table, '<=')} THEN {i}" for i, _ in enumerate(borders))
        which = f"CASE{which} ELSE {len(borders)} END" if which else "0"
        given = ", ".join("%s::text[]" for _ in columns)
        query = (
            f"SELECT {_literal(_objects(columns))}, {which} FROM unnest({given}) AS c({', '.join(names)}), "
            f"LATERAL (SELECT {_literal(cast)}) AS t"
        )
        parameters = [text for last in borders for text in last]
        arrays = [texts(keys[column.name]) for column in columns]
        name = f"{table.schema}.{table.name}"
        with _translating(name), closing(self._session.open(autocommit=True)) as connection:
            yield from connection.execute(query.encode(), [*parameters, *arrays]).fetchall()


class PostgresBackfill(TableBackfill):
    """`ports.backfill.Backfill` of a table of PostgreSQL. Options of `TableBackfill` and `PostgresDatabase`."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(PostgresDatabase(options), options)


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """`Snapshot`, of a connection in a transaction."""

    connection: psycopg.Connection[Any]
    table: Table[Column]
    moment: Moment

    def count(self) -> int | None:
        """See `Snapshot`: as counted by the last ANALYZE."""
        name = f"{quoted(self.table.schema)}.{quoted(self.table.name)}"
        row = self.connection.execute(
            "SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass(%s)", (name,)
        ).fetchone()
        return row[0] if row and row[0] > 0 else None

    def rows(self, after: Sequence[str] | None) -> Iterator[Row]:
        """See `Snapshot`."""
        with self.connection.cursor("backfill") as cursor:
            cursor.itersize = FETCH
            cursor.execute(_query(self.table, after).encode(), list(after) if after is not None else None)
            for key, row, *last in cursor:
                yield key, row, last


@contextmanager
def _translating(name: str) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise translated(error, f"backfilling {name}") from error


def _query(table: Table[Column], after: Sequence[str] | None) -> str:
    """Rows in the order of their keys: the JSON of the key and of the row, and the key's values as text."""
    where = f" WHERE {_compared(table, '>')}" if after is not None else ""
    mine = [f"t.{quoted(column.name)}" for column in table.key_columns]
    chosen = ", ".join([_objects(table.key_columns), _objects(table.columns), *(f"{name}::text" for name in mine)])
    ordered = ", ".join(mine)
    parts = f"SELECT {chosen} FROM {quoted(table.schema, table.name)} AS t", where, f" ORDER BY {ordered}"
    return parts[0] + parts[2] if after is None else _literal(parts[0]) + parts[1] + _literal(parts[2])


def _objects(columns: Sequence[Column]) -> str:
    """An SQL expression: the JSON text of an object with these columns of `t`, in their forms."""
    inner = [f"{c.sent.of(f't.{quoted(c.name)}')} AS {quoted(c.name)}" for c in columns]
    whole = "row" + "_" * max((len(c.name) for c in columns), default=0)  # No column is called so.
    return f"(SELECT row_to_json({whole})::text FROM (SELECT {', '.join(inner)}) AS {whole})"


def _compared(table: Table[Column], how: str) -> str:
    """The key against given texts."""
    mine = ", ".join(_literal(f"t.{quoted(column.name)}") for column in table.key_columns)
    given = ", ".join(f"%s::text::{_literal(column.sql)}" for column in table.key_columns)
    return f"ROW({mine}) {how} ROW({given})"


def _literal(text: str) -> str:
    """SQL in a statement with parameters."""
    return text.replace("%", "%%")
