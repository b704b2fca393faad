"""Tables of projections in PostgreSQL. Rows and the record of their refresh are one transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
import sqlalchemy as sa
from psycopg import sql
from sqlalchemy.dialects import postgresql as pg

from replicator.domain.errors import Fatal, Retryable
from replicator.domain.projection import Groups, Projection, RefreshRecord, RefreshWork
from replicator.domain.table import Column
from replicator.ports.projector import ReplaceResult

from ..postgres.connection import PostgresSession
from ..postgres.ddl import DDL_LOCK, DIALECT, Catalogue
from ..postgres.errors import translate_error
from ..postgres.lane_state import META, SCHEMA
from ..postgres.literals import copy_rows, copy_statement
from ..postgres.names import check_columns, check_table, quote_name
from ..postgres.options import TableLocation, TableLocations
from ..postgres.types import ColumnConversion, find_conversion, new_type
from ..sql.dialect import text_literal
from .refresh_records import foreign_table_error, group_column, other_columns_error, refuse_group_type, table_remark


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
        """See `ports.projector.Projector.describe_versions`. VACUUM releases the space of replaced rows."""
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
            raise other_columns_error(projection)
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


# The records of refreshes, and the replacement of rows.

REFRESHES = sa.Table(
    "refreshes",
    META,
    sa.Column("target", sa.Text, primary_key=True),
    sa.Column("projection", sa.Text, nullable=False),
    sa.Column("relation", sa.BigInteger, nullable=False),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("others", sa.Boolean, nullable=False),
    sa.Column("columns", pg.JSONB, nullable=False),
    sa.Column("record", pg.JSONB, nullable=False),
    sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
)
"""The last refresh of each table, written with its rows.

- `number`: counts refreshes.
- `relation`: the table's oid.
- `others`: another program has written to the table since.
- `columns`: its names and types.
"""
CREATE_REFRESHES = sa.schema.CreateTable(REFRESHES, if_not_exists=True)

GUARD = "refresh_is_not_all"
"""A table's trigger and its function. Other writers wait for a running refresh, and are recorded."""
OWN = "replicator.refreshing"
"""The setting by which the function recognises a refresh; it contains the table's oid."""
MAKE_GUARD = (
    f"CREATE FUNCTION _replicator.{GUARD}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER "
    "SET search_path = pg_catalog, pg_temp AS $$ BEGIN "
    f"IF coalesce(current_setting('{OWN}', true), '') <> TG_RELID::text THEN "
    "UPDATE _replicator.refreshes SET others = true WHERE relation = TG_RELID::bigint; END IF; RETURN NULL; END $$"
)
HAS_GUARD = f"SELECT to_regproc('_replicator.{GUARD}') IS NOT NULL"

LOCK = sql.SQL("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))")
TABLE = sql.SQL(
    "SELECT c.oid::bigint, coalesce(obj_description(c.oid, 'pg_class'), ''), EXISTS (SELECT FROM pg_trigger t WHERE "
    "t.tgrelid = c.oid AND t.tgname = %s AND t.tgenabled IN ('O', 'A')), ARRAY(SELECT a.attname::text FROM pg_attribute a "
    "WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) FROM pg_class c WHERE c.oid = to_regclass(%s)"
)
KNOWN = sql.SQL("SELECT to_regclass('_replicator.refreshes') IS NOT NULL")
LAST = sql.SQL(
    "SELECT relation, number, others, columns::text, record::text FROM _replicator.refreshes WHERE target = %s {}"
)
NOTE = sql.SQL(
    "INSERT INTO _replicator.refreshes (target, projection, relation, number, others, columns, record) "
    "VALUES (%s, %s, %s, %s, false, %s::jsonb, %s::jsonb) ON CONFLICT (target) DO UPDATE SET projection = "
    "excluded.projection, relation = excluded.relation, number = excluded.number, others = false, "
    "columns = excluded.columns, record = excluded.record, updated_at = now()"
)


@dataclass(frozen=True, slots=True)
class RefreshedTable:
    """A table in the catalogue. `remark`: its comment. `guarded`: writes of others are recorded."""

    oid: int
    remark: str
    guarded: bool
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LastRefresh:
    """The record of the last refresh of a table."""

    relation: int
    number: int
    others: bool
    columns: Mapping[str, str]
    record: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RefreshState:
    """A table and its last refresh; None if they do not exist."""

    table: RefreshedTable | None
    last: LastRefresh | None

    @property
    def number(self) -> int:
        """The number of refreshes."""
        return self.last.number if self.last else 0

    @property
    def valid_refresh(self) -> LastRefresh | None:
        """The last refresh, if the table's rows have not changed since."""
        table, last = self.table, self.last
        same = table is not None and last is not None and table.guarded and table.oid == last.relation and not last.others
        return last if same else None


def read_refresh_state(cursor: psycopg.Cursor, place: TableLocation, *, lock: bool = False) -> RefreshState:
    """The state of a table. With `lock`, no other session refreshes it or writes to it until the transaction ends."""
    if lock:
        cursor.execute(LOCK, (f"replicator refresh {place.relation}",))
    (known,) = cursor.execute(KNOWN).fetchone() or (False,)
    row = None
    if known:
        row = cursor.execute(LAST.format(sql.SQL("FOR UPDATE" if lock else "")), (place.relation,)).fetchone()
    found = cursor.execute(TABLE, (GUARD, place.relation)).fetchone()
    table = None if found is None else RefreshedTable(found[0], found[1], found[2], tuple(found[3]))
    if row is None:
        return RefreshState(table, None)
    relation, number, others, columns, record = row
    return RefreshState(table, LastRefresh(relation, number, others, json.loads(columns), json.loads(record)))


def find_conversions(schema: pa.Schema, label: str) -> dict[str, tuple[str, ColumnConversion]]:
    """By column its PostgreSQL type and the conversion to it. Raises Fatal for a type that has none."""
    out = {}
    for field in schema:
        column = Column(field.name, field.type)
        there = new_type(column)
        found = None if pa.types.is_interval(field.type) else find_conversion(column, there)
        if found is None:
            raise Fatal(
                f"column {field.name!r} of {label} would be {field.type}, which is kept in no type of PostgreSQL",
                next_step="Cast it in the query, to text for example.",
            )
        out[field.name] = (there.compile(DIALECT), found)
    return out


def create_table(cursor: psycopg.Cursor, place: TableLocation, kinds: Mapping[str, str], remark: str) -> None:
    """Creates the table, and its schema if it does not exist (IF NOT EXISTS would need the right to create even
    then)."""
    (there,) = cursor.execute("SELECT to_regnamespace(%s) IS NOT NULL", (quote_name(place.schema),)).fetchone() or (False,)
    if not there:
        _run(cursor, f"CREATE SCHEMA {quote_name(place.schema)}")
    columns = ", ".join(f"{quote_name(name)} {kind}" for name, kind in kinds.items())
    _run(cursor, f"CREATE TABLE {place.relation} ({columns})")
    _run(cursor, f"COMMENT ON TABLE {place.relation} IS {text_literal(remark)}")


def diff_columns(found: RefreshState, kinds: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The columns to drop, which refreshes created, and the columns to add, for a table with columns of these
    kinds."""
    names = found.table.names if found.table else ()
    known = found.last.columns if found.last else {}
    gone = [name for name, kind in known.items() if name in names and kinds.get(name) != kind]
    return gone, [name for name in kinds if name not in names or name in gone]


def change_columns(cursor: psycopg.Cursor, place: TableLocation, gone: Sequence[str], added: Mapping[str, str]) -> None:
    """Changes the columns of the table, which keeps its grants. Added columns are last."""
    changes = [f"DROP COLUMN {quote_name(name)}" for name in gone]
    changes += [f"ADD COLUMN {quote_name(name)} {kind}" for name, kind in added.items()]
    _run(cursor, f"ALTER TABLE {place.relation} {', '.join(changes)}")


def install_guard(cursor: psycopg.Cursor, place: TableLocation) -> None:
    """Records writes of others, from the commit on. The trigger makes them wait before they lock a row, as a
    refresh does."""
    _run(cursor, f"DROP TRIGGER IF EXISTS {GUARD} ON {place.relation}")
    events = "BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE"
    _run(cursor, f"CREATE TRIGGER {GUARD} {events} ON {place.relation} EXECUTE FUNCTION _replicator.{GUARD}()")


def delete_groups(cursor: psycopg.Cursor, place: TableLocation, column: str | None, groups: Groups | None) -> None:
    """Deletes the rows with these groups in `column`, or all rows."""
    statement = f"DELETE FROM {place.relation}"
    if groups is None or column is None:
        _run(cursor, statement)
        return
    name = quote_name(column)
    which = f"{statement} WHERE {name} = ANY(\0) OR ({name} IS NULL AND \0)".replace("%", "%%").replace("\0", "%s")
    cursor.execute(which.encode(), ([one for one in groups if one is not None], None in groups), prepare=False)


def insert_rows(cursor: psycopg.Cursor, place: TableLocation, rows: pa.Table, fits: Mapping[str, ColumnConversion]) -> None:
    """Inserts rows. Raises Fatal for a value that its column cannot store."""
    wanted = pa.schema([pa.field(name, fits[name].arrow) for name in rows.column_names])
    try:
        cast = rows.cast(wanted)
    except pa.ArrowException as error:
        raise Fatal(f"a row for table {place.schema}.{place.table} has a value that its column does not hold") from error
    statement = copy_statement((place.schema, place.table), rows.column_names)
    copy_rows(cursor, statement, cast, [fits[name].form for name in rows.column_names])


def read_oid(cursor: psycopg.Cursor, place: TableLocation) -> int:
    """The oid of the table. Marks this transaction as a refresh of it."""
    (oid,) = cursor.execute("SELECT to_regclass(%s)::oid::bigint", (place.relation,)).fetchone() or (0,)
    cursor.execute("SELECT set_config(%s, %s, true)", (OWN, str(oid)))
    return int(oid)


def write_refresh(cursor: psycopg.Cursor, place: TableLocation, projection: str, last: LastRefresh) -> None:
    """Stores the record of a refresh."""
    told = (json.dumps(dict(last.columns)), json.dumps(dict(last.record)))
    cursor.execute(NOTE, (place.relation, projection, last.relation, last.number, *told))


def _run(cursor: psycopg.Cursor, statement: str) -> None:
    cursor.execute(statement.encode(), prepare=False)
