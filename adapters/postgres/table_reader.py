"""Reads targets as Arrow tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

import psycopg
import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from replicator.domain.errors import ConfigProblem, Fatal, Retryable
from replicator.domain.read_query import BuildReadQuery

from .connection import PostgresSession
from .ddl import Catalogue
from .errors import translate_error
from .names import quote_name
from .read_query import PostgresReadQuery, comparison_error, timeout_error
from .temporal_text import INFINITE_MICROS
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
    """`ports.reader.Reader` over one schema, and `ports.reader.SelectRows`.

    Types without an Arrow counterpart are read as text, infinite timestamps as their numbers (`temporal_text`).
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
        """See `ports.reader.Reader.read`. `where` runs as one statement in a read-only transaction with a time
        limit."""
        if version is not None or as_of is not None:
            raise _no_versions_error(name)
        plans = {column: read_type(found) for column, found in self._read_columns(name).items()}
        doing = f"reading {self._schema}.{name}"
        try:
            with self._session.transaction(doing) as cursor:
                return self._fetch_table(cursor, self._render_query(name, plans, where), limit, plans)
        except Fatal as error:
            # Without a condition the query is ours, so the caller cannot correct it.
            if where is None or not _is_statement_error(error.__cause__):
                raise
            said = str(error.__cause__).partition("\n")[0]
            raise ConfigProblem(
                f"the condition on table {name!r} cannot be evaluated: {said}",
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
        """See `ports.reader.SelectRows`. It is one statement with parameters, in a read-only transaction."""
        if version is not None or as_of is not None:
            raise _no_versions_error(name)
        columns = self._read_columns(name)
        plans = {column: read_type(found) for column, found in columns.items()}
        schema = pa.schema([pa.field(column, kind) for column, (kind, _) in plans.items()])
        wanted = choose(schema)
        if wanted.limit == 0:
            return schema.empty_table()
        chosen = PostgresReadQuery(self._schema, name, columns, wanted)
        doing, limit = f"reading {self._schema}.{name}", min(self._timeout, seconds or self._timeout)
        try:
            with self._session.transaction(doing) as cursor:
                self._begin(cursor, limit)
                cursor.execute(*chosen.null_check())
                certain = {row[0] for row in cursor.fetchall()}
                selected = ", ".join(select_expression(n, how) for n, (_, how) in plans.items())
                cursor.execute(*chosen.render(selected, certain), prepare=True, binary=True)
                return self._read_cursor(cursor, schema)
        except (Fatal, Retryable) as error:
            told = comparison_error(error, name) or timeout_error(error, name, limit)
            if told is None:
                raise
            raise told from error
        except psycopg.Error as error:
            raise comparison_error(error, name) or translate_error(error, doing) from error
        finally:
            self._session.close()

    def _read_columns(self, name: str) -> dict[str, AnyType]:
        columns = self._catalogue.read_columns(self._schema, name)
        if columns is None:
            known = ", ".join(self.tables()) or "none yet"
            raise Fatal(f"there is no table {name} in schema {self._schema}", next_step=f"There are: {known}.")
        return columns

    def _render_query(self, name: str, plans: dict[str, Read], where: str | None) -> bytes:
        columns = ", ".join(select_expression(n, how) for n, (_, how) in plans.items())
        condition = f"\nWHERE (\n{where}\n)" if where else ""
        text = f"SELECT {columns} FROM {quote_name(self._schema, name)}{condition}\nLIMIT "
        return text.replace("%", "%%").encode() + b"%s"

    def _fetch_table(self, cursor: psycopg.Cursor, query: bytes, limit: int | None, plans: dict[str, Read]) -> pa.Table:
        self._begin(cursor, self._timeout)
        cursor.execute(query, (limit,), prepare=True, binary=True)
        return self._read_cursor(cursor, pa.schema([pa.field(name, kind) for name, (kind, _) in plans.items()]))

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


def _is_statement_error(error: BaseException | None) -> bool:
    """The server did not understand the statement (class 42 without missing rights)."""
    state = getattr(error, "sqlstate", None) or ""
    return state.startswith("42") and state != "42501"


Read = tuple[pa.DataType, str]
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


def read_type(found: AnyType) -> Read:
    """How to read a column of that PostgreSQL type."""
    if isinstance(found, pg.DOMAIN):
        return read_type(found.data_type)
    if isinstance(found, sa.ARRAY):
        item, how = read_type(found.item_type)
        return (pa.list_(item), AS_IS) if how == AS_IS else (pa.list_(pa.string()), "{0}::text[]")
    for kind, make in READ:
        if isinstance(found, kind):
            return make(found)
    return pa.string(), AS_TEXT


def _numeric(found: AnyType) -> Read:
    precision, scale = getattr(found, "precision", None), getattr(found, "scale", None) or 0
    if precision is None or precision > 76:
        return pa.string(), AS_TEXT
    kind = pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
    return kind, AS_TEXT


def _plain(kind: pa.DataType, how: str = AS_IS) -> Callable[[AnyType], Read]:
    return lambda _: (kind, how)


def _timestamp(found: AnyType) -> Read:
    return pa.timestamp("us", "UTC" if getattr(found, "timezone", False) else None), MICROS


def _time(found: AnyType) -> Read:
    return (pa.string(), AS_TEXT) if getattr(found, "timezone", False) else (pa.time64("us"), TIME_MICROS)


READ: tuple[tuple[type[AnyType], Callable[[AnyType], Read]], ...] = (
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
