"""Projections in PostgreSQL: their tables, and their inputs.

Rows of a table and the record of their refresh are one transaction. All inputs in one database are read in one, too.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import psycopg
import pyarrow as pa
import sqlalchemy as sa
from psycopg import sql
from sqlalchemy.dialects import postgresql as pg

from replicator.domain.errors import Fatal, Retryable
from replicator.domain.projection import Groups, InputVersion, Projection, RefreshRecord, RefreshWork
from replicator.domain.table import Column
from replicator.ports.projector import GoldTable, GoldTables, InputMissing, InputTable, InputTables, ReplaceResult

from ...apply.projections import foreign_table_error, group_column, other_columns_error, table_remark
from ...postgres.connection import PostgresSession
from ...postgres.ddl import DDL_LOCK, DIALECT, Catalogue
from ...postgres.errors import translate_error
from ...postgres.lane_state import META, SCHEMA, parse_state
from ...postgres.literals import copy_rows, copy_statement
from ...postgres.names import TableLocation, check_columns, check_table, has_relation, quote_name
from ...postgres.table_reader import BEGIN, describe_columns, read_all_rows, render_select
from ...postgres.types import ColumnConversion, find_conversion, new_type
from ...sql.dialect import text_literal


class PostgresTables:
    """The tables of projections in a schema of a database.

    An existing table stays, with grants, indexes and comments of columns that others made.
    """

    def __init__(self, dsn: str, schema: str) -> None:
        self._dsn, self._schema = dsn, schema
        self._session = PostgresSession(dsn, "refreshes")
        self._is_ready = False
        """True when the database has the tables of refreshes."""
        self._seen: dict[str, RefreshState] = {}
        """By projection the state of its table when `find` read it."""
        self.feature = GoldTables(self.find, self.replace, self.end_versions)

    def find(self, projection: Projection) -> GoldTable:
        place = self._locate(projection)
        with self._session.cursor(f"looking at {projection.label}") as cursor:
            state = read_refresh_state(cursor, place)
        if state.table is not None and state.table.remark != table_remark(projection):
            raise foreign_table_error(projection)
        self._seen[projection.name] = state
        last = RefreshRecord.from_json(state.valid_refresh.record) if state.valid_refresh else None
        kinds = {name.lower(): kind for name, kind in state.last.columns.items()} if state.last else {}
        return GoldTable(last, place.url, GROUP_TYPES.get(kinds.get((projection.partition_by or "").lower(), "")))

    def replace(
        self, projection: Projection, work: RefreshWork, record: RefreshRecord, rows: pa.Table | None
    ) -> ReplaceResult:
        place, doing = self._locate(projection), f"refreshing {projection.label}"
        self._prepare_database(place)
        earlier_state = self._seen.pop(projection.name, None)
        try:
            with self._session.transaction(doing) as cursor:
                cursor.execute("BEGIN")
                cursor.execute("SET LOCAL synchronous_commit = on")
                state = read_refresh_state(cursor, place, lock=True)
                if state != earlier_state:
                    raise Retryable(f"another writer changed table {projection.label} first")
                if rows is None:
                    columns, oid = state.last.columns if state.last else {}, read_oid(cursor, place)
                else:
                    columns, oid = self._prepare_table(cursor, projection, work, rows.schema, state)
                    group = None if projection.partition_by is None else group_column(projection, rows.schema).name
                    delete_groups(cursor, place, group, work.groups)
                    conversions = {n: one for n, (_, one) in find_conversions(rows.schema, projection.label).items()}
                    insert_rows(cursor, place, rows, conversions)
                last = LastRefresh(oid, state.number + 1, False, columns, record.to_json())
                write_refresh(cursor, place, projection.name, last)
                cursor.execute("COMMIT")
        except psycopg.Error as error:
            raise translate_error(error, doing) from error
        return ReplaceResult(state.number + 1, 0 if rows is None else rows.num_rows)

    def end_versions(self, projection: Projection) -> str:
        """See `ports.projector.GoldTables.end_versions`. VACUUM releases the space of replaced rows."""
        place, doing = self._locate(projection), f"vacuuming {projection.label}"
        with self._session.cursor(doing) as cursor:
            if read_refresh_state(cursor, place).table is not None:
                cursor.execute(f"VACUUM (ANALYZE) {place.relation}".encode(), prepare=False)
        return ""

    def close(self) -> None:
        """Closes the connection; may be called twice."""
        self._session.close()
        self._seen.clear()

    def _prepare_table(
        self, cursor: psycopg.Cursor, projection: Projection, work: RefreshWork, schema: pa.Schema, state: RefreshState
    ) -> tuple[Mapping[str, str], int]:
        """Prepares the table for rows of that schema; returns its columns, and its oid.

        Raises Fatal when only some groups are replaced and the table has other columns.
        """
        place = self._locate(projection)
        check_columns(schema.names, projection.label)
        kinds = {name: kind for name, (kind, _) in find_conversions(schema, projection.label).items()}
        removals, added = diff_columns(state, kinds)
        if state.table is None:
            create_table(cursor, place, kinds, table_remark(projection))
        elif (removals or added) and work.groups is not None:
            raise other_columns_error(projection)
        oid = read_oid(cursor, place)
        if state.table is not None and (removals or added):
            change_columns(cursor, place, removals, {name: kinds[name] for name in added})
        if state.table is None or not state.table.guarded:
            install_guard(cursor, place)
        return kinds, oid

    def _prepare_database(self, place: TableLocation) -> None:
        """Creates the tables and functions for refreshes if they do not exist."""
        check_table(place.schema, "schema")
        check_table(place.table)
        if self._is_ready:
            return
        session, doing = self._session, f"preparing schema {SCHEMA}"
        Catalogue(session).create_own_tables(doing, [CREATE_REFRESHES], SCHEMA)
        with session.transaction(doing) as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (DDL_LOCK,))
            (has_guard,) = cursor.execute(HAS_GUARD.encode()).fetchone() or (False,)
            if not has_guard:
                cursor.execute(MAKE_GUARD.encode())
            cursor.execute("COMMIT")
        self._is_ready = True

    def _locate(self, projection: Projection) -> TableLocation:
        return TableLocation(self._dsn, self._schema, projection.into)


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
    row = None
    if has_relation(cursor, "_replicator.refreshes"):
        row = cursor.execute(LAST.format(sql.SQL("FOR UPDATE" if lock else "")), (place.relation,)).fetchone()
    table_row = cursor.execute(TABLE, (GUARD, place.relation)).fetchone()
    table = None if table_row is None else RefreshedTable(table_row[0], table_row[1], table_row[2], tuple(table_row[3]))
    if row is None:
        return RefreshState(table, None)
    relation, number, others, columns, record = row
    return RefreshState(table, LastRefresh(relation, number, others, json.loads(columns), json.loads(record)))


def find_conversions(schema: pa.Schema, label: str) -> dict[str, tuple[str, ColumnConversion]]:
    """By column its PostgreSQL type and the conversion to it. Raises Fatal for a type that has none."""
    out = {}
    for field in schema:
        column = Column(field.name, field.type)
        sql_type = new_type(column)
        conversion = None if pa.types.is_interval(field.type) else find_conversion(column, sql_type)
        if conversion is None:
            raise Fatal(
                f"column {field.name!r} of {label} would be {field.type}, which is kept in no type of PostgreSQL",
                next_step="Cast it in the query, to text for example.",
            )
        out[field.name] = (sql_type.compile(DIALECT), conversion)
    return out


def create_table(cursor: psycopg.Cursor, place: TableLocation, kinds: Mapping[str, str], remark: str) -> None:
    """Creates the table, and its schema if it does not exist (IF NOT EXISTS would need the right to create even
    then)."""
    schema = quote_name(place.schema)
    (has_schema,) = cursor.execute("SELECT to_regnamespace(%s) IS NOT NULL", (schema,)).fetchone() or (False,)
    if not has_schema:
        _run(cursor, f"CREATE SCHEMA {schema}")
    columns = ", ".join(f"{quote_name(name)} {kind}" for name, kind in kinds.items())
    _run(cursor, f"CREATE TABLE {place.relation} ({columns})")
    _run(cursor, f"COMMENT ON TABLE {place.relation} IS {text_literal(remark)}")


def diff_columns(state: RefreshState, kinds: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The columns to drop, which refreshes created, and the columns to add, for a table with columns of these
    kinds."""
    names = state.table.names if state.table else ()
    refreshed_columns = state.last.columns if state.last else {}
    removals = [name for name, kind in refreshed_columns.items() if name in names and kinds.get(name) != kind]
    return removals, [name for name in kinds if name not in names or name in removals]


def change_columns(cursor: psycopg.Cursor, place: TableLocation, removals: Sequence[str], added: Mapping[str, str]) -> None:
    """Changes the columns of the table, which keeps its grants. Added columns are last."""
    changes = [f"DROP COLUMN {quote_name(name)}" for name in removals]
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


def insert_rows(
    cursor: psycopg.Cursor, place: TableLocation, rows: pa.Table, conversions: Mapping[str, ColumnConversion]
) -> None:
    """Inserts rows. Raises Fatal for a value that its column cannot store."""
    schema = pa.schema([pa.field(name, conversions[name].arrow) for name in rows.column_names])
    try:
        typed_rows = rows.cast(schema)
    except pa.ArrowException as error:
        raise Fatal(f"a row for table {place.schema}.{place.table} has a value that its column does not hold") from error
    statement = copy_statement((place.schema, place.table), rows.column_names)
    copy_rows(cursor, statement, typed_rows, [conversions[name].form for name in rows.column_names])


def read_oid(cursor: psycopg.Cursor, place: TableLocation) -> int:
    """The oid of the table. Marks this transaction as a refresh of it."""
    (oid,) = cursor.execute("SELECT to_regclass(%s)::oid::bigint", (place.relation,)).fetchone() or (0,)
    cursor.execute("SELECT set_config(%s, %s, true)", (OWN, str(oid)))
    return int(oid)


def write_refresh(cursor: psycopg.Cursor, place: TableLocation, projection: str, last: LastRefresh) -> None:
    """Stores the record of a refresh."""
    texts = (json.dumps(dict(last.columns)), json.dumps(dict(last.record)))
    cursor.execute(NOTE, (place.relation, projection, last.relation, last.number, *texts))


def _run(cursor: psycopg.Cursor, statement: str) -> None:
    cursor.execute(statement.encode(), prepare=False)


# Inputs. A database has no old versions, so versions cannot be compared.

TABLES = sql.SQL("SELECT to_regclass(%s)::oid::text, to_regclass('_replicator.positions') IS NOT NULL")
LANES = sql.SQL(
    "SELECT pipeline, lane, state::text, updated_at FROM _replicator.positions WHERE target = %s ORDER BY pipeline, lane"
)
REFRESH = sql.SQL("SELECT number, others FROM _replicator.refreshes WHERE target = %s AND relation = %s::bigint")
EVENT_MAPS = ("event_data", "metadata")
"""The columns of an event store that hold JSON objects."""
NO_TABLE = (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName)


def describe_inputs(place: TableLocation) -> InputTables:
    """The tables in the schema of `place` as inputs, and its own table."""
    return InputTables(place.dsn, lambda table: place if table is None else replace(place, table=table), open_inputs)


@contextmanager
def open_inputs(places: Sequence[TableLocation]) -> Iterator[Sequence[InputTable]]:
    """See `ports.projector.InputTables.open`. All places are in one database. One read-only transaction (REPEATABLE READ)
    reads them; the columns of the tables cannot change meanwhile."""
    with _translate_errors("connecting"):
        connection = PostgresSession(places[0].dsn, "projections").open()
    with closing(connection):
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        # Before the first read: a table that is swapped in between would be empty.
        for place in places:
            with _translate_errors(_describe_read(place)):
                _lock_table(connection, place)
        with _translate_errors("reading"):
            connection.execute(BEGIN.encode(), prepare=False)
        tables = []
        for place in places:
            with _translate_errors(_describe_read(place)):
                version = _read_version(connection, place)
            if version is None:
                raise InputMissing(place)
            tables.append(InputTable(version, place.url, partial(_read_rows, connection, place)))
        yield tables


def _lock_table(connection: psycopg.Connection, place: TableLocation) -> None:
    try:
        connection.execute(f"LOCK TABLE {place.relation} IN ACCESS SHARE MODE".encode(), prepare=False)
    except NO_TABLE:
        raise InputMissing(place) from None


def _read_version(connection: psycopg.Connection, place: TableLocation) -> InputVersion | None:
    """None for a table that no lane or projection has written."""
    table, has_lanes = connection.execute(TABLES, (place.relation,)).fetchone() or ("", False)
    if place.events:
        cursor = connection.execute(f"SELECT count(*) FROM {place.relation}".encode(), prepare=False)
        (count,) = cursor.fetchone() or (0,)
        return InputVersion(table, count)
    rows = connection.execute(LANES, (place.relation,)).fetchall() if has_lanes else []
    if not rows:
        # The number of the refresh that wrote the table.
        has_refreshes = has_relation(connection.cursor(), "_replicator.refreshes")
        row = connection.execute(REFRESH, (place.relation, table)).fetchone() if has_refreshes else None
        return None if row is None else InputVersion(table, row[0], "changed by others" if row[1] else "")
    states = [parse_state(state, pipeline, lane) for pipeline, lane, state, _ in rows]
    # Positions are not enough: rows are also written out of band, deleted, and loaded again.
    mark = ", ".join(at.isoformat() for *_, at in rows)
    return InputVersion(table, sum(sum(one.position.values()) for one in states if one), mark)


def _read_rows(connection: psycopg.Connection, place: TableLocation, columns: Collection[str] | None) -> pa.Table:
    """See `ports.projector.InputTable.read`. Types are those of `table_reader`; the maps of events are maps."""
    doing, text = _describe_read(place), f"SELECT * FROM {place.relation}"
    with _translate_errors(doing):
        table_columns = describe_columns(connection, text)
        wanted = [one for one in table_columns if columns is None or one[0].lower() in columns] or table_columns[:1]
        rows = read_all_rows(connection, *render_select(wanted, text), doing)
    return json_to_maps(rows, EVENT_MAPS) if place.events else rows


def _describe_read(place: TableLocation) -> str:
    return f"reading {place.schema}.{place.table}"


def json_to_maps(rows: pa.Table, names: Collection[str]) -> pa.Table:
    """The rows with JSON objects in these columns as maps of text, as in a lake."""
    plain = (str, type(None))
    for at, name in enumerate(rows.column_names):
        if name in names:
            objects = [None if text is None else json.loads(text) for text in rows[name].to_pylist()]
            values = [
                one if one is None else [(key, v if isinstance(v, plain) else json.dumps(v)) for key, v in one.items()]
                for one in objects
            ]
            rows = rows.set_column(at, name, pa.array(values, pa.map_(pa.string(), pa.string())))
    return rows


@contextmanager
def _translate_errors(doing: str) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise translate_error(error, doing) from error
