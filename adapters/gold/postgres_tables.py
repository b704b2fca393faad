"""Tables of projections in PostgreSQL. Rows and the record of their refresh are one transaction."""

from __future__ import annotations

import psycopg
import pyarrow as pa

from replicator.domain.errors import Retryable
from replicator.domain.projection import Projection, RefreshRecord, RefreshWork
from replicator.ports.projector import ReplaceResult

from ..postgres.connection import PostgresSession
from ..postgres.ddl import DDL_LOCK, Catalogue
from ..postgres.errors import translate_error
from ..postgres.lane_state import SCHEMA
from ..postgres.names import check_columns, check_table
from ..postgres.options import TableLocation, TableLocations
from .delta_projector import other_columns_error as other_columns_problem
from .postgres_refreshes import (
    CREATE_REFRESHES,
    HAS_GUARD,
    MAKE_GUARD,
    LastRefresh,
    RefreshState,
    change_columns,
    create_table,
    delete_groups,
    diff_columns,
    find_conversions,
    insert_rows,
    install_guard,
    read_oid,
    read_refresh_state,
    write_refresh,
)
from .refresh_records import foreign_table_error, group_column, refuse_group_type, table_remark


class PostgresTables:
    """The tables of projections in PostgreSQL sinks.

    An existing table stays, with grants, indexes and comments of columns that others made.
    """

    def __init__(self, places: TableLocations) -> None:
        self._places = places
        self._sessions: dict[str, PostgresSession] = {}
        self._ready: set[str] = set()
        """Databases that have the tables of refreshes."""
        self._seen: dict[str, RefreshState] = {}
        """By projection the state of its table when `read_last` read it."""

    def read_last(self, projection: Projection) -> RefreshRecord | None:
        place = self._locate(projection)
        with self._get_session(place).cursor(f"looking at {projection.label}") as cursor:
            found = read_refresh_state(cursor, place)
        if found.table is not None and found.table.remark != table_remark(projection):
            raise foreign_table_error(projection)
        self._seen[projection.name] = found
        return RefreshRecord.from_json(found.valid_refresh.record) if found.valid_refresh else None

    def read_group_type(self, projection: Projection) -> pa.DataType | None:
        """The type of the groups at the last refresh; None when it is not known."""
        if projection.name not in self._seen:
            self.read_last(projection)
        last, column = self._seen[projection.name].last, (projection.partition_by or "").lower()
        kinds = {name.lower(): kind for name, kind in last.columns.items()} if last else {}
        return GROUP_TYPES.get(kinds.get(column, ""))

    def replace(
        self, projection: Projection, work: RefreshWork, record: RefreshRecord, rows: pa.Table | None
    ) -> ReplaceResult:
        """See `ports.projector.Projector.replace`. `rows`: the rows of the groups of `work`; None if it has none."""
        place, doing = self._locate(projection), f"refreshing {projection.label}"
        self._prepare_database(place)
        seen = self._seen.pop(projection.name, None)
        try:
            with self._get_session(place).transaction(doing) as cursor:
                cursor.execute("BEGIN")
                cursor.execute("SET LOCAL synchronous_commit = on")
                found = read_refresh_state(cursor, place, lock=True)
                if found != seen:
                    raise Retryable(f"another writer changed table {projection.label} first")
                self._write_rows(cursor, (projection, place), work, rows, (found, record))
                cursor.execute("COMMIT")
        except psycopg.Error as error:
            raise translate_error(error, doing) from error
        return ReplaceResult(found.number + 1, 0 if rows is None else rows.num_rows)

    def end_versions(self, projection: Projection) -> str:
        """See `ports.projector.Projector.end_versions`. VACUUM releases the space of replaced rows."""
        place, doing = self._locate(projection), f"vacuuming {projection.label}"
        with self._get_session(place).cursor(doing) as cursor:
            if read_refresh_state(cursor, place).table is not None:
                cursor.execute(f"VACUUM (ANALYZE) {place.relation}".encode(), prepare=False)
        return ""

    def close(self) -> None:
        """Closes the connections; may be called twice."""
        for session in self._sessions.values():
            session.close()
        self._seen.clear()

    def _write_rows(
        self,
        cursor: psycopg.Cursor,
        of: tuple[Projection, TableLocation],
        work: RefreshWork,
        rows: pa.Table | None,
        then: tuple[RefreshState, RefreshRecord],
    ) -> None:
        (projection, place), (found, record) = of, then
        columns = found.last.columns if found.last else {}
        if rows is None:
            oid = read_oid(cursor, place)
        else:
            columns, oid = self._prepare_table(cursor, of, work, rows.schema, found)
            column = None if projection.partition_by is None else group_column(projection, rows.schema).name
            delete_groups(cursor, place, column, work.groups)
            insert_rows(
                cursor,
                place,
                rows,
                {name: one for name, (_, one) in find_conversions(rows.schema, projection.label).items()},
            )
        write_refresh(cursor, place, projection.name, LastRefresh(oid, found.number + 1, False, columns, record.to_json()))

    def _prepare_table(
        self,
        cursor: psycopg.Cursor,
        of: tuple[Projection, TableLocation],
        work: RefreshWork,
        schema: pa.Schema,
        found: RefreshState,
    ) -> tuple[dict[str, str], int]:
        """Prepares the table for rows of that schema; returns its columns, and its oid.

        Raises Fatal when only some groups are replaced and the table has other columns.
        """
        projection, place = of
        refuse_group_type(projection, schema)
        check_columns(schema.names, projection.label)
        kinds = {name: kind for name, (kind, _) in find_conversions(schema, projection.label).items()}
        gone, added = diff_columns(found, kinds)
        if found.table is None:
            create_table(cursor, place, kinds, table_remark(projection))
        elif (gone or added) and work.groups is not None:
            raise other_columns_problem(projection)
        oid = read_oid(cursor, place)
        if found.table is not None and (gone or added):
            change_columns(cursor, place, gone, {name: kinds[name] for name in added})
        if found.table is None or not found.table.guarded:
            install_guard(cursor, place)
        return kinds, oid

    def _prepare_database(self, place: TableLocation) -> None:
        """Creates the tables and functions for refreshes if they do not exist."""
        check_table(place.schema, "schema")
        check_table(place.table)
        if place.dsn in self._ready:
            return
        session, doing = self._get_session(place), f"preparing schema {SCHEMA}"
        Catalogue(session).create_own_tables(doing, [CREATE_REFRESHES], SCHEMA)
        with session.transaction(doing) as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (DDL_LOCK,))
            (there,) = cursor.execute(HAS_GUARD.encode()).fetchone() or (False,)
            if not there:
                cursor.execute(MAKE_GUARD.encode())
            cursor.execute("COMMIT")
        self._ready.add(place.dsn)

    def _get_session(self, place: TableLocation) -> PostgresSession:
        return self._sessions.setdefault(place.dsn, PostgresSession(place.dsn, "refreshes"))

    def _locate(self, projection: Projection) -> TableLocation:
        return self._places.locate(projection.sink, projection.into)


GROUP_TYPES = {
    "TEXT": pa.string(),
    "BOOLEAN": pa.bool_(),
    "DATE": pa.date32(),
    "SMALLINT": pa.int16(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "NUMERIC(20, 0)": pa.uint64(),
}
"""The Arrow type of groups, by the column's PostgreSQL type."""
