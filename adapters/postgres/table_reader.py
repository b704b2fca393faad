"""Reads targets, and the rows of a query, as Arrow tables."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime

import psycopg
import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from replicator.domain.errors import ConfigProblem, Fatal, ReplicatorError, Retryable
from replicator.domain.read_query import BuildReadQuery, InvalidReadQuery, ReadQuery, ReadTimeout

from .connection import PostgresSession
from .ddl import Catalogue
from .errors import describe_error_class, is_row_refusal, translate_error
from .literals import INFINITE_MICROS, plain_text
from .names import escape, quote_name
from .types import AnyType

BATCH = 20_000
LATEST, EARLIEST = INFINITE_MICROS
MICROS = (
    f"CASE WHEN isfinite({{0}}) THEN (extract(epoch FROM {{0}}) * 1000000)::bigint "
    f"WHEN {{0}} > 'epoch' THEN {LATEST} WHEN {{0}} < 'epoch' THEN {EARLIEST} END"
)
DAYS = (
    "CASE WHEN isfinite({0}) THEN {0} - date '1970-01-01' "
    "WHEN {0} > 'epoch' THEN 2147483647 WHEN {0} < 'epoch' THEN -2147483648 END"
)
TIME_MICROS = "(extract(epoch FROM {0}) * 1000000)::bigint"
AS_IS, AS_TEXT = "{0}", "{0}::text"


class TableReader:
    """`ports.reads.Reader` over one schema, and `ports.sink.SinkFeatures.select`.

    Types without an Arrow counterpart are read as text, infinite timestamps as their numbers (`literals`).
    """

    def __init__(self, dsn: str, schema: str, timeout_seconds: float) -> None:
        self._session = PostgresSession(dsn, "query")
        self._catalogue = Catalogue(self._session)
        self._schema = schema
        self._timeout = timeout_seconds

    def tables(self) -> Sequence[str]:
        return self._catalogue.list_tables(self._schema)

    def read(
        self,
        name: str,
        *,
        version: int | None = None,
        as_of: datetime | None = None,
        where: str | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """See `ports.reads.Reader.read`. `where` runs as one statement in a read-only transaction with a time
        limit."""
        if version is not None or as_of is not None:
            raise _no_versions_error(name)
        plans = {column: read_type(sql_type) for column, sql_type in self._read_columns(name).items()}
        columns = ", ".join(select_expression(n, how) for n, (_, how) in plans.items())
        condition = f"\nWHERE (\n{where}\n)" if where else ""
        query = escape(f"SELECT {columns} FROM {quote_name(self._schema, name)}{condition}\nLIMIT ") + "%s"
        doing = f"reading {self._schema}.{name}"
        try:
            with self._session.transaction(doing) as cursor:
                self._begin(cursor, self._timeout)
                cursor.execute(query.encode(), (limit,), prepare=True, binary=True)
                return self._read_cursor(cursor, pa.schema([pa.field(n, kind) for n, (kind, _) in plans.items()]))
        except Fatal as error:
            # The server did not understand the statement. Without a condition the query is ours, so the caller cannot
            # correct it.
            state = getattr(error.__cause__, "sqlstate", None) or ""
            if where is None or not state.startswith("42") or state == DENIED:
                raise
            message = str(error.__cause__).partition("\n")[0]
            raise ConfigProblem(
                f"the condition on table {name!r} cannot be evaluated: {message}",
                next_step="Write a SQL condition on the table's columns.",
            ) from error
        except psycopg.Error as error:
            raise translate_error(error, doing) from error
        finally:
            self._session.close()

    def select(
        self,
        name: str,
        choose: BuildReadQuery,
        *,
        version: int | None = None,
        as_of: datetime | None = None,
        seconds: float | None = None,
    ) -> pa.Table:
        """See `ports.sink.SinkFeatures.select`. It is one statement with parameters, in a read-only transaction."""
        if version is not None or as_of is not None:
            raise _no_versions_error(name)
        columns = self._read_columns(name)
        plans = {column: read_type(sql_type) for column, sql_type in columns.items()}
        schema = pa.schema([pa.field(column, kind) for column, (kind, _) in plans.items()])
        wanted = choose(schema)
        if wanted.limit == 0:
            return schema.empty_table()
        read_query = PostgresReadQuery(self._schema, name, columns, wanted)
        doing, limit = f"reading {self._schema}.{name}", min(self._timeout, seconds or self._timeout)
        try:
            with self._session.transaction(doing) as cursor:
                self._begin(cursor, limit)
                cursor.execute(*read_query.null_check())
                certain = {row[0] for row in cursor.fetchall()}
                select_list = ", ".join(select_expression(n, how) for n, (_, how) in plans.items())
                cursor.execute(*read_query.render(select_list, certain), prepare=True, binary=True)
                return self._read_cursor(cursor, schema)
        except (Fatal, Retryable) as error:
            problem = comparison_error(error, name) or timeout_error(error, name, limit)
            if problem is None:
                raise
            raise problem from error
        except psycopg.Error as error:
            raise comparison_error(error, name) or translate_error(error, doing) from error
        finally:
            self._session.close()

    def _read_columns(self, name: str) -> dict[str, AnyType]:
        columns = self._catalogue.read_columns(self._schema, name)
        if columns is None:
            names = ", ".join(self.tables()) or "none yet"
            raise Fatal(f"there is no table {name} in schema {self._schema}", next_step=f"There are: {names}.")
        return columns

    def _begin(self, cursor: psycopg.Cursor, seconds: float) -> None:
        cursor.execute("BEGIN TRANSACTION READ ONLY ISOLATION LEVEL REPEATABLE READ")
        cursor.execute(f"SET LOCAL statement_timeout = {int(seconds * 1000)}".encode())
        cursor.execute("SET LOCAL enable_hashjoin = on; SET LOCAL enable_mergejoin = on", prepare=False)

    def _read_cursor(self, cursor: psycopg.Cursor, schema: pa.Schema) -> pa.Table:
        batches = []
        while rows := cursor.fetchmany(BATCH):
            arrays = [to_array(values, f.type) for values, f in zip(zip(*rows, strict=True), schema, strict=True)]
            batches.append(pa.record_batch(arrays, schema=schema))
        cursor.execute("COMMIT")
        return pa.Table.from_batches(batches, schema)

    def close(self) -> None:
        """Closes the connection; may be called twice."""
        self._session.close()


def _no_versions_error(name: str) -> Fatal:
    return Fatal(
        f"table {name} is in PostgreSQL, which keeps no earlier versions",
        next_step="Query a Delta target, or leave out the version and the time.",
    )


ReadForm = tuple[pa.DataType, str]
"""The Arrow type of a column, and the SQL template that selects it in a form for this type."""


def select_expression(name: str, how: str) -> str:
    """The expression that selects a column with a template of `read_type`."""
    return how.replace("{0}", quote_name(name))


def to_array(values: Sequence[object], kind: pa.DataType) -> pa.Array:
    """The selected values as a column. Raises Arrow's error for a value that the type cannot store."""
    t = pa.types
    if t.is_timestamp(kind) or t.is_time(kind):
        return pa.array(values, pa.int64()).cast(kind)
    if t.is_date(kind):
        return pa.array(values, pa.int32()).cast(kind)
    if t.is_decimal(kind):
        return pa.array(values, pa.string()).cast(kind)
    return pa.array(values, kind)


def stored_form(kind: pa.DataType) -> tuple[pa.DataType, str]:
    """How to read a column whose values were written from this Arrow type.

    Returns the type to read, which can be cast to `kind`, and the SQL template.
    """
    t = pa.types
    if t.is_timestamp(kind):
        return pa.timestamp("us", kind.tz), MICROS
    if t.is_date(kind):
        return pa.date32(), DAYS
    if t.is_time(kind):
        return pa.time64("us"), TIME_MICROS
    plain = t.is_integer(kind) or t.is_floating(kind) or t.is_boolean(kind)
    if plain or t.is_binary(kind) or t.is_large_binary(kind):
        return kind, AS_IS
    return (kind, AS_TEXT) if t.is_decimal(kind) else (pa.string(), AS_TEXT)


def read_type(sql_type: AnyType) -> ReadForm:
    """How to read a column of that PostgreSQL type."""
    if isinstance(sql_type, pg.DOMAIN):
        return read_type(sql_type.data_type)
    if isinstance(sql_type, sa.ARRAY):
        item, how = read_type(sql_type.item_type)
        return (pa.list_(item), AS_IS) if how == AS_IS else (pa.list_(pa.string()), "{0}::text[]")
    for kind, make in READ:
        if isinstance(sql_type, kind):
            return make(sql_type)
    return pa.string(), AS_TEXT


def _numeric(sql_type: AnyType) -> ReadForm:
    precision, scale = getattr(sql_type, "precision", None), getattr(sql_type, "scale", None) or 0
    if precision is None or precision > 76:
        return pa.string(), AS_TEXT
    kind = pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
    return kind, AS_TEXT


def _plain(kind: pa.DataType, how: str = AS_IS) -> Callable[[AnyType], ReadForm]:
    return lambda _: (kind, how)


def _timestamp(sql_type: AnyType) -> ReadForm:
    return pa.timestamp("us", "UTC" if getattr(sql_type, "timezone", False) else None), MICROS


def _time(sql_type: AnyType) -> ReadForm:
    return (pa.string(), AS_TEXT) if getattr(sql_type, "timezone", False) else (pa.time64("us"), TIME_MICROS)


READ: tuple[tuple[type[AnyType], Callable[[AnyType], ReadForm]], ...] = (
    (sa.SmallInteger, _plain(pa.int16())),
    (sa.BigInteger, _plain(pa.int64())),
    (sa.Integer, _plain(pa.int32())),
    (sa.REAL, _plain(pa.float32())),
    (sa.Float, _plain(pa.float64())),
    (sa.Numeric, _numeric),
    (sa.Boolean, _plain(pa.bool_())),
    (sa.LargeBinary, _plain(pa.binary())),
    (sa.DateTime, _timestamp),
    (sa.Date, _plain(pa.date32(), DAYS)),
    (sa.Time, _time),
    (sa.Enum, _plain(pa.string(), AS_TEXT)),
    (sa.String, _plain(pa.string())),
)


# The statement that selects a page of rows, with quoted names and with values as parameters.

COMPARED = (
    *(sa.Integer, sa.Float, sa.Numeric, sa.Boolean, sa.LargeBinary, sa.DateTime, sa.Date, sa.Time, sa.Enum, sa.String),
    *(sa.Uuid, sa.Interval, pg.INTERVAL, pg.INET, pg.CIDR, pg.MACADDR, pg.OID),
)
"""Types that the server orders. All others are compared as their displayed text."""
CANCELLED = "57014"
NOT_NULL = (
    "SELECT a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid "
    "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s AND a.attnotnull AND a.attnum > 0"
)


@dataclass
class PostgresReadQuery:
    """The rows of `wanted` in the table `name` of a schema, which has these `columns`."""

    schema: str
    name: str
    columns: Mapping[str, AnyType]
    wanted: ReadQuery
    values: list[object] = field(default_factory=list)

    def null_check(self) -> tuple[bytes, tuple[str, str]]:
        """The query for the columns without NULL, and its values."""
        return NOT_NULL.encode(), (self.schema, self.name)

    def render(self, selected: str, certain: Set[str]) -> tuple[bytes, list[object]]:
        """The statement for the expressions `selected`, and its values. Columns in `certain` contain no NULL."""
        self.values = []
        terms = [self._term(one.column, one.operator, one.value) for one in self.wanted.conditions]
        if self.wanted.start:
            terms.append(self._start_condition(certain))
        where = f"\nWHERE {' AND '.join(terms)}" if terms else ""
        order = ", ".join(self._column(name) for name in self.wanted.order)
        ordered = f"\nORDER BY {order}" if order else ""
        self.values.append(self.wanted.limit)
        table = escape(quote_name(self.schema, self.name))
        return f"SELECT {escape(selected)} FROM {table}{where}{ordered}\nLIMIT %s".encode(), self.values

    def _column(self, name: str) -> str:
        sql_type = self.columns[name]
        kind = sql_type.data_type if isinstance(sql_type, pg.DOMAIN) else sql_type
        column = escape(quote_name(name))
        return column if isinstance(kind, COMPARED) else f"{column}::text"

    def _term(self, name: str, operator: str, value: pa.Scalar | None) -> str:
        if value is None:
            return f"{escape(quote_name(name))} {operator.upper()}"
        return f"{self._column(name)} {operator} {self._parameter(value)}"

    def _parameter(self, value: pa.Scalar) -> str:
        """A parameter without a type: the server uses the type that it is compared with."""
        text = str(plain_text(pa.array([value], value.type))[0].as_py())
        if "\0" in text:
            raise InvalidReadQuery("text in PostgreSQL cannot have a NUL character", next_step="Use another value.")
        self.values.append(text)
        return "%s"

    def _start_condition(self, certain: Set[str]) -> str:
        """Rows at or after the start, compared column by column in the order."""
        pairs = list(zip(self.wanted.order, self.wanted.start, strict=True))
        if all(name in certain and value.is_valid for name, value in pairs):  # An index supports this form.
            columns = ", ".join(self._column(name) for name, _ in pairs)
            return f"({columns}) >= ({', '.join(self._parameter(value) for _, value in pairs)})"
        terms = [self._equality(pairs)]
        for at, (name, value) in enumerate(pairs):
            if value.is_valid:
                column = self._column(name)
                above = f"({column} > {self._parameter(value)} OR {column} IS NULL)"
                terms.append(f"({above} AND {self._equality(pairs[:at])})")
        return f"({' OR '.join(terms)})"

    def _equality(self, pairs: Sequence[tuple[str, pa.Scalar]]) -> str:
        terms = [self._term(name, "=" if v.is_valid else "is null", v if v.is_valid else None) for name, v in pairs]
        return " AND ".join(["true", *terms])


def comparison_error(error: BaseException, name: str) -> InvalidReadQuery | None:
    """The error for values that the server cannot compare; None for another error."""
    state = _sqlstate(error)
    if state.startswith("22") or state in {"42883", "42804"}:
        return InvalidReadQuery(
            f"a value cannot be compared with its column of table {name!r} (SQLSTATE {state})",
            next_step="Write it as the table shows it.",
        )
    return None


def timeout_error(error: BaseException, name: str, seconds: float) -> ReplicatorError | None:
    """The error for a statement that took too long; None for another error."""
    if _sqlstate(error) != CANCELLED:
        return None
    return ReadTimeout(
        f"reading table {name} takes longer than {seconds:g} s",
        next_step="Filter by the key, add an index for the filter, or allow more time (`serve.query_timeout`).",
    )


def _sqlstate(error: BaseException) -> str:
    return str(getattr(error, "sqlstate", None) or getattr(error.__cause__, "sqlstate", None) or "")


# The rows of a query, in one snapshot.

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
            [now] = connection.execute(NOW).fetchone() or (0,)
            return now, read_all_rows(connection, *self._render_plan(connection), self._doing)

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
        names = [name for name, _ in columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice or not names:
            fault = f"has two columns with the name {twice[0]!r}" if twice else "gives no columns"
            raise ConfigProblem(f"While {self._doing}: the query {fault}.", next_step="Name its columns with AS.")
        return render_select(columns, self._text)


def describe_columns(connection: psycopg.Connection, text: str) -> list[tuple[str, ReadForm]]:
    """The columns of a query, in order, with the way each is read."""
    with connection.cursor(binary=True) as cursor:
        cursor.execute(f"SELECT * FROM (\n{text}\n) AS q LIMIT 0".encode())
        names = [column.name for column in cursor.description or ()]
        reply = cursor.pgresult
        kinds = [] if reply is None else [(reply.ftype(i), reply.fmod(i)) for i in range(reply.nfields)]
        cursor.execute(LISTS, [[kind for kind, _ in kinds]])
        lists = {oid for [oid] in cursor.fetchall()}
    return [(name, _find_read_type(*kind, kind[0] in lists)) for name, kind in zip(names, kinds, strict=True)]


def render_select(columns: Sequence[tuple[str, ReadForm]], text: str) -> tuple[pa.Schema, bytes]:
    """The schema of these columns, and the statement that selects them in the forms that Arrow converts."""
    schema = pa.schema([pa.field(name, kind) for name, (kind, _) in columns])
    select_list = ", ".join(select_expression(name, how) for name, (_, how) in columns)
    return schema, f"SELECT {select_list} FROM (\n{text}\n) AS q".encode()


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


def _find_read_type(oid: int, parameter: int, is_list: bool) -> ReadForm:
    if not is_list:
        return read_type(_column_type(oid, parameter))
    item = psycopg.adapters.types.get(oid)
    return read_type(sa.ARRAY(_column_type(item.oid if item else 0, parameter)))


def _column_type(oid: int, parameter: int) -> AnyType:
    if oid == NUMERIC:
        # The type modifier of numeric: 16 bits of precision, 11 of signed scale.
        modifier = parameter - 4
        return sa.Numeric(modifier >> 16 & 0xFFFF, ((modifier & 0x7FF) ^ 1024) - 1024) if modifier >= 0 else sa.Numeric()
    if oid in (TIMESTAMPTZ, TIMETZ):
        return sa.DateTime(timezone=True) if oid == TIMESTAMPTZ else sa.Time(timezone=True)
    return BY_OID.get(oid, sa.types.NullType)()


def _to_batch(rows: Sequence[Sequence[object]], schema: pa.Schema, doing: str) -> pa.RecordBatch:
    arrays = []
    for values, target in zip(zip(*rows, strict=True), schema, strict=True):
        try:
            arrays.append(to_array(values, target.type))
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            # Arrow's own message contains the value.
            raise Fatal(
                f"While {doing}: column {target.name!r} has a value that {target.type} does not hold.",
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
