"""What a database holds at one moment: versions of tables and their rows, in one transaction."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import psycopg
import pyarrow as pa
from psycopg import sql

from replicator.domain.projections import Read

from .pg_connection import Session
from .pg_errors import translated
from .pg_event_table import MAPS
from .pg_places import Place
from .pg_query import BEGIN, all_rows, columns_of, selecting
from .pg_refreshed import KNOWN
from .pg_state import parsed

TABLES = sql.SQL("SELECT to_regclass(%s)::oid::text, to_regclass('_replicator.positions') IS NOT NULL")
LANES = sql.SQL(
    "SELECT pipeline, lane, state::text, updated_at FROM _replicator.positions WHERE target = %s ORDER BY pipeline, lane"
)
REFRESH = sql.SQL("SELECT number, others FROM _replicator.refreshes WHERE target = %s AND relation = %s::bigint")
NO_TABLE = (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName)


class Moment:
    """A read-only transaction (REPEATABLE READ) over some tables of a database, which keep their columns meanwhile. Begins
    at once; errors of the driver leave as the program's own."""

    def __init__(self, dsn: str, places: Sequence[Place]) -> None:
        self._connection: psycopg.Connection | None = None
        self.lacking: list[Place] = []
        """Places that have no table: one at most, as nothing can be read then."""
        with _translating("connecting"):
            self._connection = Session(dsn, "projections").open()
            self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            self._connection.read_only = True
        try:
            self._begin(places)
        except BaseException:
            self.end()
            raise

    def _begin(self, places: Sequence[Place]) -> None:
        """Locks come before the first look: a table that is exchanged for another one in between would be found empty."""
        for place in places:
            with _translating(f"reading {place.schema}.{place.table}"):
                try:
                    self._run(f"LOCK TABLE {place.relation} IN ACCESS SHARE MODE")
                except NO_TABLE:
                    self.lacking.append(place)
                    return
        with _translating("reading"):
            self._open.execute(BEGIN.encode(), prepare=False)

    def read(self, place: Place) -> Read | None:
        """Which version of a table this moment has; None for a table that nobody who keeps positions has written."""
        with _translating(f"reading {place.schema}.{place.table}"):
            table, known = self._open.execute(TABLES, (place.relation,)).fetchone() or ("", False)
            if place.events:
                (count,) = self._run(f"SELECT count(*) FROM {place.relation}").fetchone() or (0,)
                return Read(table, count)
            rows = self._open.execute(LANES, (place.relation,)).fetchall() if known else []
            if not rows:
                return self._refreshed(place, table)
        states = [parsed(state, pipeline, lane) for pipeline, lane, state, _ in rows]
        # Rows are also applied beside the stream, removed, and loaded again: positions alone do not tell.
        mark = ", ".join(at.isoformat() for *_, at in rows)
        return Read(table, sum(sum(one.position.values()) for one in states if one), mark)

    def _refreshed(self, place: Place, table: str) -> Read | None:
        """Which refresh of a projection the table is of; None for a table of nobody."""
        (known,) = self._open.execute(KNOWN).fetchone() or (False,)
        row = self._open.execute(REFRESH, (place.relation, table)).fetchone() if known else None
        return None if row is None else Read(table, row[0], "changed by others" if row[1] else "")

    def rows(self, place: Place, columns: Collection[str] | None) -> pa.Table:
        """The rows of a table, in `columns` (lower case; None: all), of which there is one at least. Types are those of
        `pg_reader`; the maps of events are maps."""
        doing, text = f"reading {place.schema}.{place.table}", f"SELECT * FROM {place.relation}"
        with _translating(doing):
            there = columns_of(self._open, text)
            wanted = [one for one in there if columns is None or one[0].lower() in columns] or there[:1]
            found = all_rows(self._open, *selecting(wanted, text), doing)
        return with_maps(found, MAPS) if place.events else found

    def end(self) -> None:
        """Release the connection; may be called twice."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def _open(self) -> psycopg.Connection:
        if self._connection is None:
            raise ValueError("the moment has ended")
        return self._connection

    def _run(self, statement: str) -> psycopg.Cursor:
        return self._open.execute(statement.encode(), prepare=False)


def with_maps(rows: pa.Table, names: Collection[str]) -> pa.Table:
    """The rows with columns of JSON objects as maps of text, as a lake has them."""
    for at, name in enumerate(rows.column_names):
        if name in names:
            values = [None if text is None else _items(json.loads(text)) for text in rows[name].to_pylist()]
            rows = rows.set_column(at, name, pa.array(values, pa.map_(pa.string(), pa.string())))
    return rows


def _items(said: Mapping[str, object]) -> list[tuple[str, str | None]]:
    plain = (str, type(None))
    return [(name, value if isinstance(value, plain) else json.dumps(value)) for name, value in said.items()]


@contextmanager
def _translating(doing: str) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise translated(error, doing) from error
