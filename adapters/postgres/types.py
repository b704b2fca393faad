"""PostgreSQL types of values: the table for new columns, and the rules for existing columns.

New columns, by Arrow type. For text with a known kind, `BY_TEXT_KIND` has precedence.

| Arrow | PostgreSQL |
| --- | --- |
| bool | boolean |
| int8 int16 uint8 / int32 uint16 / int64 uint32 / uint64 | smallint / integer / bigint / numeric(20,0) |
| float16 float32 / float64 | real / double precision |
| decimal(p,s) | numeric(p,s); numeric for one that is text, with too many digits or a variable scale |
| string | text |
| binary | bytea |
| date / time, timestamp up to microseconds | date / time, timestamp, timestamptz when it has a zone |
| time, timestamp in nanoseconds | text in ISO form, because PostgreSQL would round |
| duration, interval (Debezium's `Interval` is a string) | interval |
| list of a scalar | array of its type |
| struct, map, list of anything else | jsonb |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg
from sqlalchemy.types import TypeEngine

from replicator.domain.table import BYTE_ORDER, Column

from .literals import ARRAY_FORM, JSON_FORM, PLAIN_FORM, is_bytes

AnyType = TypeEngine[Any]
t = pa.types

VARIABLE_DECIMAL = "io.debezium.data.VariableScaleDecimal"
DECIMAL = "org.apache.kafka.connect.data.Decimal"
DECIMALS = frozenset({VARIABLE_DECIMAL, DECIMAL})
"""Decimals that are text, because no Arrow type is wide enough or the scale varies."""
INTERVAL = "io.debezium.time.Interval"
ZONED_TIME = "io.debezium.time.ZonedTime"

BY_TEXT_KIND: dict[str, Callable[[], AnyType]] = {
    "json": pg.JSONB,
    "uuid": pg.UUID,
    "interval": pg.INTERVAL,
    "number": sa.Numeric,
    "time": lambda: pg.TIME(timezone=True),
    "tsvector": pg.TSVECTOR,
    "bytes": lambda: sa.Text(collation="C"),
}
"""For columns whose values are text (`domain.table.TEXT_KINDS`).

Xml and Enum stay text: not every server has `xml`, and an enum needs its own type.
"""


BYTEWISE = frozenset({"C", "POSIX"})
"""Collations that compare text as bytes."""


def new_type(column: Column) -> AnyType:
    """The type of a column that replicator creates."""
    if column.text_kind:
        return BY_TEXT_KIND[column.text_kind]()
    return postgres_type(column.type)


def postgres_type(kind: pa.DataType) -> AnyType:
    """The PostgreSQL type by the first matching rule for an Arrow type."""
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        return pg.ARRAY(postgres_type(kind.value_type)) if _is_scalar(kind.value_type) else pg.JSONB()
    for holds, make in NEW:
        if holds(kind):
            return make(kind)
    return sa.Text()


def _is_scalar(kind: pa.DataType) -> bool:
    return not (t.is_nested(kind) or t.is_dictionary(kind))


def _is_rounded(kind: pa.DataType) -> bool:
    return bool((t.is_timestamp(kind) or t.is_time(kind)) and kind.unit == "ns")


def is_text(kind: pa.DataType) -> bool:
    """True for Arrow's text types, including dictionaries of text."""
    if t.is_dictionary(kind):
        return is_text(kind.value_type)
    return bool(t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind))


NEW: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], AnyType]], ...] = (
    (_is_rounded, lambda _: sa.Text()),
    (t.is_boolean, lambda _: sa.Boolean()),
    (lambda k: t.is_integer(k) and (k.bit_width == 8 or k == pa.int16()), lambda _: sa.SmallInteger()),
    (lambda k: k in (pa.int32(), pa.uint16()), lambda _: sa.Integer()),
    (lambda k: k in (pa.int64(), pa.uint32()), lambda _: sa.BigInteger()),
    (t.is_uint64, lambda _: sa.Numeric(20, 0)),
    (t.is_float64, lambda _: sa.Double()),
    (t.is_floating, lambda _: sa.REAL()),
    (t.is_decimal, lambda k: sa.Numeric(k.precision, k.scale)),
    (is_bytes, lambda _: pg.BYTEA()),
    (t.is_date, lambda _: sa.Date()),
    (t.is_time, lambda _: pg.TIME()),
    (t.is_timestamp, lambda k: pg.TIMESTAMP(timezone=bool(k.tz))),
    (t.is_duration, lambda _: pg.INTERVAL()),
    (t.is_nested, lambda _: pg.JSONB()),
)


@dataclass(frozen=True, slots=True)
class ColumnConversion:
    """The conversion from a source column to a target column.

    - `arrow`: the type to cast to first, without loss.
    - `form`: see `literals`.
    - `length`: the maximum of characters, where PostgreSQL would cut trailing blanks silently.
    """

    arrow: pa.DataType
    form: str = PLAIN_FORM
    length: int | None = None


def find_conversion(column: Column, sql_type: AnyType) -> ColumnConversion | None:
    """The conversion of `column` to a target column's type; None when there is none without loss.

    Unsuitable values are found row by row: by the cast to `ColumnConversion.arrow`, otherwise by the server,
    which refuses and never rounds.
    """
    if column.source_type == BYTE_ORDER and getattr(sql_type, "collation", None) not in BYTEWISE:
        return None
    if isinstance(sql_type, sa.ARRAY):
        has_items = t.is_list(column.type) and _is_scalar(column.type.value_type)
        items = replace(column, type=column.type.value_type) if has_items else None
        item = find_conversion(items, sql_type.item_type) if items else None
        return ColumnConversion(pa.list_(item.arrow), ARRAY_FORM) if item else None
    if isinstance(sql_type, pg.DOMAIN):
        return find_conversion(column, sql_type.data_type)
    if isinstance(sql_type, pg.JSON):
        is_supported = is_text(column.type) or t.is_nested(column.type)
        return ColumnConversion(column.type, JSON_FORM) if is_supported else None
    for kind, rule in EXISTING:
        if isinstance(sql_type, kind):
            return rule(column, sql_type)
    return ColumnConversion(column.type) if is_text(column.type) else None


def _find_text_conversion(column: Column, sql_type: AnyType) -> ColumnConversion | None:
    internal = type(sql_type) is sa.String  # `name` and "char", which cut what is too long
    if internal or is_bytes(column.type):
        return None
    form = JSON_FORM if t.is_nested(column.type) else PLAIN_FORM
    return ColumnConversion(column.type, form, getattr(sql_type, "length", None))


def _find_integer_conversion(column: Column, sql_type: AnyType) -> ColumnConversion | None:
    exact = t.is_integer(column.type) or t.is_decimal(column.type)
    width = {sa.SmallInteger: pa.int16(), sa.BigInteger: pa.int64()}
    return ColumnConversion(next((a for c, a in width.items() if isinstance(sql_type, c)), pa.int32())) if exact else None


def _find_float_conversion(column: Column, sql_type: AnyType) -> ColumnConversion | None:
    narrow = isinstance(sql_type, sa.REAL) or (getattr(sql_type, "precision", None) or 53) <= 24
    if t.is_integer(column.type):
        return ColumnConversion(pa.float32() if narrow else pa.float64())
    fits = t.is_floating(column.type) and not (narrow and t.is_float64(column.type))
    return ColumnConversion(column.type) if fits else None


def _find_numeric_conversion(column: Column, sql_type: AnyType) -> ColumnConversion | None:
    precision, scale = getattr(sql_type, "precision", None), getattr(sql_type, "scale", None) or 0
    text = is_text(column.type) and column.source_type in DECIMALS
    if precision is None:
        is_number = t.is_integer(column.type) or t.is_floating(column.type) or t.is_decimal(column.type)
        return ColumnConversion(column.type) if text or is_number else None
    if t.is_integer(column.type) and scale >= 0:
        return ColumnConversion(column.type)
    if not (text or t.is_decimal(column.type)) or precision > 76:
        return None
    return ColumnConversion(pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale))


def _find_timestamp_conversion(column: Column, sql_type: AnyType) -> ColumnConversion | None:
    if not t.is_timestamp(column.type):
        return None
    return ColumnConversion(pa.timestamp(_unit(sql_type), column.type.tz))


def _find_time_conversion(column: Column, sql_type: AnyType) -> ColumnConversion | None:
    if is_text(column.type):
        is_zoned = column.source_type == ZONED_TIME and getattr(sql_type, "timezone", False)
        return ColumnConversion(column.type) if is_zoned else None
    unit = _unit(sql_type)
    return ColumnConversion(pa.time64("us") if unit == "us" else pa.time32(unit)) if t.is_time(column.type) else None


def _unit(sql_type: AnyType) -> str:
    """The coarsest Arrow unit that a column with this many fractional digits can store."""
    digits = getattr(sql_type, "precision", None)
    if digits is None or digits >= 6:
        return "us"
    return "ms" if digits >= 3 else "s"


def _find_interval_conversion(column: Column, sql_type: AnyType) -> ColumnConversion | None:
    whole = getattr(sql_type, "precision", None) is None and getattr(sql_type, "fields", None) is None
    intervals = t.is_duration(column.type) or (is_text(column.type) and column.source_type == INTERVAL)
    return ColumnConversion(column.type) if whole and intervals else None


def _only(holds: Callable[[pa.DataType], bool]) -> Callable[[Column, AnyType], ColumnConversion | None]:
    return lambda column, _: ColumnConversion(column.type) if holds(column.type) else None


EXISTING: tuple[tuple[type[AnyType], Callable[[Column, AnyType], ColumnConversion | None]], ...] = (
    (sa.Enum, _only(is_text)),
    (sa.String, _find_text_conversion),
    (pg.CITEXT, _find_text_conversion),
    (sa.Integer, _find_integer_conversion),
    (sa.Float, _find_float_conversion),
    (sa.Numeric, _find_numeric_conversion),
    (sa.Boolean, _only(t.is_boolean)),
    (sa.LargeBinary, _only(is_bytes)),
    (sa.DateTime, _find_timestamp_conversion),
    (sa.Date, _only(t.is_date)),
    (sa.Time, _find_time_conversion),
    (sa.Interval, _find_interval_conversion),
    (pg.INTERVAL, _find_interval_conversion),
    (pg.OID, _only(lambda _: False)),
    (pg.MONEY, _only(lambda _: False)),
)
"""The first matching class decides. Other types (uuid, inet, ranges, tsvector ...) accept text, which their
input function checks."""
