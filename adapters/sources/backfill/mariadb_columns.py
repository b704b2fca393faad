"""Columns of a MariaDB table, in the forms in which Debezium's connector sends their values.

| MariaDB | Connect | as Debezium has it with |
| --- | --- | --- |
| tinyint, smallint; mediumint, int; bigint | int16; int32; int64 | |
| unsigned tinyint; smallint, mediumint; int | int16; int32; int64 | |
| unsigned bigint | int64, or Decimal | `bigint.unsigned.handling.mode=long`, or `precise` |
| decimal(p, s) | Decimal | `decimal.handling.mode=precise` |
| float, double | float, double | |
| date, year | Date, Year | |
| time, datetime | MicroTime, Timestamp or MicroTimestamp | `time.precision.mode=adaptive_time_microseconds` |
| timestamp | ZonedTimestamp, in UTC | |
| char, varchar, text, json | string | |
| enum, set, uuid | Enum, EnumSet, Uuid | |
| bit(1), bit(n) | boolean, Bits | |
| binary, varbinary, blob | bytes | `binary.handling.mode=bytes` |

Other types are refused by name. The server returns values as text or bytes, which are converted to JSON.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from ...decoders.debezium.masking import MASKED_SCHEMA
from .database import WIDEST, Schema, decimal_schema, named_schema

TWO_64 = 1 << 64
FIRST_DAY = date(1970, 1, 1).toordinal()
EPOCH = datetime(1970, 1, 1)
CLOCK = re.compile(r"(-?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?\Z")
INTEGERS = {
    "tinyint": ("int16", "int16"),
    "smallint": ("int16", "int32"),
    "mediumint": ("int32", "int32"),
    "int": ("int32", "int64"),
    "bigint": ("int64", "int64"),
}
"""For each type its Connect type, signed and unsigned."""
Raw = str | bytes
"""A value from the server: text, or bytes of a binary or bit column."""


@dataclass(frozen=True, slots=True)
class MariaDbValueFormat:
    """The form in which values of a column are sent.

    - `json`: converts a value to JSON. Raises ValueError for a value without a form.
    - `select_template`: the SQL expression that reads the column `{c}`.
    - `typed`: the SQL expression that converts text for comparisons with the column, in its own order; None if there is
      none.
    """

    schema: Schema
    json: Callable[[Any], str]
    typed: str | None = None
    select_template: str = "{c}"


@dataclass(frozen=True, slots=True)
class MariaDbColumn:
    """One column, from `information_schema`. `sql`: the type with parameters. `type`: the plain type. `digits`: all
    digits of a number, or the digits of a second's fraction. `scale`: the digits after the point. `charset`, `collation`:
    of text. `precise`: unsigned bigints are sent as decimals."""

    name: str
    required: bool
    sql: str
    type: str
    digits: int
    scale: int
    charset: str
    collation: str
    precise: bool

    @property
    def schema(self) -> Schema:
        return self.required_form.schema

    @property
    def unsigned(self) -> bool:
        """True for an unsigned type."""
        return "unsigned" in self.sql

    def to_masked(self) -> MariaDbColumn:
        return replace(self, sql="text", type=MASKED_SCHEMA)

    @property
    def required_form(self) -> MariaDbValueFormat:
        """`form`. Raises TypeError for a column without one."""
        form = self.form
        if form is None:
            raise TypeError(self.sql)
        return form

    @property
    def form(self) -> MariaDbValueFormat | None:
        """The form of its values; None for an unsupported type."""
        make_form = FORMS.get(self.type)
        return make_form(self) if make_form else None

    def to_raw(self, value: Any) -> Raw:
        """A value of a target, in the form in which the server would return it."""
        if isinstance(value, bytes):
            return value
        if isinstance(value, datetime):
            return (value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value).isoformat(" ")
        if isinstance(value, Decimal):
            return f"{value:.{self.scale}f}"
        if isinstance(value, int) and value < 0 and self.unsigned:
            return str(value + TWO_64)
        return str(value)


def _to_text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _to_base64(value: bytes) -> str:
    return f'"{base64.b64encode(value).decode()}"'


def _to_unscaled(value: str) -> str:
    number = int(value.replace(".", ""))
    return _to_base64(number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True))


def _integer_form(column: MariaDbColumn) -> MariaDbValueFormat:
    kind = INTEGERS[column.type][column.unsigned]
    # Numbers with leading zeros are not valid JSON.
    encode: Callable[[str], str] = (lambda text: str(int(text))) if "zerofill" in column.sql else str
    cast = f"CAST(%s AS {'UNSIGNED' if column.unsigned else 'SIGNED'})"
    if column.type == "bigint" and column.unsigned:
        if column.precise:
            return MariaDbValueFormat(decimal_schema(20, 0), _to_unscaled, cast)
        encode = _to_signed
    return MariaDbValueFormat({"type": kind}, encode, cast)


def _to_signed(value: str) -> str:
    number = int(value)
    return str(number if number < TWO_64 >> 1 else number - TWO_64)


def _decimal_form(column: MariaDbColumn) -> MariaDbValueFormat | None:
    if column.digits > WIDEST:
        return None
    return MariaDbValueFormat(
        decimal_schema(column.digits, column.scale), _to_unscaled, f"CAST(%s AS DECIMAL({column.digits}, {column.scale}))"
    )


def _parse_micros(value: str) -> int:
    since = datetime.fromisoformat(value) - EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _datetime_form(column: MariaDbColumn) -> MariaDbValueFormat:
    cast = "CAST(%s AS DATETIME(6))"
    if column.digits <= 3:
        return MariaDbValueFormat(
            named_schema("int64", "io.debezium.time.Timestamp"), lambda text: str(_parse_micros(text) // 1_000), cast
        )
    return MariaDbValueFormat(
        named_schema("int64", "io.debezium.time.MicroTimestamp"), lambda text: str(_parse_micros(text)), cast
    )


def _to_zoned(value: str) -> str:
    datetime.fromisoformat(value)  # Refuses invalid days.
    second, _, fraction = value.partition(".")
    more = fraction.rstrip("0")
    return f'"{second.replace(" ", "T")}{"." if more else ""}{more}Z"'


def _to_clock(value: str) -> str:
    match = CLOCK.match(value)
    if match is None:
        raise ValueError
    sign, hours, minutes, seconds, fraction = match.groups()
    micros = ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * 1_000_000 + int((fraction or "").ljust(6, "0"))
    return str(-micros if sign else micros)


def _string_form(column: MariaDbColumn) -> MariaDbValueFormat:
    ordered = f"CONVERT(%s USING {column.charset}) COLLATE {column.collation}"
    return MariaDbValueFormat({"type": "string"}, _to_text, ordered if column.type in ("char", "varchar") else None)


def _enum_form(column: MariaDbColumn) -> MariaDbValueFormat | None:
    allowed = _list_labels(column)
    # The connector writes a comma in a value differently in its snapshot and in the stream.
    return None if any("," in value for value in allowed) else MariaDbValueFormat(_labels_schema("Enum", allowed), _to_text)


def _labels_schema(name: str, allowed: Sequence[str]) -> Schema:
    return named_schema("string", f"io.debezium.data.{name}", allowed=",".join(allowed))


def _list_labels(column: MariaDbColumn) -> list[str]:
    return [value.replace("''", "'") for value in re.findall(r"'((?:[^']|'')*)'", column.sql)]


def _bits_form(column: MariaDbColumn) -> MariaDbValueFormat:
    if column.digits == 1:
        return MariaDbValueFormat({"type": "boolean"}, lambda bits: "true" if bits[0] else "false")
    return MariaDbValueFormat(
        named_schema("bytes", "io.debezium.data.Bits", length=str(column.digits)), lambda bits: _to_base64(bits[::-1])
    )


FORMS: Mapping[str, Callable[[MariaDbColumn], MariaDbValueFormat | None]] = {
    MASKED_SCHEMA: lambda _: MariaDbValueFormat({"type": "string", "name": MASKED_SCHEMA}, _to_text),
    **dict.fromkeys(INTEGERS, _integer_form),
    "decimal": _decimal_form,
    # As text a float has six digits. The connector treats a float with own digits as a double, with other
    # values in the stream.
    "float": lambda column: (
        None if "," in column.sql else MariaDbValueFormat({"type": "float"}, str, select_template="CAST({c} AS DOUBLE)")
    ),
    "double": lambda _: MariaDbValueFormat({"type": "double"}, str),
    "date": lambda _: MariaDbValueFormat(
        named_schema("int32", "io.debezium.time.Date"),
        lambda text: str(date.fromisoformat(text).toordinal() - FIRST_DAY),
        "CAST(%s AS DATE)",
    ),
    "year": lambda _: MariaDbValueFormat(
        named_schema("int32", "io.debezium.time.Year"), lambda text: str(int(text)), "CAST(%s AS UNSIGNED)"
    ),
    "time": lambda _: MariaDbValueFormat(named_schema("int64", "io.debezium.time.MicroTime"), _to_clock),
    "datetime": _datetime_form,
    "timestamp": lambda _: MariaDbValueFormat(
        named_schema("string", "io.debezium.time.ZonedTimestamp"), _to_zoned, "CAST(%s AS DATETIME(6))"
    ),
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext"), _string_form),
    "enum": _enum_form,
    "set": lambda column: MariaDbValueFormat(_labels_schema("EnumSet", _list_labels(column)), _to_text),
    "uuid": lambda _: MariaDbValueFormat(named_schema("string", "io.debezium.data.Uuid"), _to_text, "CAST(%s AS UUID)"),
    "bit": _bits_form,
    **dict.fromkeys(("binary", "varbinary"), lambda _: MariaDbValueFormat({"type": "bytes"}, _to_base64, "UNHEX(%s)")),
    **dict.fromkeys(
        ("tinyblob", "blob", "mediumblob", "longblob"), lambda _: MariaDbValueFormat({"type": "bytes"}, _to_base64)
    ),
}
