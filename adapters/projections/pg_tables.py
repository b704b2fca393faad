"""Tables of projections in PostgreSQL: rows and the record of their refresh are one transaction."""

from __future__ import annotations

import psycopg
import pyarrow as pa

from replicator.domain.errors import Retryable
from replicator.domain.projections import Projection, Record, Work
from replicator.ports.projector import Replaced

from ..delta.projector import other_columns as other_columns_problem
from ..delta.refreshes import group_column, not_made_by, refuse_group_type, remark_of
from ..sql.pg_connection import Session
from ..sql.pg_ddl import DDL_LOCK, Catalogue
from ..sql.pg_errors import translated
from ..sql.pg_names import check_columns, check_table
from ..sql.pg_places import Place, Places
from ..sql.pg_refreshed import (
    CREATE_REFRESHES,
    HAS_GUARD,
    MAKE_GUARD,
    Last,
    Standing,
    change_columns,
    fitting,
    guard,
    insert,
    make,
    note,
    oid_of,
    other_columns,
    remove,
    standing,
)
from ..sql.pg_state import SCHEMA


class PostgresTables:
    """The tables of projections in sinks in PostgreSQL. A table that is there stays, with what others have given it: grants,
    indexes, comments of columns."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._sessions: dict[str, Session] = {}
        self._ready: set[str] = set()
        """Databases that have what refreshes remember."""
        self._seen: dict[str, Standing] = {}
        """By projection how its table stood when `last` looked."""

    def last(self, projection: Projection) -> Record | None:
        """See `ports.projector.Projector.last`."""
        place = self._place(projection)
        with self._session(place).using(f"looking at {projection.label}") as cursor:
            found = standing(cursor, place)
        if found.table is not None and found.table.remark != remark_of(projection):
            raise not_made_by(projection)
        self._seen[projection.name] = found
        return Record.from_json(found.good.record) if found.good else None

    def group_type(self, projection: Projection) -> pa.DataType | None:
        """The type of the groups as the last refresh had them; None where it is not known."""
        if projection.name not in self._seen:
            self.last(projection)
        last, column = self._seen[projection.name].last, (projection.partition_by or "").lower()
        kinds = {name.lower(): kind for name, kind in last.columns.items()} if last else {}
        return GROUP_TYPES.get(kinds.get(column, ""))

    def replace(self, projection: Projection, work: Work, record: Record, rows: pa.Table | None) -> Replaced:
        """See `ports.projector.Projector.replace`. `rows`: of the groups of `work`; None where it has none."""
        place, doing = self._place(projection), f"refreshing {projection.label}"
        self._prepare(place)
        seen = self._seen.pop(projection.name, None)
        try:
            with self._session(place).transaction(doing) as cursor:
                cursor.execute("BEGIN")
                cursor.execute("SET LOCAL synchronous_commit = on")
                found = standing(cursor, place, lock=True)
                if found != seen:
                    raise Retryable(f"somebody else wrote to table {projection.label} first")
                self._write(cursor, (projection, place), work, rows, (found, record))
                cursor.execute("COMMIT")
        except psycopg.Error as error:
            raise translated(error, doing) from error
        return Replaced(found.number + 1, 0 if rows is None else rows.num_rows)

    def end_versions(self, projection: Projection) -> str:
        """See `ports.projector.Projector.end_versions`: the space of rows that were replaced is overwritten."""
        place, doing = self._place(projection), f"vacuuming {projection.label}"
        with self._session(place).using(doing) as cursor:
            if standing(cursor, place).table is not None:
                cursor.execute(f"VACUUM (ANALYZE) {place.relation}".encode(), prepare=False)
        return ""

    def close(self) -> None:
        """Release the connections; may be called twice."""
        for session in self._sessions.values():
            session.close()
        self._seen.clear()

    def _write(
        self,
        cursor: psycopg.Cursor,
        of: tuple[Projection, Place],
        work: Work,
        rows: pa.Table | None,
        then: tuple[Standing, Record],
    ) -> None:
        (projection, place), (found, record) = of, then
        columns = found.last.columns if found.last else {}
        if rows is None:
            oid = oid_of(cursor, place)
        else:
            columns, oid = self._ready_for(cursor, of, work, rows.schema, found)
            column = None if projection.partition_by is None else group_column(projection, rows.schema).name
            remove(cursor, place, column, work.groups)
            insert(cursor, place, rows, {name: one for name, (_, one) in fitting(rows.schema, projection.label).items()})
        note(cursor, place, projection.name, Last(oid, found.number + 1, False, columns, record.to_json()))

    def _ready_for(
        self, cursor: psycopg.Cursor, of: tuple[Projection, Place], work: Work, schema: pa.Schema, found: Standing
    ) -> tuple[dict[str, str], int]:
        """Have the table take rows of that schema; its columns, and its oid. Fatal where only some groups are to be replaced
        and it has other columns."""
        projection, place = of
        refuse_group_type(projection, schema)
        check_columns(schema.names, projection.label)
        kinds = {name: kind for name, (kind, _) in fitting(schema, projection.label).items()}
        gone, added = other_columns(found, kinds)
        if found.table is None:
            make(cursor, place, kinds, remark_of(projection))
        elif (gone or added) and work.groups is not None:
            raise other_columns_problem(projection)
        oid = oid_of(cursor, place)
        if found.table is not None and (gone or added):
            change_columns(cursor, place, gone, {name: kinds[name] for name in added})
        if found.table is None or not found.table.guarded:
            guard(cursor, place)
        return kinds, oid

    def _prepare(self, place: Place) -> None:
        """Make what refreshes remember things in, where it is not there."""
        check_table(place.schema, "schema")
        check_table(place.table)
        if place.dsn in self._ready:
            return
        session, doing = self._session(place), f"preparing schema {SCHEMA}"
        Catalogue(session).run(doing, [CREATE_REFRESHES], SCHEMA)
        with session.transaction(doing) as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (DDL_LOCK,))
            (there,) = cursor.execute(HAS_GUARD.encode()).fetchone() or (False,)
            if not there:
                cursor.execute(MAKE_GUARD.encode())
            cursor.execute("COMMIT")
        self._ready.add(place.dsn)

    def _session(self, place: Place) -> Session:
        return self._sessions.setdefault(place.dsn, Session(place.dsn, "refreshes"))

    def _place(self, projection: Projection) -> Place:
        return self._places.place(projection.sink, projection.into)


GROUP_TYPES = {
    "TEXT": pa.string(),
    "BOOLEAN": pa.bool_(),
    "DATE": pa.date32(),
    "SMALLINT": pa.int16(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "NUMERIC(20, 0)": pa.uint64(),
}
"""By the type of a column in PostgreSQL that of its groups."""
