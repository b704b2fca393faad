"""Inputs of projections in PostgreSQL: versions of tables and their rows, in one transaction per database."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import psycopg
import pyarrow as pa
from psycopg import sql

from replicator.domain.projection import InputVersion, InputVersions, Projection, ProjectionInput

from ..postgres.connection import PostgresSession
from ..postgres.errors import translate_error
from ..postgres.event_table import MAPS
from ..postgres.lane_state import parse_state
from ..postgres.options import TableLocation, TableLocations
from ..postgres.query import BEGIN, describe_columns, read_all_rows, render_select
from .postgres_tables import KNOWN
from .refresh_records import missing_input_error

TABLES = sql.SQL("SELECT to_regclass(%s)::oid::text, to_regclass('_replicator.positions') IS NOT NULL")
LANES = sql.SQL(
    "SELECT pipeline, lane, state::text, updated_at FROM _replicator.positions WHERE target = %s ORDER BY pipeline, lane"
)
REFRESH = sql.SQL("SELECT number, others FROM _replicator.refreshes WHERE target = %s AND relation = %s::bigint")
NO_TABLE = (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName)


class PostgresSnapshot:
    """A read-only transaction (REPEATABLE READ) over some tables of a database, whose columns cannot change
    meanwhile.

    It begins at once. Errors of the driver are raised as errors of this program.
    """

    def __init__(self, dsn: str, places: Sequence[TableLocation]) -> None:
        self._connection: psycopg.Connection | None = None
        self.lacking: list[TableLocation] = []
        """Locations without a table: at most one, because nothing can be read then."""
        with _translate_errors("connecting"):
            self._connection = PostgresSession(dsn, "projections").open()
            self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            self._connection.read_only = True
        try:
            self._lock_tables(places)
        except BaseException:
            self.close()
            raise

    def _lock_tables(self, places: Sequence[TableLocation]) -> None:
        """Locks the tables before the first read: a table that is swapped in between would be empty."""
        for place in places:
            with _translate_errors(f"reading {place.schema}.{place.table}"):
                try:
                    self._run(f"LOCK TABLE {place.relation} IN ACCESS SHARE MODE")
                except NO_TABLE:
                    self.lacking.append(place)
                    return
        with _translate_errors("reading"):
            self._open_connection.execute(BEGIN.encode(), prepare=False)

    def read_version(self, place: TableLocation) -> InputVersion | None:
        """The version of a table in this snapshot; None for a table that no lane or projection has written."""
        with _translate_errors(f"reading {place.schema}.{place.table}"):
            table, known = self._open_connection.execute(TABLES, (place.relation,)).fetchone() or ("", False)
            if place.events:
                (count,) = self._run(f"SELECT count(*) FROM {place.relation}").fetchone() or (0,)
                return InputVersion(table, count)
            rows = self._open_connection.execute(LANES, (place.relation,)).fetchall() if known else []
            if not rows:
                return self._read_refresh(place, table)
        states = [parse_state(state, pipeline, lane) for pipeline, lane, state, _ in rows]
        # Positions are not enough: rows are also written out of band, deleted, and loaded again.
        mark = ", ".join(at.isoformat() for *_, at in rows)
        return InputVersion(table, sum(sum(one.position.values()) for one in states if one), mark)

    def _read_refresh(self, place: TableLocation, table: str) -> InputVersion | None:
        """The number of the refresh that wrote the table; None if there is none."""
        (known,) = self._open_connection.execute(KNOWN).fetchone() or (False,)
        row = self._open_connection.execute(REFRESH, (place.relation, table)).fetchone() if known else None
        return None if row is None else InputVersion(table, row[0], "changed by others" if row[1] else "")

    def read_rows(self, place: TableLocation, columns: Collection[str] | None) -> pa.Table:
        """The rows of a table, with `columns` (lower case; None: all), at least one.

        Types are those of `table_reader`; the maps of events are maps.
        """
        doing, text = f"reading {place.schema}.{place.table}", f"SELECT * FROM {place.relation}"
        with _translate_errors(doing):
            there = describe_columns(self._open_connection, text)
            wanted = [one for one in there if columns is None or one[0].lower() in columns] or there[:1]
            found = read_all_rows(self._open_connection, *render_select(wanted, text), doing)
        return json_to_maps(found, MAPS) if place.events else found

    def close(self) -> None:
        """Closes the connection; may be called twice."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def _open_connection(self) -> psycopg.Connection:
        if self._connection is None:
            raise ValueError("the snapshot has ended")
        return self._connection

    def _run(self, statement: str) -> psycopg.Cursor:
        return self._open_connection.execute(statement.encode(), prepare=False)


def json_to_maps(rows: pa.Table, names: Collection[str]) -> pa.Table:
    """The rows with JSON objects in these columns as maps of text, as in a lake."""
    for at, name in enumerate(rows.column_names):
        if name in names:
            values = [None if text is None else _to_items(json.loads(text)) for text in rows[name].to_pylist()]
            rows = rows.set_column(at, name, pa.array(values, pa.map_(pa.string(), pa.string())))
    return rows


def _to_items(said: Mapping[str, object]) -> list[tuple[str, str | None]]:
    plain = (str, type(None))
    return [(name, value if isinstance(value, plain) else json.dumps(value)) for name, value in said.items()]


@contextmanager
def _translate_errors(doing: str) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise translate_error(error, doing) from error


class PostgresInputs:
    """Versions and rows of inputs.

    The inputs of a projection in one database are read in one snapshot, from `read_versions` until `release`. A
    database has no old versions, so versions cannot be compared.
    """

    def __init__(self, places: TableLocations) -> None:
        self._places = places
        self._moments: dict[str, PostgresSnapshot] = {}

    def read_versions(self, projection: Projection, inputs: Sequence[ProjectionInput]) -> InputVersions:
        self.release()
        placed = {one.name: self._locate(one) for one in inputs}
        for dsn in dict.fromkeys(place.dsn for place in placed.values()):
            self._moments[dsn] = PostgresSnapshot(dsn, [place for place in placed.values() if place.dsn == dsn])
        lacking = [place for moment in self._moments.values() for place in moment.lacking]
        found = {}
        for one in sorted(inputs, key=lambda each: placed[each.name] not in lacking):
            place = placed[one.name]
            read = None if place in lacking else self._moments[place.dsn].read_version(place)
            if read is None:
                raise missing_input_error(projection, one)
            found[one.name] = read
        return found

    def read_rows(self, one: ProjectionInput) -> pa.Table:
        """The rows of the version that `read_versions` found, with the columns that the query may read."""
        place = self._locate(one)
        return self._moments[place.dsn].read_rows(place, one.columns)

    def release(self) -> None:
        for moment in self._moments.values():
            moment.close()
        self._moments.clear()

    def _locate(self, one: ProjectionInput) -> TableLocation:
        return self._places.locate(one.sink, one.table)
