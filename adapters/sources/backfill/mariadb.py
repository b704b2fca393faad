"""MariaDB servers as source of backfills."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pymysql
import sqlalchemy as sa
from pymysql.converters import encoders

from replicator.domain.errors import ConfigProblem, EnvironmentProblem, Fatal, ReplicatorError, Retryable
from replicator.ports.reads import CHECKSUMS, ChecksumKind, KeyRange, TableSplit
from replicator.ports.runtime import Diagnosis, ShowLine

from ...kafka.connect_worker import read_offsets
from ...sql.checksums import SummedColumn, kind_of_mariadb, render_bucket_condition, render_sums
from ...sql.dialect import MARIADB
from .. import mysql_errors
from .database import (
    BackfillTable,
    Row,
    SnapshotPoint,
    divide_range,
    refuse_keyless,
    refuse_unread_columns,
    split_name,
)
from .mariadb_columns import INTEGERS, MariaDbColumn, Raw
from .snapshot_reader import DatabaseComparison, TableBackfill

FIRST_FETCH, MOST_FETCHED = 100, 5_000
"""Rows per fetch: at first, and at most."""
FETCHED_BYTES = 8 << 20
COMPARED = 200
COMPARED_CHARACTERS = 256 << 10
"""The number of keys that one statement compares, and the most SQL for them."""
IDENTITY = "SELECT concat_ws('/', @@server_id, @@hostname, @@port, @@log_bin_basename)"


class MariaDbLog:
    """`ConnectorLog` of Debezium's connector for MariaDB. `SnapshotPoint.place` has the number of a binlog file, a
    position in it, and a row."""

    name = "mariadb"
    fields = (
        ("table", "string", True),
        ("server_id", "int64", False),
        ("gtid", "string", True),
        ("file", "string", False),
        ("pos", "int64", False),
        ("row", "int64", False),
        ("thread", "int64", True),
        ("query", "string", True),
    )

    def block(self, table: BackfillTable[Any], point: SnapshotPoint) -> Mapping[str, Any]:
        file, position, row = point.place
        return {"table": table.name, "server_id": 0, "file": f"binlog.{file:06}", "pos": position, "row": row}

    def transaction(self, point: SnapshotPoint) -> Mapping[str, Any]:
        """See `ConnectorLog.transaction`: changes are ordered by their count in the transaction, read rows by `row`."""
        return {"id": None, "total_order": point.place[-1], "data_collection_order": 0}


class MariaDbDatabase:
    """`SourceDatabase`. Options: `dsn`; `bigint_unsigned`, as in the connector; `connect`: `url` and `connector`, if they
    are known."""

    log = MariaDbLog()

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._dsn = str(options["dsn"])
        self._precise = options.get("bigint_unsigned") == "precise"
        self._connect: Mapping[str, str] | None = options.get("connect")

    def describe_comparable(
        self, table: str, keys: Sequence[str] | None
    ) -> tuple[BackfillTable[MariaDbColumn], Mapping[str, str]]:
        with translate_errors(f"reading {table}"), closing(connect(self._dsn)) as connection:
            return describe_readable_table(connection, table, keys, precise=self._precise)

    def describe_table(self, table: str, keys: Sequence[str] | None) -> BackfillTable[MariaDbColumn]:
        described, unread = self.describe_comparable(table, keys)
        refuse_unread_columns(table, unread)
        return described

    def identity(self) -> str:
        with translate_errors("reading the source"), closing(connect(self._dsn)) as connection:
            return str(fetch_rows(connection, IDENTITY)[0][0])

    @contextmanager
    def open_snapshot(self, table: BackfillTable[MariaDbColumn], report: ShowLine) -> Iterator[_MariaDbSnapshot]:  # noqa: ARG002
        name = f"{table.schema}.{table.name}"
        with translate_errors(f"reading {name}"), open_snapshot(self._dsn) as (connection, point):
            # From here on the table cannot be altered; and the user may read all of its columns.
            fetch_rows(connection, f"SELECT * FROM {quote_name(table.schema, table.name)} LIMIT 0")
            now, _ = describe_table(connection, table.schema, table.name, table.keys, precise=self._precise)
            if now != table:
                raise Retryable(f"Columns of {name} were changed while its snapshot was taken.")
            yield _MariaDbSnapshot(connection, table, point, self._connect)

    def locate_rows(
        self, table: BackfillTable[MariaDbColumn], keys: pa.Table, last_keys: Sequence[Sequence[str]]
    ) -> Iterator[tuple[str, int]]:
        columns = table.key_columns
        values = [[column.to_raw(value) for value in keys[column.name].to_pylist()] for column in columns]
        rows = list(zip(*values, strict=True))
        writer = _JsonWriter(table, columns)
        if not last_keys:
            yield from ((writer.to_json(row), 0) for row in rows)
            return
        with translate_errors(f"reading {table.schema}.{table.name}"), closing(connect(self._dsn)) as connection:
            last = [_key_expressions(connection, table, key) for key in last_keys]
            for first in range(0, len(rows), COMPARED):
                group = rows[first : first + COMPARED]
                cases = []
                for row in group:
                    key = _key_expressions(connection, table, list(map(_to_typed_text, row)))
                    which = (f"WHEN {_compare_keys(key, one, '<=')} THEN {i}" for i, one in enumerate(last))
                    cases.append(f"CASE {' '.join(which)} ELSE {len(last)} END")
                [numbers] = fetch_rows(connection, f"SELECT {', '.join(cases)}")
                yield from zip(map(writer.to_json, group), map(int, numbers), strict=True)


class MariaDbBackfill(TableBackfill):
    """`ports.source.Backfill` of a MariaDB table. Options of `TableBackfill` and `MariaDbDatabase`."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(MariaDbDatabase(options), options)


class MariaDbComparison(DatabaseComparison):
    """`ports.reads.ComparableTable` of a MariaDB table. Options of `DatabaseComparison` and `MariaDbDatabase`."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(MariaDbDatabase(options), options)


@dataclass(frozen=True, slots=True)
class _MariaDbSnapshot:
    """`TableSnapshot` of a connection in a transaction."""

    connection: pymysql.Connection[Any]
    table: BackfillTable[MariaDbColumn]
    point: SnapshotPoint
    connect: Mapping[str, str] | None

    def describe_point(self) -> str:
        """See `TableSnapshot.describe_point`: the number of the binlog file, and the position in it."""
        return ":".join(map(str, self.point.place[:2]))

    def is_delivered(self) -> bool | None:
        """See `TableSnapshot.is_delivered`. The server does not know what the connector has sent, but Kafka Connect does.
        Records alone do not show it: a table without changes has none."""
        if self.connect is None:
            return None
        return any(is_passed(offset, self.point) for offset in read_offsets(self.connect["url"], self.connect["connector"]))

    def list_kinds(self) -> dict[str, ChecksumKind | None]:
        return {column.name: kind_of_mariadb(column.sql, precise=column.precise) for column in self.table.columns}

    def list_ranges(self, rows: int) -> Sequence[KeyRange]:
        """Ranges of equal width. Their number follows from the server's estimate."""
        first, count = self.table.key_columns[0], self.count()
        # Targets may have unsigned bigints as signed ones, in another order.
        if first.type not in INTEGERS or (first.type == "bigint" and first.unsigned) or count is None or count <= rows:
            return []
        name = quote_name(first.name)
        [(low, high)] = fetch_rows(self.connection, f"SELECT min({name}), max({name}) FROM {self._relation}")
        return [] if low is None else divide_range(first.name, int(low), int(high), -(-count // rows))

    def sum(self, split: TableSplit) -> pa.Table:
        """See `TableSnapshot.sum`. The sums of excluded rows are subtracted: so their number does not matter."""
        columns = [self._to_summed(column.source) for column in split.columns]
        keys = [self._to_summed(name) for name in split.keys]
        totals: Counter[tuple[int, str]] = Counter()
        without, within = split.without, split.within
        if within is not None and without.num_rows and within.above is not None:
            without = without.filter(pc.greater(without[within.column], within.above))
        if within is not None and without.num_rows and within.upto is not None:
            without = without.filter(pc.less_equal(without[within.column], within.upto))
        conditions = self._render_groups(without)
        for sign, condition in [(1, "1 = 1"), *((-1, condition) for condition in conditions)]:
            table_rows = f"(SELECT * FROM {self._relation} AS t WHERE {condition})"
            query = render_sums(MARIADB, table_rows, columns, keys, within=within)
            for bucket, *sums in fetch_rows(self.connection, query):
                for name, value in zip(CHECKSUMS.names[1:], sums, strict=True):
                    totals[int(bucket), name] += sign * int(value)
        rows = [
            {"bucket": bucket, **{name: totals[bucket, name] for name in CHECKSUMS.names[1:]}}
            for bucket in sorted({bucket for bucket, _ in totals})
            if totals[bucket, "rows"]
        ]
        return pa.Table.from_pylist(rows, CHECKSUMS)

    def rows_in(self, split: TableSplit, buckets: Sequence[int] | None) -> Iterator[Row]:
        keys = [self._to_summed(name) for name in split.keys]
        yield from self._fetch(None, render_bucket_condition(MARIADB, keys, buckets, split.within))

    def rows_with_keys(self, keys: pa.Table) -> Iterator[Row]:
        for condition in self._render_groups(keys):
            yield from self._fetch(None, condition)

    @property
    def _relation(self) -> str:
        return quote_name(self.table.schema, self.table.name)

    def _to_summed(self, name: str) -> SummedColumn:
        column = next(column for column in self.table.columns if column.name == name)
        return SummedColumn(name, kind_of_mariadb(column.sql, precise=column.precise) or "integer", column.sql)

    def _render_groups(self, keys: pa.Table) -> Iterator[str]:
        """Conditions for the rows with some of the keys each."""
        columns = self.table.key_columns
        values = [[_to_typed_text(c.to_raw(value)) for value in keys[c.name].to_pylist()] for c in columns if keys.num_rows]
        group: list[str] = []
        for texts in zip(*values, strict=True):
            equal = []
            for column, expression in zip(columns, _key_expressions(self.connection, self.table, texts), strict=True):
                # An index needs the comparison by the collation, for which other texts may be equal.
                name = f"t.{quote_name(column.name)}"
                is_text = column.type in ("char", "varchar")
                exact = f" AND CAST({name} AS BINARY) = CAST({expression} AS BINARY)" if is_text else ""
                equal.append(f"{name} = {expression}{exact}")
            group.append(" AND ".join(equal))
            if len(group) == COMPARED or sum(map(len, group)) > COMPARED_CHARACTERS:
                yield f"({' OR '.join(group)})"
                group = []
        if group:
            yield f"({' OR '.join(group)})"

    def count(self) -> int | None:
        """See `TableSnapshot.count`: InnoDB's estimate."""
        query = "SELECT table_rows FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
        rows = fetch_rows(self.connection, query, (self.table.schema, self.table.name))
        return int(rows[0][0]) or None if rows and rows[0][0] is not None else None

    def rows(self, after: Sequence[str] | None) -> Iterator[Row]:
        yield from self._fetch(after, "1 = 1")

    def _fetch(self, after: Sequence[str] | None, condition: str) -> Iterator[Row]:
        """Fetches some rows at a time: the server drops clients that read one long result slowly."""
        table = self.table
        of_key = [table.columns.index(column) for column in table.key_columns]
        row_of, key_of = _JsonWriter(table, table.columns), _JsonWriter(table, table.key_columns)
        names = [quote_name(column.name) for column in table.key_columns]
        selected = (c.required_form.select_template.replace("{c}", quote_name(c.name)) for c in table.columns)
        query, order = f"SELECT {', '.join(selected)} FROM {self._relation} AS t", ", ".join(names)
        fetch, last = FIRST_FETCH, after
        while True:
            where = condition
            if last is not None:
                expressions = _key_expressions(self.connection, table, last)
                where = f"{condition} AND {_compare_keys(names, expressions, '>')}"
            rows = fetch_rows(self.connection, f"{query} WHERE {where} ORDER BY {order} LIMIT {fetch}")
            size = 0
            for values in rows:
                key = [values[i] for i in of_key]
                row = row_of.to_json(values)
                size, last = size + len(row), list(map(_to_typed_text, key))
                yield key_of.to_json(key), row, last
            if len(rows) < fetch:
                return
            fetch = max(1, min(MOST_FETCHED, 2 * fetch, FETCHED_BYTES * fetch // size))


class _JsonWriter:
    """Writes values of some of a table's columns as JSON."""

    def __init__(self, table: BackfillTable[MariaDbColumn], columns: Sequence[MariaDbColumn]) -> None:
        self._table, self._columns = table, columns
        self._encoders = [(f"{json.dumps(c.name, ensure_ascii=False)}:", c.required_form.json) for c in columns]

    def to_json(self, values: Sequence[Raw | None]) -> str:
        """The text of an object. Raises Fatal for a value without a Connect form."""
        parts = []
        for number, ((name, encode), value) in enumerate(zip(self._encoders, values, strict=True)):
            try:
                parts.append(name + ("null" if value is None else encode(value)))
            except ValueError:
                column, table = self._columns[number], self._table
                raise Fatal(
                    f"{column.name} of {table.schema}.{table.name} holds a value of the type {column.sql} that is no time.",
                    next_step="Correct the row in the source: days and months of zero are no dates.",
                ) from None
        return f"{{{','.join(parts)}}}"


def _to_typed_text(value: Raw) -> str:
    """The text from which a column's `typed` expression restores the value."""
    return value.hex() if isinstance(value, bytes) else value


def _key_expressions(
    connection: pymysql.Connection[Any], table: BackfillTable[MariaDbColumn], texts: Sequence[str]
) -> list[str]:
    with connection.cursor() as cursor:
        return [
            cursor.mogrify(column.required_form.typed or "", (text,))
            for column, text in zip(table.key_columns, texts, strict=True)
        ]


def _compare_keys(left: Sequence[str], right: Sequence[str], operator: str) -> str:
    """A comparison of two keys, column by column: the server can use an index for it, unlike for a row comparison."""
    if len(left) == 1:
        return f"{left[0]} {operator} {right[0]}"
    rest = _compare_keys(left[1:], right[1:], operator)
    return f"({left[0]} {operator[0]} {right[0]} OR ({left[0]} = {right[0]} AND {rest}))"


# Descriptions of MariaDB tables for backfills, with checks that their changes are sent.

ComparableTable = tuple[BackfillTable[MariaDbColumn], Mapping[str, str]]
"""See `SourceDatabase.describe_comparable`."""
OLDEST = (10, 6)
INSTEAD = "Use Debezium's own incremental snapshots (docs/reference/debezium.md)."
WANTED = (("log_bin", "1"), ("binlog_format", "ROW"), ("binlog_row_image", "FULL"))
"""Global variables with the values that they need, so that the binlog contains whole rows."""
READERS = "SELECT count(*) FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'"
SELECT_TABLE = """
SELECT table_schema, table_name, table_type, engine FROM information_schema.tables
WHERE table_schema = %s AND table_name = %s"""
COLUMNS = """
SELECT column_name, is_nullable = 'NO', concat(column_type, coalesce(concat(' COLLATE ', collation_name), '')), data_type,
       coalesce(datetime_precision, numeric_precision, 0), coalesce(numeric_scale, 0),
       coalesce(character_set_name, ''), coalesce(collation_name, '')
FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position"""
INDEXES = """
SELECT index_name, column_name FROM information_schema.statistics
WHERE table_schema = %s AND table_name = %s AND non_unique = 0 ORDER BY index_name <> 'PRIMARY', index_name, seq_in_index"""


def describe_readable_table(
    connection: pymysql.Connection[Any], table: str, keys: Sequence[str] | None, *, precise: bool
) -> ComparableTable:
    """`describe_table`, if the rows are readable and the changes are sent. Raises ConfigProblem or EnvironmentProblem
    otherwise, with the next step."""
    schema, name = split_name(table)
    refuse_server(connection)
    refuse_unread(connection)
    for _, _, only, without, *_ in fetch_rows(connection, "SHOW MASTER STATUS"):
        if (only and schema not in only.split(",")) or schema in (without or "").split(","):
            raise EnvironmentProblem(
                f"The server leaves the database {schema} out of its binlog (binlog_do_db, binlog_ignore_db).",
                next_step="Take the filter out of the server's options.",
            )
    rows = [row for row in fetch_rows(connection, SELECT_TABLE, (schema, name)) if row[:2] == (schema, name)]
    if not rows:
        raise ConfigProblem(
            f"The database has no table {schema}.{name} that this user may see.",
            next_step="Correct the name, letter by letter, or GRANT SELECT.",
        )
    [(_, _, kind, engine)] = rows
    if kind != "BASE TABLE" or (engine or "").lower() != "innodb":
        noun = f"a table of the engine {engine}" if kind == "BASE TABLE" else f"a {kind.lower()}"
        raise ConfigProblem(f"{schema}.{name} is {noun}, for which a snapshot is not consistent.", next_step=INSTEAD)
    return describe_table(connection, schema, name, keys, precise=precise)


def refuse_server(connection: pymysql.Connection[Any]) -> None:
    """Refuse other servers, and servers with unsuitable binlog settings."""
    [(version,)] = fetch_rows(connection, "SELECT version()")
    if "mariadb" not in version.lower():
        raise EnvironmentProblem(f"The source's server is MySQL {version}, and no MariaDB.", next_step=INSTEAD)
    numbers = re.match(r"(?:5\.5\.5-)?(\d+)\.(\d+)", version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < OLDEST:
        raise EnvironmentProblem("The source's server is older than MariaDB 10.6.", next_step="Upgrade it.")
    [values] = fetch_rows(connection, f"SELECT {', '.join(f'@@global.{name}' for name, _ in WANTED)}")
    for (name, setting), value in zip(WANTED, values, strict=True):
        if value != setting:
            raise EnvironmentProblem(
                f"{name} of the source's server is {value}, so its binlog does not hold whole rows.",
                next_step=f"Set {name}={'ON' if setting == '1' else setting} on the server, for all sessions.",
            )


def refuse_unread(connection: pymysql.Connection[Any]) -> None:
    """Refuse a server whose binlog has no reader."""
    [(readers,)] = fetch_rows(connection, READERS)
    if readers == "0":
        raise EnvironmentProblem(
            "No visible session reads the binlog, so changes after the snapshot would be lost.",
            next_step="Start the connector first (with `snapshot.mode: no_data`); and GRANT PROCESS to the user of "
            "`database.dsn`, who does not see the connector otherwise.",
        )


def describe_table(
    connection: pymysql.Connection[Any], schema: str, name: str, keys: Sequence[str] | None, *, precise: bool
) -> ComparableTable:
    """The table with its current columns, without those of types that are not read. Also these columns, with their types."""
    qualified = f"{schema}.{name}"
    rows = fetch_rows(connection, COLUMNS, (schema, name))
    columns = tuple(
        MariaDbColumn(column, required == "1", sql, kind, int(digits), int(scale), charset, collation, precise)
        for column, required, sql, kind, digits, scale, charset, collation in rows
    )
    unread = {column.name: column.sql for column in columns if column.form is None}
    indexes: dict[str, list[str]] = {}
    for index, column in fetch_rows(connection, INDEXES, (schema, name)):
        indexes.setdefault(index, []).append(column)
    own = refuse_keyless(qualified, columns, tuple(keys or indexes.get("PRIMARY") or ()))
    refuse_unread_columns(qualified, {column: sql for column, sql in unread.items() if column in own})
    # Rows are read in batches, in the order of a unique index over exactly the key.
    ordered = next((tuple(index) for index in indexes.values() if set(index) == set(own)), None)
    if ordered is None:
        raise ConfigProblem(
            f"Table {qualified} has no unique index over {', '.join(own)}, by which its rows could be read.",
            next_step=f"Add one, or correct `keys` of the table. {INSTEAD}",
        )
    read = tuple(column for column in columns if column.name not in unread)
    table = BackfillTable(schema, schema, name, read, ordered)
    for key in table.key_columns:
        if not key.required or key.required_form.typed is None:
            reason = f"is of the type {key.sql}" if key.required else "may be NULL"
            raise ConfigProblem(
                f"{key.name} of the key of {qualified} {reason}, so rows cannot be read in its order.", next_step=INSTEAD
            )
    return table, unread


# A MariaDB snapshot with an exactly known binlog position.

REPEATABLE = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"
BEGIN = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"
WHERE = "SHOW STATUS WHERE Variable_name IN ('Binlog_snapshot_file', 'Binlog_snapshot_position')"
NOW = "SELECT CAST(unix_timestamp(now(6)) * 1000000 AS SIGNED)"
PREPARED = "SHOW GLOBAL STATUS LIKE 'Com_xa_prepare'"
FILE = re.compile(r".*\.(\d{1,17})\Z")


@contextmanager
def open_snapshot(dsn: str) -> Iterator[tuple[pymysql.Connection[Any], SnapshotPoint]]:
    """A connection in a transaction with a consistent snapshot, and its point.

    The server itself returns the binlog position of the snapshot. It reads both under the lock that makes transactions
    visible one by one, in binlog order. The next transaction begins at that position, and every event is longer than one
    byte. So no change of any transaction is at the position one byte before. Rows read there are above all changes that
    they contain and below all others. The third number, the clock, orders two snapshots without a change between them.

    Takes no lock and waits for no transaction. Raises the driver's errors.
    """
    with closing(connect(dsn)) as reader:
        fetch_rows(reader, REPEATABLE)
        fetch_rows(reader, BEGIN)
        status = {name.lower(): value for name, value in fetch_rows(reader, WHERE)}
        match = FILE.match(status.get("binlog_snapshot_file", ""))
        if match is None:
            raise EnvironmentProblem(
                "The server does not show the binlog position of a snapshot (Binlog_snapshot_file).",
                next_step="Switch the binlog on (log_bin), in files that are numbered.",
            )
        refuse_prepared(reader)
        micros = int(fetch_rows(reader, NOW)[0][0])
        position = int(match[1]), int(status["binlog_snapshot_position"]) - 1, micros
        yield reader, SnapshotPoint(position, micros)
        reader.rollback()


def is_passed(offset: Mapping[str, Any], point: SnapshotPoint) -> bool:
    """True if the connector has sent everything that is in the binlog before a point, by an offset that it has stored.

    `file` and `pos` are the place at which it continues: the start of a transaction, or the end of the last one. An offset
    of its own snapshot has such a place before the rows are sent.
    """
    match = FILE.match(str(offset.get("file")))
    return bool(match and not offset.get("snapshot") and (int(match[1]), int(offset["pos"])) > point.place[:2])


def refuse_prepared(connection: pymysql.Connection[Any]) -> None:
    """Refuse a server on which transactions are prepared before they are committed. Their changes are in the binlog at
    the prepare, and become visible later. A snapshot in between has no exact position."""
    if fetch_rows(connection, "XA RECOVER") or any(int(count) for _, count in fetch_rows(connection, PREPARED)):
        raise EnvironmentProblem(
            "Programs use XA PREPARE on this server, whose transactions are in the binlog before they are visible: "
            "a snapshot has no exact place among them.",
            next_step="Use Debezium's own incremental snapshots (docs/reference/debezium.md).",
        )


# MariaDB connections that return values unconverted.

SESSION = (
    # TIMESTAMP values are returned in the session's time zone.
    "SET SESSION time_zone = '+00:00', sql_mode = '', max_statement_time = 0, idle_transaction_timeout = 0, "
    "idle_readonly_transaction_timeout = 0, wait_timeout = 28800"
)
CORRECT = "Correct the table's name, or `database` of the source."
Record = tuple[Any, ...]


def connect(dsn: str, seconds: int = mysql_errors.MY_ANSWER_SECONDS) -> pymysql.Connection[Any]:
    """A connection in autocommit mode: text in UTF-8, times in UTC, no conversions. `seconds`: the timeout for answers,
    if `dsn` has none. Raises the driver's errors, and ConfigProblem for a URL option that the driver does not support."""
    _, _, rest = dsn.partition("://")
    url = sa.make_url(f"mysql+pymysql://{rest}")
    _, options = sa.create_engine(url).dialect.create_connect_args(url)
    more = {
        "connect_timeout": 10,
        "read_timeout": seconds,
        "write_timeout": seconds,
        "charset": "utf8mb4",
        "init_command": SESSION,
        "program_name": "replicator backfill",
    }
    try:
        return pymysql.connect(**{**more, **options, "autocommit": True, "conv": dict(encoders)})
    except TypeError as error:
        raise ConfigProblem(
            "The driver of MariaDB does not know an option in the URL.", next_step="Correct `database.dsn` of the source."
        ) from error


def fetch_rows(connection: pymysql.Connection[Any], query: str, parameters: Sequence[Any] = ()) -> list[Record]:
    """The rows of a query; values are text, bytes or None."""
    with connection.cursor() as cursor:
        cursor.execute(query, parameters or None)
        return list(cursor.fetchall())


def quote_name(*parts: str) -> str:
    """The parts as one qualified identifier."""
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)


@contextmanager
def translate_errors(doing: str) -> Iterator[None]:
    """Translate errors of the driver while `doing`."""
    try:
        yield
    except pymysql.MySQLError as error:
        raise mysql_errors.translate_mysql_error(error, doing, CORRECT) from error
    except OSError as error:
        raise Retryable(f"The server is not reachable while {doing}: {type(error).__name__}.") from error


# Check of the source's MariaDB server: binlog, readers of the binlog, tables.


START = "Start the server, or correct host and port in `database.dsn` of the source."
ANSWER_SECONDS = 10
TABLES = """
SELECT concat(t.table_schema, '.', t.table_name), EXISTS (
    SELECT 1 FROM information_schema.statistics s
    WHERE s.table_schema = t.table_schema AND s.table_name = t.table_name AND s.index_name = 'PRIMARY')
FROM information_schema.tables t WHERE t.table_type = 'BASE TABLE'"""


class MariaDbCheck:
    """`ports.runtime.Check`. Options: `dsn`, and `tables` with names and globs of the required tables."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._name = name
        self._dsn = str(options["dsn"])
        self._wanted = tuple(options.get("tables", ()))

    def diagnose(self) -> Sequence[Diagnosis]:
        try:
            with translate_errors("looking at it"), closing(connect(self._dsn, ANSWER_SECONDS)) as connection:
                return list(self._check_server(connection))
        except ReplicatorError as problem:
            return [Diagnosis("error", self._name, problem.sentence, problem.next_step or START)]

    def _check_server(self, connection: pymysql.Connection[Any]) -> Iterator[Diagnosis]:
        [(version, user)] = fetch_rows(connection, "SELECT version(), current_user()")
        yield Diagnosis("ok", self._name, f"The server {version} answers to {user}.")
        yield self._check_one(connection, refuse_server, "error", "The binlog holds whole rows.")
        yield self._check_one(connection, refuse_unread, "warning", "The binlog is being read.")
        yield self._check_one(connection, refuse_prepared, "warning", "No transaction was prepared before it was committed.")
        tables: dict[str, str] = dict(fetch_rows(connection, TABLES))
        for pattern in self._wanted:
            names = [name for name in tables if fnmatchcase(name, pattern)]
            if not names:
                sentence, step = (
                    f"No table of the server is called {pattern}.",
                    "Correct `match` under `tables`, or GRANT SELECT.",
                )
                yield Diagnosis("warning", self._name, sentence, step)
            for name in (name for name in names if tables[name] == "0"):
                sentence = f"Table {name} has no primary key."
                yield Diagnosis("warning", self._name, sentence, "Add one, or use `policy: append` for it.")

    def _check_one(
        self, connection: pymysql.Connection[Any], refuse: Callable[[pymysql.Connection[Any]], None], level: Any, fine: str
    ) -> Diagnosis:
        try:
            refuse(connection)
        except ReplicatorError as problem:
            return Diagnosis(level, self._name, problem.sentence, problem.next_step)
        return Diagnosis("ok", self._name, fine)
