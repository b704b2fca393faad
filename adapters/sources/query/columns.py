"""Columns of a database as Arrow: their types, the expressions that select them, and exact values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from pyarrow import types as t
from sqlalchemy.dialects import mysql
from sqlalchemy.dialects import postgresql as pg

from replicator.domain.errors import ConfigProblem, Fatal
from replicator.ports.options import to_timedelta

from ...arrow.record_errors import ValueMisfit
from ...arrow.text_values import NAMES
from ...decoders.json.type_names import find_type_reader
from .options import QuerySettings

AnyType = sa.types.TypeEngine[Any]
Choose = Callable[[Any], sa.ColumnElement[Any]]
MOST_DIGITS = 38
DAY = timedelta(days=1)


@dataclass(frozen=True)
class SelectedColumn:
    """A column of the result: its name, its type, the expression that selects it, and whether it may be NULL."""

    name: str
    kind: pa.DataType
    expression: sa.ColumnElement[Any]
    nullable: bool


def select_column(column: sa.ColumnClause[Any], nullable: bool, where: str) -> SelectedColumn:
    """The selection of a column with the database's type. Raises ConfigProblem for an unsupported type."""
    kind, choose = _find_type(column.type, where, column.name)
    return SelectedColumn(column.name, kind, choose(column), nullable)


def declared_type(name: str, type_name: str, where: str) -> tuple[pa.DataType, AnyType]:
    """The type that the configuration declares for a column, and SQLAlchemy's type for its values."""
    try:
        kind = find_type_reader(type_name).type
    except ValueMisfit as unknown:
        raise ConfigProblem(
            f"Column {name!r} in 'schema' of {where}: {unknown}.", next_step=f"Write a type such as {NAMES}."
        ) from None
    for applies, make_type in DECLARED:
        if applies(kind):
            return kind, make_type(kind)
    raise ConfigProblem(f"Column {name!r} of {where} is {kind}, which no query gives.", next_step=f"There are {NAMES}.")


def to_array(values: Sequence[Any], column: SelectedColumn, doing: str) -> pa.Array:
    """The values of a column. Raises Fatal, without the value, for a value that the type cannot hold exactly."""
    kind = column.kind
    try:
        # Arrow accepts some values in other forms only, and misreads some.
        if t.is_time(kind):
            values = [_to_time(value) for value in values]
        elif t.is_timestamp(kind) and kind.tz is None:
            if any(isinstance(value, datetime) and value.tzinfo is not None for value in values):
                raise ValueError("has a zone")
        elif t.is_boolean(kind):
            values = [bool(value) if value in (0, 1) else value for value in values]
        elif t.is_decimal(kind) and any(isinstance(value, float) for value in values):
            values = [None if value is None else str(value) for value in values]
        return pa.array(values, kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        # Arrow's own message contains the value.
        raise Fatal(
            f"While {doing}: column {column.name!r} has a value that {kind} does not hold.",
            next_step="Correct the row; or write a `query` that casts the column, to text for example, or leaves it out.",
        ) from None


def _to_time(value: Any) -> Any:
    """MySQL returns durations, some of which are times of day; SQLite returns text."""
    if isinstance(value, timedelta):
        if not timedelta() <= value < DAY:
            raise ValueError("no time of day")
        return (datetime.min + value).time()
    return time.fromisoformat(value) if isinstance(value, str) else value


def _select_as_is(column: Any) -> sa.ColumnElement[Any]:
    return sa.type_coerce(column, column.type)


def _cast_as(kind: AnyType) -> Choose:
    return lambda column: sa.type_coerce(column, kind)


def _select_text(column: Any) -> sa.ColumnElement[Any]:
    return sa.cast(column, sa.Text())


def _find_type(kind: AnyType, where: str, name: str) -> tuple[pa.DataType, Choose]:
    if isinstance(kind, pg.DOMAIN):
        return _find_type(kind.data_type, where, name)[0], _select_as_is
    for applies, make_type in KINDS:
        if isinstance(kind, applies):
            return make_type(kind)
    called = type(kind).__name__
    raise ConfigProblem(
        f"Column {name!r} of {where} is {called}, which has no type here.",
        next_step="Write a `query` that casts it, to text for example, or leaves it out.",
    )


def _integer_type(signed: pa.DataType, unsigned: pa.DataType) -> Callable[[Any], tuple[pa.DataType, Choose]]:
    return lambda kind: (unsigned if getattr(kind, "unsigned", False) else signed, _select_as_is)


def _numeric_type(kind: Any) -> tuple[pa.DataType, Choose]:
    if kind.precision is None or kind.precision > MOST_DIGITS:
        return pa.string(), _select_text
    return pa.decimal128(kind.precision, kind.scale or 0), _cast_as(
        sa.Numeric(kind.precision, kind.scale or 0, asdecimal=True)
    )


def _timestamp_type(kind: Any) -> tuple[pa.DataType, Choose]:
    """MySQL sessions return TIMESTAMP in their time zone, which is UTC here (see `database`)."""
    return pa.timestamp("us", "UTC" if kind.timezone or isinstance(kind, mysql.TIMESTAMP) else None), _select_as_is


def _fixed_type(kind: pa.DataType, choose: Choose = _select_as_is) -> Callable[[Any], tuple[pa.DataType, Choose]]:
    return lambda _: (kind, choose)


def _time_type(kind: Any) -> tuple[pa.DataType, Choose]:
    """Read as the driver returns it: SQLAlchemy converts every TIME of MySQL to a time of day, even -01:00:00."""
    return (pa.string(), _select_text) if kind.timezone else (pa.time64("us"), _cast_as(sa.types.NullType()))


LONGEST = pa.decimal128(20, 0)
KINDS: tuple[tuple[Any, Callable[[Any], tuple[pa.DataType, Choose]]], ...] = (
    (mysql.BIT, lambda kind: (pa.int64() if (kind.length or 1) < 64 else LONGEST, _select_as_is)),
    (mysql.YEAR, _fixed_type(pa.int16())),
    (mysql.TINYINT, _fixed_type(pa.int16())),
    (mysql.SMALLINT, _integer_type(pa.int16(), pa.int32())),
    (mysql.MEDIUMINT, _fixed_type(pa.int32())),
    (mysql.INTEGER, _integer_type(pa.int32(), pa.int64())),
    (mysql.BIGINT, _integer_type(pa.int64(), LONGEST)),
    # MySQL returns FLOAT with six digits; in an expression it is a double with all digits.
    (mysql.FLOAT, _fixed_type(pa.float32(), lambda column: sa.type_coerce(column * sa.literal_column("1e0"), sa.Double()))),
    (sa.SmallInteger, _fixed_type(pa.int16())),
    (sa.BigInteger, _fixed_type(pa.int64())),
    (sa.Integer, _fixed_type(pa.int32())),
    (sa.REAL, _fixed_type(pa.float32(), _cast_as(sa.Double()))),
    (sa.Float, _fixed_type(pa.float64(), _cast_as(sa.Double()))),
    (sa.Numeric, _numeric_type),
    (sa.Boolean, _fixed_type(pa.bool_())),
    (sa.DateTime, _timestamp_type),
    (sa.Date, _fixed_type(pa.date32())),
    (sa.Time, _time_type),
    (sa.Enum, _fixed_type(pa.string(), _select_text)),
    (sa.Uuid, _fixed_type(pa.string(), _select_text)),
    (sa.JSON, _fixed_type(pa.string(), _select_text)),
    ((mysql.SET, sa.String), _fixed_type(pa.string(), _cast_as(sa.String()))),
    (sa.types._Binary, _fixed_type(pa.binary(), _cast_as(sa.LargeBinary()))),
)
"""By SQLAlchemy's type, narrower types before wider ones."""
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


# Values of the cursor column: parsed, written as text, and reduced by the overlap.


Value = Any
"""A date, datetime, int or Decimal without places. All values of one column have the same type and are comparable."""
LATE = timedelta(minutes=5)
"""The default overlap for times; for numbers it is `NUMBERS`."""
NUMBERS = 1_000


class CursorValues:
    """Operations on values of a cursor column with this type. Raises ConfigProblem for an unsuitable column, and for
    options that do not fit it."""

    def __init__(self, options: QuerySettings, kind: pa.DataType) -> None:
        self.kind = kind
        self._name = options.cursor_column
        self.is_time = t.is_timestamp(kind) or t.is_date(kind)
        whole = t.is_integer(kind) or (t.is_decimal(kind) and kind.scale <= 0)
        if not (self.is_time or whole):
            raise ConfigProblem(
                f"Column {self._name!r} of {options.name} is {kind}: it cannot show which rows are new.",
                next_step="Name a column of times, dates or whole numbers in `cursor_column`.",
            )
        overlap: Any = to_timedelta(options.overlap) if isinstance(options.overlap, str) else options.overlap
        if overlap is None:
            overlap = LATE if self.is_time else NUMBERS
        if isinstance(overlap, timedelta) != self.is_time:
            form = "a time such as `5 minutes`" if self.is_time else "a number such as `1000`"
            raise ConfigProblem(
                f"'overlap' does not go with column {self._name!r}, which is {kind}.", next_step=f"Write {form}."
            )
        self._overlap = overlap
        self.first = None if options.start_after is None else self._parse_option(options.start_after)

    def lower_bound(self, last: Value | None) -> Value | None:
        """The lower limit of the next read after one up to `last`."""
        if last is None:
            return None
        if t.is_date(self.kind):
            return last - timedelta(days=math.ceil(self._overlap / timedelta(days=1)))
        try:
            return last - self._overlap
        except OverflowError:
            return None

    def advance(self, last: Value | None, value: Value, clock: Value | None) -> Value:
        """The position after `value` was read. It never decreases, and never exceeds the server's clock: otherwise one row
        with a time in 2099 would hide all later rows."""
        reached = value if clock is None else min(value, clock)
        return reached if last is None else max(last, reached)

    def to_text(self, value: Value) -> str:
        """The value as text for `from_text`."""
        return value.isoformat() if self.is_time else str(value)

    def from_text(self, text: str) -> Value:
        """The value of a text from `to_text`."""
        if t.is_timestamp(self.kind):
            return datetime.fromisoformat(text)
        if t.is_date(self.kind):
            return date.fromisoformat(text)
        return Decimal(text) if t.is_decimal(self.kind) else int(text)

    def normalize(self, value: Value) -> Value:
        """A value from Arrow or a driver, in a form for comparisons."""
        if t.is_timestamp(self.kind):
            if isinstance(value, str):
                value = datetime.fromisoformat(value)
            if self.kind.tz is None:
                return value.replace(tzinfo=None)
            return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
        if t.is_date(self.kind):
            return value.date() if isinstance(value, datetime) else value
        return Decimal(value) if t.is_decimal(self.kind) else int(value)

    def _parse_option(self, option: int | str) -> Value:
        try:
            if t.is_timestamp(self.kind):
                value: Value = datetime.fromisoformat(str(option))
            elif t.is_date(self.kind):
                value = date.fromisoformat(str(option).removesuffix(" 00:00:00"))
            else:
                value = int(str(option))
        except (TypeError, ValueError, ArithmeticError):
            form = "a time such as 2019-11-20 00:00:00" if self.is_time else "a whole number"
            raise ConfigProblem(
                f"'start_after' is no value of column {self._name!r}, which is {self.kind}.", next_step=f"Write {form}."
            ) from None
        if t.is_timestamp(self.kind) and (value.tzinfo is None) != (self.kind.tz is None):
            does, form = ("has a", "2019-11-20 00:00:00+00:00") if self.kind.tz else ("has no", "2019-11-20 00:00:00")
            raise ConfigProblem(
                f"Column {self._name!r} {does} time zone, unlike 'start_after'.", next_step=f"Write it as {form}."
            )
        return self.normalize(value)
