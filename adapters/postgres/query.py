"""Reads the rows of a query as Arrow, in one snapshot."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import psycopg
import pyarrow as pa
import sqlalchemy as sa

from replicator.domain.errors import ConfigProblem, Fatal, ReplicatorError

from .connection import PostgresSession
from .errors import describe_error_class, is_row_refusal, translate_error
from .names import quote_name
from .table_reader import BATCH, Read, read_type, select_expression, to_array
from .types import AnyType

BEGIN = "SET LOCAL enable_hashjoin = on; SET LOCAL enable_mergejoin = on; SET LOCAL cursor_tuple_fraction = 1"
"""Sessions of this program look up small batches by index. These queries read all rows."""
NOW = "SELECT (extract(epoch FROM now()) * 1000000)::bigint"
LISTS = "SELECT oid FROM pg_type WHERE oid = ANY(%s::oid[]) AND typcategory = 'A'"
AT_FAULT = ("42", "3F", "0A", "25006")
"""SQLSTATEs of a statement that the server does not accept, and of one that would write."""
DENIED = "42501"
BY_OID: dict[int, type[AnyType]] = {
    16: sa.Boolean,
    17: sa.LargeBinary,
    19: sa.String,
    20: sa.BigInteger,
    21: sa.SmallInteger,
    23: sa.Integer,
    25: sa.String,
    700: sa.REAL,
    701: sa.Double,
    1042: sa.String,
    1043: sa.String,
    1082: sa.Date,
    1083: sa.Time,
    1114: sa.DateTime,
}
"""Types by their numbers in pg_type; types with a parameter are in `_column_type`. All others are read as text."""
NUMERIC, TIMESTAMPTZ, TIMETZ = 1700, 1184, 1266


class SnapshotQuery:
    """A query that is read completely, over a new connection each time.

    `text` is a SELECT; `doing` completes "While ..." in sentences. Types are those of `table_reader`. Types
    without an Arrow counterpart, and numbers without a declared precision, are text.
    """

    def __init__(self, dsn: str, text: str, doing: str) -> None:
        self._session = PostgresSession(dsn, "snapshots")
        self._text = text.strip().removesuffix(";")
        self._doing = doing
        self._running: psycopg.Connection | None = None
        self._ended = threading.Event()

    def read_columns(self) -> pa.Schema:
        """The columns with the types of `read_rows`. Raises as `read_rows` does."""
        with self._transaction() as connection:
            return self._render_plan(connection)[0]

    def read_rows(self) -> tuple[int, pa.Table]:
        """All rows in one snapshot (REPEATABLE READ), and its time by the server's clock, in microseconds since
        1970.

        Raises:

        - Retryable while the server does not answer.
        - ConfigProblem for a query that the server does not accept, or with two columns of the same name.
        - EnvironmentProblem when the server refuses the role.
        - Fatal for a value that its column's type cannot store.
        """
        with self._transaction() as connection:
            [moment] = connection.execute(NOW).fetchone() or (0,)
            return moment, read_all_rows(connection, *self._render_plan(connection), self._doing)

    def cancel(self) -> None:
        """Ends a read in another thread, now or later. It raises Retryable there."""
        self._ended.set()
        running = self._running
        if running is not None and not running.closed:
            with suppress(psycopg.Error):  # An unreachable server ends it anyway.
                running.cancel_safe(timeout=2)

    @contextmanager
    def _transaction(self) -> Iterator[psycopg.Connection]:
        try:
            connection = self._session.open()
            try:
                connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                connection.read_only = True
                self._running = connection
                connection.execute(BEGIN, prepare=False)  # Several statements in one string cannot be prepared.
                if self._ended.is_set():
                    raise psycopg.errors.QueryCanceled
                yield connection
            finally:
                self._running = None
                connection.close()
        except psycopg.Error as error:
            raise translate_query_error(error, self._doing) from error

    def _render_plan(self, connection: psycopg.Connection) -> tuple[pa.Schema, bytes]:
        columns = describe_columns(connection, self._text)
        self._refuse_ambiguous([name for name, _ in columns])
        return render_select(columns, self._text)

    def _refuse_ambiguous(self, names: Sequence[str]) -> None:
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice or not names:
            what = f"has two columns with the name {twice[0]!r}" if twice else "gives no columns"
            raise ConfigProblem(f"While {self._doing}: the query {what}.", next_step="Name its columns with AS.")


def describe_columns(connection: psycopg.Connection, text: str) -> list[tuple[str, Read]]:
    """The columns of a query, in order, with the way each is read."""
    with connection.cursor(binary=True) as cursor:
        cursor.execute(f"SELECT * FROM (\n{text}\n) AS q LIMIT 0".encode())
        names = [column.name for column in cursor.description or ()]
        told = cursor.pgresult
        kinds = [] if told is None else [(told.ftype(i), told.fmod(i)) for i in range(told.nfields)]
        cursor.execute(LISTS, [[kind for kind, _ in kinds]])
        lists = {oid for [oid] in cursor.fetchall()}
    return [(name, _find_read_type(*kind, kind[0] in lists)) for name, kind in zip(names, kinds, strict=True)]


def render_select(columns: Sequence[tuple[str, Read]], text: str) -> tuple[pa.Schema, bytes]:
    """The schema of these columns, and the statement that selects them in the forms that Arrow converts."""
    schema = pa.schema([pa.field(name, kind) for name, (kind, _) in columns])
    chosen = ", ".join(select_expression(name, how) for name, (_, how) in columns)
    return schema, f"SELECT {chosen} FROM (\n{text}\n) AS q".encode()


def read_all_rows(connection: psycopg.Connection, schema: pa.Schema, statement: bytes, doing: str) -> pa.Table:
    """The rows of a statement of `render_select`, in the caller's transaction.

    Raises Fatal for a value that its column's type cannot store.
    """
    with connection.cursor("snapshot") as cursor:
        cursor.execute(statement, binary=True)
        batches = [_to_batch(rows, schema, doing) for rows in iter(lambda: cursor.fetchmany(BATCH), [])]
    return pa.Table.from_batches(batches, schema)


def table_query(table: str) -> str:
    """All rows of a table: `NAME`, or `SCHEMA.NAME`."""
    return f"SELECT * FROM {quote_name(*table.split('.', 1))}"


def _find_read_type(oid: int, parameter: int, is_list: bool) -> Read:
    if not is_list:
        return read_type(_column_type(oid, parameter))
    item = psycopg.adapters.types.get(oid)
    return read_type(sa.ARRAY(_column_type(item.oid if item else 0, parameter)))


def _column_type(oid: int, parameter: int) -> AnyType:
    if oid == NUMERIC:
        # The type modifier of numeric: 16 bits of precision, 11 of signed scale.
        given = parameter - 4
        return sa.Numeric(given >> 16 & 0xFFFF, ((given & 0x7FF) ^ 1024) - 1024) if given >= 0 else sa.Numeric()
    if oid in (TIMESTAMPTZ, TIMETZ):
        return sa.DateTime(timezone=True) if oid == TIMESTAMPTZ else sa.Time(timezone=True)
    return BY_OID.get(oid, sa.types.NullType)()


def _to_batch(rows: Sequence[Sequence[object]], schema: pa.Schema, doing: str) -> pa.RecordBatch:
    arrays = []
    for values, field in zip(zip(*rows, strict=True), schema, strict=True):
        try:
            arrays.append(to_array(values, field.type))
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            # Arrow's own message contains the value.
            raise Fatal(
                f"While {doing}: column {field.name!r} has a value that {field.type} does not hold.",
                next_step="Cast it in the query, to text for example, or leave it out.",
            ) from None
    return pa.record_batch(arrays, schema=schema)


def translate_query_error(error: psycopg.Error, doing: str) -> ReplicatorError:
    """An error of the server or the driver, raised while `doing`, as an error for the author of the query."""
    state = error.sqlstate or ""
    if is_row_refusal(error):
        return Fatal(
            f"While {doing}: {describe_error_class(error)} (SQLSTATE {state}).", next_step="Correct the query, or the rows."
        )
    if state.startswith(AT_FAULT) and state != DENIED:
        sentence = f"PostgreSQL said while {doing}: {error.diag.message_primary} (SQLSTATE {state})."
        return ConfigProblem(sentence, next_step="Correct 'table' or 'query' of the source.")
    return translate_error(error, doing)
