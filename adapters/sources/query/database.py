"""A queried database: its connections, and the rows of a table or query."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from decimal import DecimalException
from threading import Event
from typing import Any

import psycopg
import pyarrow as pa
import sqlalchemy as sa
from pyarrow import types as t
from pydantic import SecretStr
from sqlalchemy.pool import NullPool

from replicator.domain.errors import ConfigProblem, DataLoss, Fatal, ReplicatorError, Retryable
from replicator.domain.plain_values import format_count
from replicator.extras import explain_missing_modules
from replicator.ports.runtime import Diagnosis

from ...postgres.connection import ANSWER_SECONDS, TimeoutConnection
from ...postgres.table_reader import translate_query_error
from .. import mysql_errors
from ..mysql_errors import MY_ANSWER_SECONDS, driver_message
from .columns import AnyType, CursorValues, SelectedColumn, Value, declared_type, select_column, to_array
from .options import QuerySettings

PARAMETER = re.compile(r"(?<![:\w\\]):(?=\w)")
"""Matches what SQLAlchemy would read as a parameter in a query's text; queries have none."""
FIRST_FETCH, MOST_FETCHED = 100, 5_000
"""Rows per fetch: at first, and at most."""
FETCHED_PER_CHUNK = 8
BRIEF = 10
"""The timeout for answers in seconds if a person waits."""
ON_CONNECT = {
    "postgresql": ("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", "SET cursor_tuple_fraction = 1"),
    # TIMESTAMP values are returned in the session's time zone; slow readers are dropped after
    # net_write_timeout.
    "mysql": ("SET SESSION TRANSACTION READ ONLY", "SET time_zone = '+00:00'", "SET net_write_timeout = 3600"),
}
# The drivers themselves wait forever on a dead connection. PyMySQL cannot check if the server still works, so
# the limit for an answer also limits a statement.
TO_SERVER = {
    "psycopg": {"connect_timeout": 10, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3},
    "pymysql": {"connect_timeout": 10, "read_timeout": MY_ANSWER_SECONDS, "write_timeout": MY_ANSWER_SECONDS},
}
LOCAL_CLOCK = {
    "mysql": "SELECT coalesce(convert_tz(utc_timestamp(6), '+00:00', @@global.time_zone), utc_timestamp(6))",
    "postgresql": "SELECT localtimestamp",
}
UTC_CLOCK = {"mysql": "SELECT utc_timestamp(6)"}


DRIVERS = {"mysql": "mysql+pymysql", "mariadb": "mariadb+pymysql", "postgres": "postgresql+psycopg"}
"""Drivers for schemes without one, for which SQLAlchemy would choose a driver that is not installed."""


def parse_url(dsn: SecretStr) -> sa.URL:
    """The URL with an installed driver. Raises ConfigProblem, without the text, for an invalid URL."""
    scheme, separator, rest = dsn.get_secret_value().partition("://")
    try:
        return sa.make_url(f"{DRIVERS.get(scheme, scheme)}{separator}{rest}")
    except (sa.exc.ArgumentError, ValueError):
        raise ConfigProblem(
            "`dsn` is not a URL such as postgresql://USER:PASSWORD@HOST:PORT/DATABASE", next_step="Correct it."
        ) from None


def family(dialect: sa.Dialect) -> str:
    """The kind of server: MariaDB is handled like MySQL."""
    return "mysql" if dialect.name == "mariadb" else dialect.name


class QueryDatabase:
    """The database in these options, with a connection for each read. Raises ConfigProblem for an unknown driver,
    EnvironmentProblem for a missing one. `brief`:
    every answer must arrive within seconds. With psycopg and PyMySQL all waits for answers are limited."""

    def __init__(self, options: QuerySettings, *, brief: bool = False) -> None:
        self._brief = brief
        self._options = options
        self._doing = f"reading {options.name}"
        self._ended = Event()
        url = parse_url(options.dsn)
        try:
            driver = url.get_driver_name()
            more = {k: v for k, v in TO_SERVER.get(driver, {}).items() if k not in url.query}
            if brief and driver == "pymysql":
                more |= {"read_timeout": BRIEF, "write_timeout": BRIEF}
            with explain_missing_modules(f"{options.name} ({url.drivername})"):
                self._engine = sa.create_engine(url, poolclass=NullPool, connect_args=more)
            if driver == "psycopg":
                sa.event.listen(self._engine, "do_connect", self._open_connection)
        except sa.exc.NoSuchModuleError as missing:
            raise ConfigProblem(
                f"SQLAlchemy has no driver called {url.drivername}.",
                next_step="Name another one in `dsn`: mysql+pymysql, postgresql+psycopg.",
            ) from missing

    @contextmanager
    def connect(self) -> Iterator[QueryConnection]:
        """A read-only connection. Raises:

        - Retryable while the server does not answer
        - ConfigProblem for an unknown table or column, or an invalid query
        - EnvironmentProblem if the server refuses the user
        - Fatal for a value that its column's type cannot hold
        """
        with translate_errors(self._doing, self._engine.dialect):
            connection = self._engine.connect()
            try:
                for statement in ON_CONNECT.get(family(self._engine.dialect), ()):
                    connection.exec_driver_sql(statement)
                connection.commit()  # Session settings apply to the transactions after this one.
                yield QueryConnection(connection, self._options, self._doing, self.refuse_cancelled)
            finally:
                # Not returned to the pool: a driver may read the rest of a result before it closes it.
                connection.invalidate()
                connection.close()

    def _open_connection(self, _: sa.Dialect, __: Any, args: Sequence[Any], named: dict[str, Any]) -> TimeoutConnection:
        """Opens the driver connection for SQLAlchemy."""
        connection = TimeoutConnection.connect(*args, **named)
        if not self._brief:
            connection.limit_waits(ANSWER_SECONDS, self._ended)
            connection.rollback()
        return connection

    def cancel(self) -> None:
        """End reads of other threads, now or later. They raise Retryable after the next rows, or if a psycopg server does
        not answer."""
        self._ended.set()

    def refuse_cancelled(self) -> None:
        """Raise Retryable if `cancel` was called."""
        if self._ended.is_set():
            raise Retryable(f"{self._doing.capitalize()} was ended.")


class QueryConnection:
    """Reads with one connection. `columns`: all columns, in order."""

    def __init__(self, connection: sa.Connection, options: QuerySettings, doing: str, turn: Callable[[], None]) -> None:
        self._connection, self._options, self._doing, self._turn = connection, options, doing, turn
        self._relation, self.columns = (
            _select_table(connection, options) if options.query is None else _select_query(options)
        )
        self._cursor = next((c for c in self.columns if c.name == options.cursor_column), None)
        if self._cursor is None:
            raise ConfigProblem(
                f"{options.name} has no column {options.cursor_column!r}.",
                next_step=f"There are: {', '.join(c.name for c in self.columns)}. Correct `cursor_column`.",
            )
        self.borders = CursorValues(options, self._cursor.kind)

    @property
    def schema(self) -> pa.Schema:
        """The columns with their types."""
        return pa.schema([pa.field(column.name, column.kind) for column in self.columns])

    def read_clock(self) -> Value | None:
        """The server's time in the type of the cursor column; None for numbers."""
        kind = self.borders.kind
        if not self.borders.is_time:
            return None
        texts = UTC_CLOCK if t.is_timestamp(kind) and kind.tz else LOCAL_CLOCK
        text = texts.get(family(self._connection.dialect))
        statement: Any = sa.text(text).columns(at=sa.DateTime()) if text else sa.select(sa.func.current_timestamp())
        return self.borders.normalize(self._connection.execute(statement).scalar_one())

    def refuse_nulls(self) -> None:
        """Raise DataLoss if the cursor column is NULL in a row: its changes would not be detected."""
        if self._cursor is not None and self._cursor.nullable:
            query: Any = (
                sa.select(sa.literal_column("1")).select_from(self._relation).where(self._cursor_column.is_(None)).limit(1)
            )
            if self._connection.execute(query).first() is not None:
                name = self._options.cursor_column
                raise DataLoss(
                    f"{self._options.name} has rows whose {name!r} is NULL: they never count as new.",
                    next_step=f"Give them a value; or write a `query` with coalesce({name}, ...) AS {name}.",
                )

    def check_query(self) -> None:
        """Run the query of `read_rows` without reading a row."""
        self.read_clock()
        every = self._add_range(sa.select(*(c.expression.label(c.name) for c in self.columns)), None, None)
        self._connection.execute(every.order_by(self._cursor_column).limit(0)).fetchall()

    def is_unique(self, names: Sequence[str]) -> bool:
        """True if the table has a primary key or unique index over these columns or a part of them."""
        inspector = sa.inspect(self._connection)
        schema, name = _split_table_name(self._options.table)
        unique = [inspector.get_pk_constraint(name, schema).get("constrained_columns") or []]
        unique += [list(one["column_names"]) for one in inspector.get_unique_constraints(name, schema)]
        indexes = (one["column_names"] for one in inspector.get_indexes(name, schema) if one["unique"])
        unique += [[str(c) for c in columns] for columns in indexes if None not in columns]
        return any(columns and set(columns) <= set(names) for columns in unique)

    def read_highest(self) -> Value | None:
        """The highest value of the cursor column; None without rows."""
        return self._read_one(sa.func.max(self._cursor_column))

    def read_lowest(self) -> Value | None:
        """The lowest value of the cursor column in the readable range."""
        return self._read_one(sa.func.min(self._cursor_column))

    def read_rows(self, lower: Value | None, upper: Value | None = None) -> Iterator[pa.Table]:
        """The rows from `lower` up to, but not including, `upper`, ordered by the cursor column, in small tables."""
        statement = self._add_range(sa.select(*(c.expression.label(c.name) for c in self.columns)), lower, upper)
        streamed = self._connection.execution_options(stream_results=True, max_row_buffer=MOST_FETCHED)
        result = streamed.execute(statement.order_by(self._cursor_column))
        batches: list[pa.RecordBatch] = []
        fetch, row_count, size = min(FIRST_FETCH, self._options.chunk_records), 0, 0
        while True:
            self._turn()
            rows = result.fetchmany(fetch)
            if not rows:
                break
            batch = pa.record_batch(
                [to_array(v, c, self._doing) for v, c in zip(zip(*rows, strict=True), self.columns, strict=True)],
                schema=self.schema,
            )
            batches.append(batch)
            row_count, size = row_count + len(rows), size + batch.nbytes
            if row_count >= self._options.chunk_records or size >= self._options.chunk_bytes:
                yield pa.Table.from_batches(batches)
                batches, row_count, size = [], 0, 0
            per_row = max(1, batch.nbytes // len(rows))
            fetch = max(1, min(MOST_FETCHED, 2 * fetch, self._options.chunk_bytes // FETCHED_PER_CHUNK // per_row))
            fetch = min(fetch, max(1, self._options.chunk_records - row_count))
        if batches:
            yield pa.Table.from_batches(batches)

    @property
    def _cursor_column(self) -> sa.ColumnElement[Any]:
        column: sa.ColumnElement[Any] = self._relation.c[self._options.cursor_column]
        return column

    def _add_range(self, statement: sa.Select[Any], lower: Value | None, upper: Value | None) -> sa.Select[Any]:
        first = self.borders.first
        conditions = [
            self._cursor_column.is_not(None),
            *(self._cursor_column > self._to_parameter(value) for value in (first,) if value is not None),
            *(self._cursor_column >= self._to_parameter(value) for value in (lower,) if value is not None),
            *(self._cursor_column < self._to_parameter(value) for value in (upper,) if value is not None),
        ]
        return statement.where(*conditions)

    def _to_parameter(self, value: Value) -> Any:
        """A value in the form of the server's driver: only PostgreSQL's drivers support time zones."""
        zoned = isinstance(value, datetime) and value.tzinfo is not None
        plain = value.replace(tzinfo=None) if zoned and family(self._connection.dialect) != "postgresql" else value
        return sa.literal(plain, sa.DateTime(timezone=zoned) if isinstance(value, datetime) else None)

    def _read_one(self, expression: sa.ColumnElement[Any]) -> Value | None:
        cell = self._connection.execute(self._add_range(sa.select(expression), None, None)).scalar_one()
        return None if cell is None else self.borders.normalize(cell)


def _split_table_name(table: str) -> tuple[str | None, str]:
    """Schema and name from `TABLE` or `SCHEMA.TABLE`."""
    first, dot, rest = table.partition(".")
    return (first, rest) if dot else (None, first)


def _select_table(connection: sa.Connection, options: QuerySettings) -> tuple[Any, tuple[SelectedColumn, ...]]:
    schema, name = _split_table_name(options.table)
    try:
        described = sa.inspect(connection).get_columns(name, schema)
    except sa.exc.NoSuchTableError:
        described = []
    if not described:
        raise ConfigProblem(
            f"The database has no table {options.table} that this user may see.", next_step="Correct `table` or `dsn`."
        )
    wide = connection.dialect.name == "sqlite"
    columns = [sa.column(one["name"], _widen_type(one["type"]) if wide else one["type"]) for one in described]
    relation = sa.table(name, *columns, schema=schema)
    nullable = {one["name"]: bool(one.get("nullable", True)) for one in described}
    return relation, tuple(select_column(relation.c[c.name], nullable[c.name], options.name) for c in columns)


def _widen_type(kind: AnyType) -> AnyType:
    """SQLite stores 64-bit integers and doubles, for any type of the column."""
    if isinstance(kind, sa.Integer):
        return sa.BigInteger()
    return sa.Double() if isinstance(kind, sa.Float) else kind


def _select_query(options: QuerySettings) -> tuple[Any, tuple[SelectedColumn, ...]]:
    kinds = {name: declared_type(name, type_name, options.name) for name, type_name in options.columns.items()}
    text = PARAMETER.sub(r"\\:", (options.query or "").strip().removesuffix(";"))
    columns = [sa.column(name, sql_type) for name, (_, sql_type) in kinds.items()]
    relation = sa.text(f"\n{text}\n").columns(*columns).subquery("q")
    return relation, tuple(SelectedColumn(name, kind, relation.c[name], True) for name, (kind, _) in kinds.items())


# Errors of SQLAlchemy and drivers as the program's errors: retryable or not. Messages contain no value of a row.

CORRECT = "Correct `table`, `query` or `cursor_column` of the source."
CAST = "Correct the row; or write a `query` that casts the column, to text for example, or leaves it out."


@contextmanager
def translate_errors(doing: str, dialect: sa.Dialect) -> Iterator[None]:
    """Translate database errors while `doing`."""
    try:
        yield
    except ReplicatorError:
        raise
    except sa.exc.DBAPIError as error:
        raise _translate_error(error, doing, dialect) from error
    except psycopg.Error as error:
        raise translate_query_error(error, doing) from error
    except sa.exc.SQLAlchemyError as error:
        raise ConfigProblem(f"SQLAlchemy refused while {doing}: {type(error).__name__}.", next_step=CORRECT) from error
    except (TypeError, ValueError, OverflowError, DecimalException) as error:
        # From a driver or SQLAlchemy; its message contains the value. TypeError: text in a numeric column of
        # SQLite.
        raise Fatal(f"While {doing}: a value cannot be read ({type(error).__name__}).", next_step=CAST) from None


def _translate_error(error: sa.exc.DBAPIError, doing: str, dialect: sa.Dialect) -> ReplicatorError:
    cause = error.orig
    if isinstance(cause, psycopg.Error):
        if isinstance(cause, psycopg.DataError) and cause.sqlstate is None:
            return Fatal(f"While {doing}: a date or time is beyond what is read here.", next_step=CAST)
        return translate_query_error(cause, doing)
    if dialect.name in ("mysql", "mariadb") and cause is not None and cause.args and isinstance(cause.args[0], int):
        return mysql_errors.translate_mysql_error(cause, doing, CORRECT)
    if error.connection_invalidated or isinstance(error, sa.exc.InterfaceError):
        return Retryable(f"The database is not reachable while {doing}: {driver_message(cause)}")
    if isinstance(error, sa.exc.DataError):
        return Fatal(f"While {doing}: {type(cause).__name__}.", next_step=CAST)
    return ConfigProblem(f"The database said while {doing}: {driver_message(cause)}", next_step=CORRECT)


# Check of a database for `doctor`: it answers, and has the required columns. Reads no row.


LOCATION_KEYS = ("dsn", "table", "query", "cursor_column", "start_after")
START = "Start the server, or correct host and port in `dsn`."
NO_DELETES = "A query does not see deleted rows. If that matters, read the table with `transport: snapshots`."


class QueryCheck:
    """`ports.runtime.Check` with the source's options in `LOCATION_KEYS`, and the table's `keys` and `schema` if given."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._name = name
        self._place = {key: options[key] for key in LOCATION_KEYS if options.get(key) is not None}
        self._keys = tuple(options.get("keys") or ())
        self._schema = dict(options.get("schema") or {})

    def diagnose(self) -> Sequence[Diagnosis]:
        declared = {"schema": self._schema} if self._schema else {}
        keys = self._keys or ("?",)
        try:
            options = QuerySettings.read({**self._place, "state": ".", "keys": keys, **declared})
            with QueryDatabase(options, brief=True).connect() as reading:
                missing = [key for key in self._keys if key not in reading.schema.names]
                if missing:
                    step = f"There are: {', '.join(reading.schema.names)}. Correct `keys`."
                    return [Diagnosis("error", self._name, f"{options.name} has no column {missing[0]!r}.", step)]
                reading.check_query()
                columns = format_count(len(reading.columns), "column")
                findings = [Diagnosis("ok", self._name, f"{options.name} can be queried: {columns}.")]
                if options.query is None and self._keys and not reading.is_unique(self._keys):
                    sentence = f"The database has no unique index on ({', '.join(self._keys)}) of {options.name}."
                    step = "If two rows have equal keys, one of them is lost. Correct `keys`, or create a unique index."
                    findings.append(Diagnosis("warning", self._name, sentence, step))
        except ReplicatorError as problem:
            return [Diagnosis("error", self._name, problem.sentence, problem.next_step or START)]
        return [*findings, Diagnosis("ok", self._name, NO_DELETES)]
