"""PostgreSQL databases as source of backfills."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pyarrow as pa
from psycopg.conninfo import conninfo_to_dict

from replicator.domain.errors import ConfigProblem, EnvironmentProblem, Fatal
from replicator.ports.reads import ChecksumKind, KeyRange, TableSplit
from replicator.ports.runtime import ShowLine

from ...postgres.checksums import SETTINGS, TableChecksums, to_texts
from ...postgres.connection import KEEPALIVE, PostgresSession, TimeoutConnection, application_name
from ...postgres.errors import describe_error_class, is_row_refusal, translate_error
from ...postgres.names import escape, quote_name
from ...sql.checksums import POSTGRES_INTEGERS, kind_of_postgres
from ...sql.dialect import POSTGRES
from ...sql.render import render_expression
from .database import (
    BackfillTable,
    Row,
    SnapshotPoint,
    divide_range,
    refuse_keyless,
    refuse_unread_columns,
    split_name,
)
from .postgres_columns import PostgresColumn
from .snapshot_reader import DatabaseComparison, TableBackfill

FETCH = 5_000
TRIES = 3
"""How often a snapshot is taken again if the table has other files by the time at which it is locked."""
LOCKED = """
SELECT bool_and(coalesce(c.relfilenode, 0) = coalesce(pg_relation_filenode(t.oid), 0)), max(r.relkind::text)
FROM pg_class r JOIN pg_namespace n ON n.oid = r.relnamespace
CROSS JOIN LATERAL (SELECT r.oid UNION SELECT p.relid FROM pg_partition_tree(r.oid) AS p) AS t
LEFT JOIN pg_class c ON c.oid = t.oid
WHERE n.nspname = %s AND r.relname = %s AND r.oid = to_regclass(%s)"""
"""If the files of the table, and of its partitions, are those of the snapshot. The functions return what is true now, and
the catalogue what the snapshot shows."""
DELIVERED = "SELECT confirmed_flush_lsn >= '0/0'::pg_lsn + %s FROM pg_replication_slots WHERE slot_name = %s"


LOCK_TIMEOUT, NO_SLOT = "55P03", "53400"
REFUSED = ("42", "22P02", "22007")
ALTERED = ("42P01", "42703", "3F")
"""There is no such table, column or schema."""


class PostgresLog:
    """`ConnectorLog` of Debezium's PostgreSQL connector. `SnapshotPoint.place` is one number; the sequence is `[place,
    0]`."""

    name = "postgresql"
    fields = (
        ("schema", "string", False),
        ("table", "string", False),
        ("txId", "int64", True),
        ("lsn", "int64", True),
        ("xmin", "int64", True),
    )

    def block(self, table: BackfillTable[Any], point: SnapshotPoint) -> Mapping[str, Any]:
        return {"sequence": json.dumps([str(point.place[0]), "0"]), "schema": table.schema, "table": table.name}

    def transaction(self, point: SnapshotPoint) -> None:
        """None: see `ConnectorLog.transaction`."""


class PostgresDatabase:
    """`SourceDatabase`. Options: `dsn`, `publication`, `slot`. `patience`: the longest wait for an open transaction, in
    seconds; without it there is no limit."""

    log = PostgresLog()

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._session = PostgresSession(str(options["dsn"]), "backfill")
        self._publication, self._slot = str(options["publication"]), str(options["slot"])
        self._patience: float | None = options.get("patience")

    def describe_table(self, table: str, keys: Sequence[str] | None) -> BackfillTable[PostgresColumn]:
        described, unread = self.describe_comparable(table, keys)
        refuse_unread_columns(table, unread)
        return described

    def describe_comparable(
        self, table: str, keys: Sequence[str] | None
    ) -> tuple[BackfillTable[PostgresColumn], Mapping[str, str]]:
        with self._translate_errors(table), closing(self._session.open(autocommit=True)) as connection:
            described = describe_readable_table(connection, table, self._publication, self._slot, keys)
        unread = {column.name: column.sql for column in described.columns if column.form is None}
        refuse_unread_columns(table, {name: sql for name, sql in unread.items() if name in described.keys})
        return replace(described, columns=tuple(column for column in described.columns if column.name not in unread)), unread

    def identity(self) -> str:
        """See `SourceDatabase.identity`. It also differs after a failover."""
        with self._translate_errors(""), closing(open_walsender(self._session)) as sender:
            identifier, timeline, _, database = _fetch_answer(sender, "IDENTIFY_SYSTEM")
        return f"{identifier}/{timeline}/{database}"

    @contextmanager
    def open_snapshot(self, table: BackfillTable[PostgresColumn], report: ShowLine) -> Iterator[_PostgresSnapshot]:
        name = f"{table.schema}.{table.name}"
        with self._translate_errors(name):
            oldest = describe_oldest_transaction(self._session)
        if oldest:
            report(f"{name}: waiting for the transactions that are open in the source (the oldest: {oldest})")
        for _ in range(TRIES):
            with (
                self._translate_errors(name),
                open_snapshot(self._session, self._publication, self._patience) as (connection, point),
            ):
                relation = _lock_table(connection, table)
                if relation is not None:
                    yield _PostgresSnapshot(connection, table, relation, point, self._slot)
                    return
        raise EnvironmentProblem(
            f"Table {name} was truncated, rewritten or replaced during each of {TRIES} attempts to read it.",
            next_step="Repeat the command when nothing does that.",
        )

    def locate_rows(
        self, table: BackfillTable[PostgresColumn], keys: pa.Table, last_keys: Sequence[Sequence[str]]
    ) -> Iterator[tuple[str, int]]:
        columns = table.key_columns
        names = [f"k{i}" for i, _ in enumerate(columns)]
        cast = ", ".join(f"c.{n}::{c.sql} AS {quote_name(c.name)}" for n, c in zip(names, columns, strict=True))
        cases = "".join(f" WHEN {_compare_keys(table, '<=')} THEN {i}" for i, _ in enumerate(last_keys))
        number = f"CASE{cases} ELSE {len(last_keys)} END" if cases else "0"
        key_arrays = ", ".join("%s::text[]" for _ in columns)
        query = (
            f"SELECT {escape(_object_expression(columns))}, {number} "
            f"FROM unnest({key_arrays}) AS c({', '.join(names)}), "
            f"LATERAL (SELECT {escape(cast)}) AS t"
        )
        parameters = [text for last in last_keys for text in last]
        arrays = [to_texts(keys[column.name]) for column in columns]
        name = f"{table.schema}.{table.name}"
        with self._translate_errors(name), closing(self._session.open(autocommit=True)) as connection:
            yield from connection.execute(query.encode(), [*parameters, *arrays]).fetchall()

    @contextmanager
    def _translate_errors(self, table: str) -> Iterator[None]:
        """Errors of the source's server. `table`: the one that is read, if it is one."""
        try:
            yield
        except psycopg.Error as error:
            state, text = error.sqlstate or "", error.diag.message_primary or ""
            if state == "42501":
                raise EnvironmentProblem(
                    f"The user of `database.dsn` lacks a right in the source: {text}.",
                    next_step=self._say_grants(table, text),
                ) from error
            if state == LOCK_TIMEOUT and self._patience is not None:
                raise EnvironmentProblem(
                    f"A transaction in the source stayed open for longer than {self._patience:.0f} s: "
                    f"{describe_oldest_transaction(self._session) or 'its session is not visible to this user'}.",
                    next_step="Wait longer with `--timeout`, or end its session: `SELECT pg_terminate_backend(PID)`.",
                ) from error
            if state == NO_SLOT:
                raise EnvironmentProblem(
                    f"The source has no free replication slot for a snapshot: {text}.",
                    next_step="Drop unused slots (`SELECT * FROM pg_replication_slots WHERE NOT active`), or raise "
                    "`max_replication_slots`. A snapshot needs two for a short time.",
                ) from error
            if state.startswith(ALTERED) and table:
                raise EnvironmentProblem(
                    f"Table {table} of the source was dropped or altered while it was read (SQLSTATE {state}).",
                    next_step="Repeat the command.",
                ) from error
            if state.startswith(REFUSED):
                raise EnvironmentProblem(
                    f"The source refuses a query of {table or 'its catalogue'}: {text} (SQLSTATE {state}).",
                    next_step="A condition (`--where`) must compare a column with values of its own type. Without a "
                    "condition, please report this.",
                ) from error
            if is_row_refusal(error):
                problem = describe_error_class(error)
                raise Fatal(
                    f"The source cannot read a value of {table or 'a table'}: {problem} (SQLSTATE {state}).",
                    next_step="Correct the row in the source, or leave the column out of the publication.",
                ) from error
            raise translate_error(error, f"reading {table} of the source" if table else "reading the source") from error

    def _say_grants(self, table: str, text: str) -> str:
        user = quote_name(str(conninfo_to_dict(self._session.dsn).get("user") or "the user"))
        schema, name = map(quote_name, split_name(table)) if table else ("SCHEMA", "TABLE")
        if "row-level security" in text:
            return f"ALTER ROLE {user} BYPASSRLS; otherwise it cannot see if there are rows that it does not see."
        if "schema" in text:
            return f"GRANT USAGE ON SCHEMA {schema} TO {user};"
        if "table" in text:
            return f"GRANT SELECT ON {schema}.{name} TO {user};"
        return f"ALTER ROLE {user} REPLICATION;"


class PostgresBackfill(TableBackfill):
    """`ports.source.Backfill` of a PostgreSQL table. Options of `TableBackfill` and `PostgresDatabase`."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(PostgresDatabase(options), options)


class PostgresComparison(DatabaseComparison):
    """`ports.reads.ComparableTable` of a PostgreSQL table. Options of `DatabaseComparison` and `PostgresDatabase`."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(PostgresDatabase(options), options)


@dataclass(frozen=True, slots=True)
class _PostgresSnapshot:
    """`TableSnapshot` of a connection in a transaction."""

    connection: psycopg.Connection[Any]
    table: BackfillTable[PostgresColumn]
    relation: str
    point: SnapshotPoint
    slot: str

    def describe_point(self) -> str:
        """See `TableSnapshot.describe_point`: an LSN."""
        (lsn,) = self.point.place
        return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"

    def count(self) -> int | None:
        """See `TableSnapshot.count`: as counted by the last ANALYZE."""
        name = f"{quote_name(self.table.schema)}.{quote_name(self.table.name)}"
        row = self.connection.execute(
            "SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass(%s)", (name,)
        ).fetchone()
        return row[0] if row and row[0] > 0 else None

    def rows(self, after: Sequence[str] | None) -> Iterator[Row]:
        query = _select_rows(self.table, self.relation)
        order = ", ".join(f"t.{quote_name(column.name)}" for column in self.table.key_columns)
        if after is None:
            query = f"{query} ORDER BY {order}"
        else:
            where = _compare_keys(self.table, ">")
            query = f"{escape(query)} WHERE {where} ORDER BY {escape(order)}"
        with self.connection.cursor("backfill") as cursor:
            cursor.itersize = FETCH
            cursor.execute(query.encode(), None if after is None else list(after))
            for key, row, *last in cursor:
                yield key, row, last

    def rows_with_keys(self, keys: pa.Table) -> Iterator[Row]:
        yield from self._read(*self._checksums.render_key_condition(keys))

    def rows_in(self, split: TableSplit, buckets: Sequence[int] | None) -> Iterator[Row]:
        columns = [(column.source, column) for column in split.columns]
        condition = self._checksums.render_buckets(columns, split.keys, split.within, buckets)
        where = "true" if split.where is None else escape(render_expression(split.where, POSTGRES, "t"))
        yield from self._read(f"{condition} AND {where}", ())

    def list_kinds(self) -> dict[str, ChecksumKind | None]:
        return {c.name: kind_of_postgres(c.sql, enumeration=c.kind == "e") for c in self.table.columns}

    def list_ranges(self, rows: int) -> Sequence[KeyRange]:
        """Ranges of equal width. Their number follows from the server's statistics."""
        first, count = self.table.key_columns[0], self.count()
        if first.sql not in POSTGRES_INTEGERS or count is None or count <= rows:
            return []
        bounds = f"SELECT min({quote_name(first.name)}), max({quote_name(first.name)}) FROM {self.relation}"
        [(low, high)] = self.connection.execute(bounds.encode()).fetchall()
        return [] if low is None else divide_range(first.name, low, high, -(-count // rows))

    def sum(self, split: TableSplit) -> pa.Table:
        columns = [(column.source, column) for column in split.columns]
        with self.connection.cursor() as cursor:
            return self._checksums.sum_rows(cursor, columns, split.keys, within=split.within, without=split.without)

    @property
    def _checksums(self) -> TableChecksums:
        return TableChecksums(self.relation, {column.name: column.sql for column in self.table.columns})

    def _read(self, condition: str, parameters: Sequence[object]) -> Iterator[Row]:
        self.connection.execute(SETTINGS, prepare=False)
        with self.connection.cursor("backfill") as cursor:
            cursor.itersize = FETCH
            cursor.execute(f"{escape(_select_rows(self.table, self.relation))} WHERE {condition}".encode(), parameters)
            for key, row, *last in cursor:
                yield key, row, last

    def is_delivered(self) -> bool:
        """See `TableSnapshot.is_delivered`: the connector confirms a position after the broker has its records."""
        [row] = self.connection.execute(DELIVERED, (self.point.place[0], self.slot)).fetchall() or [(None,)]
        if row[0] is None:
            raise EnvironmentProblem(
                f"The source has no replication slot {self.slot!r}.", next_step="Correct `database.slot` of the source."
            )
        return bool(row[0])


def _lock_table(connection: psycopg.Connection[Any], table: BackfillTable[PostgresColumn]) -> str | None:
    """Lock the table against changes of its structure until the end of the transaction, and return its name as SQL.

    None if it has other files than in the snapshot. A truncate or a rewrite after the snapshot, and before this lock, would
    make it look empty.
    """
    name = quote_name(table.schema, table.name)
    connection.execute(f"LOCK TABLE {name} IN ACCESS SHARE MODE".encode())
    [(is_same, kind)] = connection.execute(LOCKED, (table.schema, table.name, name)).fetchall()
    # A partitioned table has its rows in others. The connector sends rows of other child tables as those of the child.
    return (name if kind == "p" else f"ONLY {name}") if is_same else None


def _select_rows(table: BackfillTable[PostgresColumn], relation: str) -> str:
    """The query for all rows: JSON of the key, JSON of the row, and the key's values as text."""
    columns = ", ".join(
        [
            _object_expression(table.key_columns),
            _object_expression(table.columns),
            *(f"t.{quote_name(column.name)}::text" for column in table.key_columns),
        ]
    )
    return f"SELECT {columns} FROM {relation} AS t"


def _object_expression(columns: Sequence[PostgresColumn]) -> str:
    """An SQL expression for the JSON text of an object with these columns of `t`."""
    inner = [f"{c.required_form.for_column(f't.{quote_name(c.name)}')} AS {quote_name(c.name)}" for c in columns]
    whole = "row" + "_" * max((len(c.name) for c in columns), default=0)  # Longer than every column name.
    return f"(SELECT row_to_json({whole})::text FROM (SELECT {', '.join(inner)}) AS {whole})"


def _compare_keys(table: BackfillTable[PostgresColumn], operator: str) -> str:
    """A comparison of the key with given texts."""
    key_columns = ", ".join(escape(f"t.{quote_name(column.name)}") for column in table.key_columns)
    key_texts = ", ".join(f"%s::text::{escape(column.sql)}" for column in table.key_columns)
    return f"ROW({key_columns}) {operator} ROW({key_texts})"


# Descriptions of PostgreSQL tables for backfills: columns, key, and the part that the publication sends.

OLDEST = 140_000
COLUMNS = """
WITH RECURSIVE made AS (
    SELECT a.attnum, a.attname, a.attnotnull, a.attgenerated, a.atttypid AS oid, a.atttypmod AS modifier
    FROM pg_attribute a
    WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT m.attnum, m.attname, m.attnotnull, m.attgenerated, t.typbasetype, greatest(m.modifier, t.typtypmod)
    FROM made m JOIN pg_type t ON t.oid = m.oid WHERE t.typtype = 'd')
SELECT m.attname, m.attnotnull, m.attgenerated <> '', format_type(m.oid, m.modifier), t.typname, t.typtype::text, m.modifier,
       (SELECT i.typname FROM pg_type i WHERE t.typcategory = 'A' AND i.oid = t.typelem)
FROM made m JOIN pg_type t ON t.oid = m.oid WHERE t.typtype <> 'd' ORDER BY m.attnum"""
KEY = """
SELECT a.attname FROM pg_index i, unnest(i.indkey) WITH ORDINALITY AS k(attnum, place)
JOIN pg_attribute a ON a.attnum = k.attnum
WHERE i.indrelid = %s AND i.indisprimary AND a.attrelid = i.indrelid ORDER BY k.place"""
PUBLISHED = """
SELECT to_jsonb(p) FROM pg_publication_tables p
WHERE p.pubname = %s AND p.schemaname = %s AND p.tablename = %s"""
SLOT = "SELECT plugin FROM pg_replication_slots WHERE slot_name = %s AND database = current_database()"


def describe_readable_table(
    connection: psycopg.Connection[Any], table: str, publication: str, slot: str, keys: Sequence[str] | None
) -> BackfillTable[PostgresColumn]:
    """The table, if its rows are readable and its changes are sent. Raises ConfigProblem or EnvironmentProblem otherwise,
    with the next step. Columns of types that are not read are there, without a form."""
    if connection.info.server_version < OLDEST:
        raise EnvironmentProblem("The source's server is older than PostgreSQL 14.", next_step="Upgrade it.")
    _refuse_slot(connection, slot)
    schema, name = split_name(table)
    published = connection.execute(PUBLISHED, (publication, schema, name)).fetchone()
    if published is None and not _read_oid(connection, schema, name):
        raise EnvironmentProblem(
            f"The source has no table {table}.", next_step="Check the name: `replicator plan` lists the tables."
        )
    if published is None:
        raise EnvironmentProblem(
            f"Publication {publication} has no table {table}, so its changes would not follow the rows that are read.",
            next_step=f"ALTER PUBLICATION {publication} ADD TABLE {table}; and see `replicator doctor`.",
        )
    if published[0].get("rowfilter"):
        raise ConfigProblem(
            f"The publication sends only some rows of {table}, and a backfill reads all.",
            next_step="Take the WHERE out of the publication, and say `where` in the config.",
        )
    oid = _read_oid(connection, schema, name)
    rows = connection.execute(COLUMNS, (oid,)).fetchall()
    sent = published[0].get("attnames")
    if sent is None:
        sent = [column for column, _, is_generated, *_ in rows if not is_generated]
    columns = tuple(PostgresColumn(column, required, *more) for column, required, _, *more in rows if column in sent)
    primary_key = tuple(row[0] for row in connection.execute(KEY, (oid,)).fetchall())
    own = refuse_keyless(table, columns, tuple(keys or primary_key))
    return BackfillTable(connection.info.dbname, schema, name, columns, own)


def _refuse_slot(connection: psycopg.Connection[Any], slot: str) -> None:
    row = connection.execute(SLOT, (slot,)).fetchone()
    if row is None:
        raise EnvironmentProblem(
            f"The database has no replication slot {slot}, so changes that follow the snapshot would be lost.",
            next_step="Start the connector first (with `snapshot.mode: no_data`), or correct `database.slot` of the source.",
        )
    if row[0] != "pgoutput":
        raise EnvironmentProblem(
            f"Slot {slot} is of the plugin {row[0]}, in whose stream a snapshot has no exact place.",
            next_step="Use `plugin.name: pgoutput`, or Debezium's own incremental snapshots (docs/reference/debezium.md).",
        )


def _read_oid(connection: psycopg.Connection[Any], schema: str, name: str) -> int:
    row = connection.execute(
        "SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s",
        (schema, name),
    ).fetchone()
    return 0 if row is None else int(row[0])


# A PostgreSQL snapshot with an exactly known position among the connector's changes.

FOLLOW = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput', true)"
MARK = "SELECT pg_logical_emit_message(true, 'replicator', 'backfill')"
EXPORT = "CREATE_REPLICATION_SLOT {} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT"
COMMITS = """
SELECT max(lsn) - '0/0'::pg_lsn FROM pg_logical_slot_peek_binary_changes(
    %s, %s::pg_lsn, NULL, 'proto_version', '1', 'publication_names', %s, 'messages', 'true')
WHERE get_byte(data, 0) = 67 AND lsn <= %s::pg_lsn"""
"""The end of the last commit in the publication's stream up to a position: 67 is the C of a commit message."""
OLDEST_TRANSACTION = """
SELECT pid, extract(epoch FROM now() - xact_start)::bigint, application_name FROM pg_stat_activity
WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid() ORDER BY xact_start LIMIT 1"""
NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
BEGIN = (
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT '{}'; SET LOCAL cursor_tuple_fraction = 1; "
    "SET LOCAL idle_in_transaction_session_timeout = 0; SET LOCAL row_security = off"
)
"""The transaction is idle while a lane passes its point, and while rows are compared. With row security, a user would not
see all rows: without it, the server refuses to read."""


@contextmanager
def open_snapshot(
    session: PostgresSession, publication: str, patience: float | None
) -> Iterator[tuple[psycopg.Connection[Any], SnapshotPoint]]:
    """A connection in a transaction with a consistent snapshot, and its point.

    Debezium orders a change by the commit before its own (`source.sequence`), and then by its own position. So read rows
    are placed at 0 directly after the last commit that they contain, where no change is.

    The server itself returns that commit. A slot that exports a snapshot names the log position between visible and
    invisible changes. Another slot, created before, returns the last commit before that position in the connector's own
    stream. A message between the two ensures that there is one. Both slots end with their connections; only that message
    is written.

    Waits for open transactions, at most `patience` seconds for each. Raises the driver's errors.
    """
    with closing(session.open(autocommit=True)) as follower, closing(session.open(autocommit=True)) as reader:
        wait = f"SET lock_timeout = {int((patience or 0) * 1000)}".encode()
        follower.execute(wait)
        slot = f"replicator_backfill_{follower.info.backend_pid}"
        follower.execute(FOLLOW, (slot,))
        follower.execute(MARK)
        with closing(open_walsender(session)) as sender:
            sender.execute(wait)
            _, point, name, _ = _fetch_answer(sender, EXPORT.format(f"{slot}_x"))
            [micros] = reader.execute(NOW).fetchone() or (0,)
            reader.execute(BEGIN.format(name).encode(), prepare=False)
        [lsn] = follower.execute(COMMITS, (slot, point, quote_name(publication), point)).fetchone() or (None,)
        follower.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
        if lsn is None:
            raise EnvironmentProblem(
                "The stream of changes shows no commit of a message, so the snapshot has no place in it.",
                next_step="Use Debezium's own incremental snapshots (docs/reference/debezium.md).",
            )
        yield reader, SnapshotPoint((int(lsn),), micros)
        reader.rollback()


def describe_oldest_transaction(session: PostgresSession) -> str:
    """The transaction in the source that has written and is open longest, in words; empty if none is seen."""
    with closing(session.open(autocommit=True)) as connection:
        row = connection.execute(OLDEST_TRANSACTION).fetchone()
    if row is None:
        return ""
    pid, seconds, name = row
    return f"pid {pid}, open for {seconds} s" + (f", {name}" if name else "")


def open_walsender(session: PostgresSession) -> psycopg.Connection[Any]:
    """A connection for replication commands."""
    connection = TimeoutConnection.connect(
        session.dsn,
        autocommit=True,
        prepare_threshold=None,
        replication="database",
        application_name=application_name(f"backfill {os.getpid()}"),
        connect_timeout=10,
        **KEEPALIVE,
    )
    session.limit_waits(connection)
    return connection


def _fetch_answer(sender: psycopg.Connection[Any], command: str) -> list[str]:
    """The single row that a replication command returns, as text."""
    row = sender.execute(command.encode()).fetchone() or ()
    return [value.decode() if isinstance(value, bytes) else str(value) for value in row]
