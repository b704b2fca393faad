"""Columns of a database as Arrow: their types, how each is selected, and its values, exactly or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from pyarrow import types as t
from sqlalchemy.dialects import mysql
from sqlalchemy.dialects import postgresql as pg

from replicator.domain.errors import ConfigProblem, Fatal

from ....arrow.json.faults import Unfit
from ....arrow.json.spelling import node_of
from ....arrow.texts import NAMES

AnyType = sa.types.TypeEngine[Any]
Choose = Callable[[Any], sa.ColumnElement[Any]]
MOST_DIGITS = 38
DAY = timedelta(days=1)


@dataclass(frozen=True)
class Chosen:
    """A column of the result: what it is called, its type, the expression that selects it, and whether it may be NULL."""

    name: str
    kind: pa.DataType
    expression: sa.ColumnElement[Any]
    nullable: bool


def chosen(column: sa.ColumnClause[Any], nullable: bool, where: str) -> Chosen:
    """How a column with the type that the database gives it is read. ConfigProblem for one that has no type here."""
    kind, choose = _read(column.type, where, column.name)
    return Chosen(column.name, kind, choose(column), nullable)


def declared(name: str, said: str, where: str) -> tuple[pa.DataType, AnyType]:
    """The type that the configuration declares for a column, and what SQLAlchemy makes values of it with."""
    try:
        kind = node_of(said).type
    except Unfit as unknown:
        raise ConfigProblem(
            f"Column {name!r} in 'schema' of {where}: {unknown}.", next_step=f"Write a type such as {NAMES}."
        ) from None
    for applies, made in DECLARED:
        if applies(kind):
            return kind, made(kind)
    raise ConfigProblem(f"Column {name!r} of {where} is {kind}, which no query gives.", next_step=f"There are {NAMES}.")


def array_of(values: Sequence[Any], column: Chosen, doing: str) -> pa.Array:
    """The values of a column. Fatal, without the value, for one that its type does not hold exactly."""
    try:
        return pa.array(_plain(values, column.kind), column.kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        # Arrow's own sentence has the value in it.
        raise Fatal(
            f"While {doing}: column {column.name!r} has a value that {column.kind} does not hold.",
            next_step="Correct the row; or write a `query` that casts the column, to text for example, or leaves it out.",
        ) from None


def _plain(values: Sequence[Any], kind: pa.DataType) -> Iterable[Any]:
    """Values as Arrow takes them, where drivers have others. ValueError where it would take one for what it is not."""
    if t.is_time(kind):
        return [_time(value) for value in values]
    if t.is_timestamp(kind) and kind.tz is None:
        return [_local(value) for value in values]
    if t.is_boolean(kind):
        return [bool(value) if value in (0, 1) else value for value in values]
    if t.is_decimal(kind):
        return [None if value is None else str(value) for value in values] if _has_floats(values) else values
    return values


def _has_floats(values: Sequence[Any]) -> bool:
    return any(isinstance(value, float) for value in values)


def _time(value: Any) -> Any:
    """MySQL has lengths of time, of which some are times of day; SQLite has text."""
    if isinstance(value, timedelta):
        if not timedelta() <= value < DAY:
            raise ValueError("no time of day")
        return (datetime.min + value).time()
    return time.fromisoformat(value) if isinstance(value, str) else value


def _local(value: Any) -> Any:
    if isinstance(value, datetime) and value.tzinfo is not None:
        raise ValueError("has a zone")
    return value


def _same(column: Any) -> sa.ColumnElement[Any]:
    return sa.type_coerce(column, column.type)


def _as(kind: AnyType) -> Choose:
    return lambda column: sa.type_coerce(column, kind)


def _as_text(column: Any) -> sa.ColumnElement[Any]:
    return sa.cast(column, sa.Text())


def _single(column: Any) -> sa.ColumnElement[Any]:
    """MySQL writes FLOAT with six digits; in an expression it is a double, and written with all."""
    return sa.type_coerce(column * sa.literal_column("1e0"), sa.Double())


def _read(kind: AnyType, where: str, name: str) -> tuple[pa.DataType, Choose]:
    if isinstance(kind, pg.DOMAIN):
        return _read(kind.data_type, where, name)[0], _same
    for applies, made in KINDS:
        if isinstance(kind, applies):
            return made(kind)
    called = type(kind).__name__
    raise ConfigProblem(
        f"Column {name!r} of {where} is {called}, which has no type here.",
        next_step="Write a `query` that casts it, to text for example, or leaves it out.",
    )


def _whole(signed: pa.DataType, unsigned: pa.DataType) -> Callable[[Any], tuple[pa.DataType, Choose]]:
    return lambda kind: (unsigned if getattr(kind, "unsigned", False) else signed, _same)


def _numeric(kind: Any) -> tuple[pa.DataType, Choose]:
    if kind.precision is None or kind.precision > MOST_DIGITS:
        return pa.string(), _as_text
    return pa.decimal128(kind.precision, kind.scale or 0), _as(sa.Numeric(kind.precision, kind.scale or 0, asdecimal=True))


def _double(_: Any) -> tuple[pa.DataType, Choose]:
    return pa.float64(), _as(sa.Double())


def _stamp(kind: Any) -> tuple[pa.DataType, Choose]:
    """Sessions of MySQL show a TIMESTAMP in their zone, which is UTC here (`database`)."""
    return pa.timestamp("us", "UTC" if kind.timezone or isinstance(kind, mysql.TIMESTAMP) else None), _same


def _bits(kind: Any) -> tuple[pa.DataType, Choose]:
    return (pa.int64() if (kind.length or 1) < 64 else pa.decimal128(20, 0)), _same


def _always(kind: pa.DataType, choose: Choose = _same) -> Callable[[Any], tuple[pa.DataType, Choose]]:
    return lambda _: (kind, choose)


def _of_time(kind: Any) -> tuple[pa.DataType, Choose]:
    """As the driver gives it: SQLAlchemy makes a time of any TIME of MySQL, of -01:00:00 and 838:59:59 too."""
    return (pa.string(), _as_text) if kind.timezone else (pa.time64("us"), _as(sa.types.NullType()))


LONGEST = pa.decimal128(20, 0)
KINDS: tuple[tuple[Any, Callable[[Any], tuple[pa.DataType, Choose]]], ...] = (
    (mysql.BIT, _bits),
    (mysql.YEAR, _always(pa.int16())),
    (mysql.TINYINT, _always(pa.int16())),
    (mysql.SMALLINT, _whole(pa.int16(), pa.int32())),
    (mysql.MEDIUMINT, _always(pa.int32())),
    (mysql.INTEGER, _whole(pa.int32(), pa.int64())),
    (mysql.BIGINT, _whole(pa.int64(), LONGEST)),
    (mysql.FLOAT, _always(pa.float32(), _single)),
    (sa.SmallInteger, _always(pa.int16())),
    (sa.BigInteger, _always(pa.int64())),
    (sa.Integer, _always(pa.int32())),
    (sa.REAL, _always(pa.float32(), _as(sa.Double()))),
    (sa.Float, _double),
    (sa.Numeric, _numeric),
    (sa.Boolean, _always(pa.bool_())),
    (sa.DateTime, _stamp),
    (sa.Date, _always(pa.date32())),
    (sa.Time, _of_time),
    (sa.Enum, _always(pa.string(), _as_text)),
    (sa.Uuid, _always(pa.string(), _as_text)),
    (sa.JSON, _always(pa.string(), _as_text)),
    ((mysql.SET, sa.String), _always(pa.string(), _as(sa.String()))),
    (sa.types._Binary, _always(pa.binary(), _as(sa.LargeBinary()))),
)
"""By what SQLAlchemy calls a type, the narrower before the wider."""
DECLARED: tuple[tuple[Callable[[Any], bool], Callable[[Any], AnyType]], ...] = (
    (t.is_integer, lambda _: sa.BigInteger()),
    (t.is_floating, lambda _: sa.Double()),
    (t.is_decimal, lambda kind: sa.Numeric(kind.precision, kind.scale)),
    (t.is_boolean, lambda _: sa.Boolean()),
    (t.is_string, lambda _: sa.String()),
    (t.is_binary, lambda _: sa.LargeBinary()),
    (t.is_date, lambda _: sa.Date()),
    (t.is_timestamp, lambda kind: sa.DateTime(timezone=kind.tz is not None)),
    (t.is_time, lambda _: sa.types.NullType()),
)
