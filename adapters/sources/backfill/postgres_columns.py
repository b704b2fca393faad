"""Columns of a PostgreSQL table, in the forms in which Debezium's connector sends their values.

| PostgreSQL | Connect | as Debezium has it with |
| --- | --- | --- |
| smallint, integer, bigint, oid, boolean, real, double precision | the same | |
| numeric(p, s) | Decimal | `decimal.handling.mode=precise` |
| numeric | VariableScaleDecimal | the same |
| date, time, timestamp | Date, Time or MicroTime, Timestamp or MicroTimestamp | `time.precision.mode=adaptive` |
| timestamptz | ZonedTimestamp, in UTC | |
| text, varchar, char, citext, name, inet, cidr, macaddr, macaddr8 | string | |
| uuid, json, jsonb, xml, enumerations | Uuid, Json, Xml, Enum | |
| bytea | bytes | `binary.handling.mode=bytes` |
| lists of whole numbers, booleans and text | array | |

A domain has the form of its base type. Other types are refused by name. Infinite dates and numbers, and NaN of `numeric`,
are sent in a form that the decoder rejects. So other rows are read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...decoders.debezium.masking import MASKED_SCHEMA
from .database import WIDEST, Schema, decimal_schema, named_schema

AS_IT_IS = {
    "int2": "int16",
    "int4": "int32",
    "int8": "int64",
    "bool": "boolean",
    "float4": "float",
    "float8": "double",
    **dict.fromkeys(("text", "varchar", "bpchar", "name", "citext", "inet", "cidr", "macaddr", "macaddr8"), "string"),
}
"""Types whose values need no conversion to JSON."""
IN_LISTS = frozenset({"int2", "int4", "int8", "bool", "text", "varchar", "bpchar"})
TWO_64 = 1 << 64
TWO_127 = 1 << 127
DIGIT_BYTES = 7
"""Bytes of a digit of long numbers: a digit is never negative as a bigint."""
LAST_DAY, FIRST_DAY = (1 << 31) - 1, -(1 << 31)
LAST_MICROS, FIRST_MICROS = (1 << 63) - 1, -(1 << 63)
"""The values for infinite dates and timestamps: outside the years 1 to 9999, as the values of the connector."""


@dataclass(frozen=True, slots=True)
class PostgresColumn:
    """One column. `sql`: its type with parameters, for casts of text. `type`: the name of its base type. `kind`,
    `modifier`: its typtype and typmod. `item`: the type of a list's items."""

    name: str
    required: bool
    sql: str
    type: str
    kind: str
    modifier: int
    item: str | None = None

    @property
    def schema(self) -> Schema:
        return self.required_form.schema

    def to_masked(self) -> PostgresColumn:
        return PostgresColumn(self.name, self.required, "text", MASKED_SCHEMA, "b", -1)

    @property
    def required_form(self) -> PostgresValueFormat:
        """`form`. Raises TypeError for a column without one."""
        if self.form is None:
            raise TypeError(self.sql)
        return self.form

    @property
    def form(self) -> PostgresValueFormat | None:
        """The form of its values; None for an unsupported type."""
        if self.item is not None:
            listed = self.item if self.item in IN_LISTS else None
            items = listed and {"type": AS_IT_IS[listed], "optional": True}
            return PostgresValueFormat({"type": "array", "items": items}, "{c}") if items else None
        if self.kind == "e":
            return PostgresValueFormat(named_schema("string", "io.debezium.data.Enum"), "{c}")
        if self.type in AS_IT_IS:
            return PostgresValueFormat({"type": AS_IT_IS[self.type]}, "{c}")
        make_form = FORMS.get(self.type)
        return make_form(self.modifier) if make_form else None


@dataclass(frozen=True, slots=True)
class PostgresValueFormat:
    """A Connect schema, and the SQL expression that converts a column `{c}` to its JSON form."""

    schema: Schema
    value: str

    def for_column(self, column: str) -> str:
        """The expression for a column, given as SQL."""
        return self.value.replace("{c}", column)


def _text_form(name: str) -> Callable[[int], PostgresValueFormat]:
    return lambda _: PostgresValueFormat(named_schema("string", name), "{c}::text")


def _micros_expression(factor: int) -> str:
    # `least` and `greatest` ignore NULL.
    number = f"extract(epoch FROM {{c}}) * {factor}"
    return f"CASE WHEN {{c}} IS NOT NULL THEN greatest(least({number}, {LAST_MICROS}), {FIRST_MICROS})::bigint END"


def _clock_form(millis: Schema, micros: Schema) -> Callable[[int], PostgresValueFormat]:
    """Times in milliseconds if a second has at most three digits after the point, otherwise in microseconds."""

    def make_form(modifier: int) -> PostgresValueFormat:
        if 0 <= modifier <= 3:
            return PostgresValueFormat(millis, _micros_expression(1_000))
        return PostgresValueFormat(micros, _micros_expression(1_000_000))

    return make_form


def _numeric_form(modifier: int) -> PostgresValueFormat | None:
    """Unscaled integers as base64 of big-endian bytes in two's complement. Empty for NaN and infinities, which the decoder
    rejects."""
    if modifier < 4:
        struct = {**named_schema("struct", "io.debezium.data.VariableScaleDecimal"), "fields": SCALED}
        # Without trailing zeros, as the connector sends it.
        number = "({c} * power(10::numeric, scale(trim_scale({c}))))"
        unscaled = (
            f"CASE WHEN {{c}} IN ('NaN', 'Infinity', '-Infinity') THEN '' "
            f"WHEN {number} >= -{TWO_127} AND {number} < {TWO_127} THEN {_short_expression(number)} "
            f"ELSE {_long_expression(number)} END"
        )
        json_object = f"json_build_object('scale', coalesce(scale(trim_scale({{c}})), 0), 'value', {unscaled})"
        return PostgresValueFormat(struct, f"CASE WHEN {{c}} IS NOT NULL THEN {json_object} END")
    # Decoded like in PostgreSQL's numeric type: 16 bits of precision, 11 bits of signed scale.
    precision, scale = modifier - 4 >> 16 & 0xFFFF, ((modifier - 4 & 0x7FF) ^ 1024) - 1024
    if precision > WIDEST or scale < 0:
        return None
    unscaled = f"CASE WHEN {{c}} = 'NaN' THEN '' ELSE {_short_expression(f'({{c}} * {10**scale})')} END"
    return PostgresValueFormat(decimal_schema(precision, scale), unscaled)


def _short_expression(number: str) -> str:
    """An integer in 16 bytes."""
    rest = f"mod({number}, {TWO_64})"
    high = f"(div({number}, {TWO_64}) - ({rest} < 0)::int)"
    low = f"({rest} + (CASE WHEN {rest} < 0 THEN {TWO_64} ELSE 0 END))"
    signed = f"({low} - (CASE WHEN {low} >= {TWO_64 >> 1} THEN {TWO_64} ELSE 0 END))"
    return f"encode(int8send({high}::bigint) || int8send({signed}::bigint), 'base64')"


def _long_expression(number: str) -> str:
    """An integer of any length: a byte with its sign, then its digits. -n has the inverted bits of n - 1."""
    base, digit = 1 << 8 * DIGIT_BYTES, f"CASE WHEN {number} < 0 THEN ~digit ELSE digit END"
    joined = f"string_agg(substring(int8send({digit}) FROM {9 - DIGIT_BYTES}), '' ORDER BY place DESC)"
    sign = f"CASE WHEN {number} < 0 THEN '\\xff'::bytea ELSE '\\x00' END"
    return f"""(
        WITH RECURSIVE digits(place, rest, digit) AS (
            SELECT 0, CASE WHEN {number} < 0 THEN -1 - {number} ELSE {number} END, NULL::bigint
            UNION ALL SELECT place + 1, div(rest, {base}), mod(rest, {base})::bigint FROM digits WHERE rest > 0)
        SELECT translate(encode({sign} || {joined}, 'base64'), E'\\n', '') FROM digits WHERE place > 0)"""


SCALED = [{"type": "int32", "optional": False, "field": "scale"}, {"type": "bytes", "optional": False, "field": "value"}]
ZONED = """CASE WHEN NOT isfinite({c}) THEN {c}::text
    WHEN {c} < '0001-01-01 00:00:00Z'::timestamptz
    THEN to_char(extract(year FROM {c} AT TIME ZONE 'UTC') + 1, 'FM0000')
        || rtrim(substr(to_json({c} AT TIME ZONE 'UTC') #>> '{}', 5), ' BC') || 'Z'
    ELSE (to_json({c} AT TIME ZONE 'UTC') #>> '{}') || 'Z' END"""
"""ISO 8601 has no eras: 44 BC is the year -0043. (`to_char` alone would write an infinity as a day.)"""
FORMS: dict[str, Callable[[int], PostgresValueFormat | None]] = {
    MASKED_SCHEMA: lambda _: PostgresValueFormat({"type": "string", "name": MASKED_SCHEMA}, "{c}"),
    "oid": lambda _: PostgresValueFormat({"type": "int64"}, "{c}::bigint"),
    "numeric": _numeric_form,
    "date": lambda _: PostgresValueFormat(
        named_schema("int32", "io.debezium.time.Date"),
        f"CASE {{c}} WHEN 'infinity' THEN {LAST_DAY} WHEN '-infinity' THEN {FIRST_DAY} ELSE {{c}} - date '1970-01-01' END",
    ),
    "time": _clock_form(named_schema("int32", "io.debezium.time.Time"), named_schema("int64", "io.debezium.time.MicroTime")),
    "timestamp": _clock_form(
        named_schema("int64", "io.debezium.time.Timestamp"), named_schema("int64", "io.debezium.time.MicroTimestamp")
    ),
    "timestamptz": lambda _: PostgresValueFormat(named_schema("string", "io.debezium.time.ZonedTimestamp"), ZONED),
    "uuid": _text_form("io.debezium.data.Uuid"),
    "json": _text_form("io.debezium.data.Json"),
    "jsonb": _text_form("io.debezium.data.Json"),
    "xml": _text_form("io.debezium.data.Xml"),
    "bytea": lambda _: PostgresValueFormat({"type": "bytes"}, "translate(encode({c}, 'base64'), E'\\n', '')"),
}
