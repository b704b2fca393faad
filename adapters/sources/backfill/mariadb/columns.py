"""The columns of a MariaDB table, in the forms in which Debezium's connector sends their values.

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

Anything else is refused by name. The server gives values as text or as bytes; what JSON has for them is made of that.
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

from ....arrow.debezium.private import MASKED
from ..database import Schema

WIDEST = 38
TWO_64 = 1 << 64
FIRST_DAY = date(1970, 1, 1).toordinal()
EPOCH = datetime(1970, 1, 1)
CLOCK = re.compile(r"(-?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?\Z")
DECIMAL = "org.apache.kafka.connect.data.Decimal"
INTEGERS = {
    "tinyint": ("int16", "int16"),
    "smallint": ("int16", "int32"),
    "mediumint": ("int32", "int32"),
    "int": ("int32", "int64"),
    "bigint": ("int64", "int64"),
}
"""By type what it is in Connect, and what its unsigned kind is."""
Raw = str | bytes
"""A value as the server gives it: text, or the bytes of a column of bytes or bits."""


@dataclass(frozen=True, slots=True)
class Form:
    """How values of a column are sent. `json`: what JSON has for one, ValueError where it has nothing. `chosen`: an SQL
    expression that gives it, of the column `{c}`. `typed`: an expression that makes of a text what the column is compared
    with in its own order; None where there is none."""

    schema: Schema
    json: Callable[[Any], str]
    typed: str | None = None
    chosen: str = "{c}"


@dataclass(frozen=True, slots=True)
class Column:
    """One column, as `information_schema` has it: `sql` its type with parameters, `type` the plain name, `digits` all digits
    of a number or those of a fraction of a second, `scale` those behind the point, `charset` and `collation` of text.
    `precise`: unsigned bigints are sent as decimals."""

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
        """See `database.Column`."""
        return self.sent.schema

    @property
    def unsigned(self) -> bool:
        """Whether its numbers are not below 0."""
        return "unsigned" in self.sql

    def masked(self) -> Column:
        """See `database.Column`."""
        return replace(self, sql="text", type=MASKED)

    @property
    def sent(self) -> Form:
        """`form`, of a column that has one."""
        found = self.form
        if found is None:
            raise TypeError(self.sql)
        return found

    @property
    def form(self) -> Form | None:
        """How its values are sent; None for a type that has no form here."""
        made = FORMS.get(self.type)
        return made(self) if made else None

    def raw(self, value: Any) -> Raw:
        """A value as a target has it, as the server would give it."""
        if isinstance(value, bytes):
            return value
        if isinstance(value, datetime):
            return (value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value).isoformat(" ")
        if isinstance(value, Decimal):
            return f"{value:.{self.scale}f}"
        if isinstance(value, int) and value < 0 and self.unsigned:
            return str(value + TWO_64)
        return str(value)


def _named(kind: str, name: str, **parameters: str) -> dict[str, Any]:
    return {"type": kind, "name": name, "version": 1, **({"parameters": parameters} if parameters else {})}


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _base64(value: bytes) -> str:
    return f'"{base64.b64encode(value).decode()}"'


def _unscaled(value: str) -> str:
    number = int(value.replace(".", ""))
    return _base64(number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True))


def _whole(column: Column) -> Form:
    kind = INTEGERS[column.type][column.unsigned]
    # Those with leading zeros are no numbers in JSON.
    made: Callable[[str], str] = (lambda text: str(int(text))) if "zerofill" in column.sql else str
    typed = f"CAST(%s AS {'UNSIGNED' if column.unsigned else 'SIGNED'})"
    if column.type == "bigint" and column.unsigned:
        if column.precise:
            return Form(_number(20, 0), _unscaled, typed)
        made = _wrapped
    return Form({"type": kind}, made, typed)


def _wrapped(value: str) -> str:
    number = int(value)
    return str(number if number < TWO_64 >> 1 else number - TWO_64)


def _number(precision: int, scale: int) -> Schema:
    return _named("bytes", DECIMAL, **{"scale": str(scale), "connect.decimal.precision": str(precision)})


def _decimal(column: Column) -> Form | None:
    if column.digits > WIDEST:
        return None
    return Form(_number(column.digits, column.scale), _unscaled, f"CAST(%s AS DECIMAL({column.digits}, {column.scale}))")


def _moment(value: str) -> int:
    return _micros(datetime.fromisoformat(value))


def _micros(value: datetime) -> int:
    since = value - EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _datetime(column: Column) -> Form:
    typed = "CAST(%s AS DATETIME(6))"
    if column.digits <= 3:
        return Form(_named("int64", "io.debezium.time.Timestamp"), lambda text: str(_moment(text) // 1_000), typed)
    return Form(_named("int64", "io.debezium.time.MicroTimestamp"), lambda text: str(_moment(text)), typed)


def _zoned(value: str) -> str:
    datetime.fromisoformat(value)  # Which refuses days that are none.
    second, _, fraction = value.partition(".")
    more = fraction.rstrip("0")
    return f'"{second.replace(" ", "T")}{"." if more else ""}{more}Z"'


def _clock(value: str) -> str:
    found = CLOCK.match(value)
    if found is None:
        raise ValueError
    sign, hours, minutes, seconds, fraction = found.groups()
    micros = ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * 1_000_000 + int((fraction or "").ljust(6, "0"))
    return str(-micros if sign else micros)


def _string(column: Column) -> Form:
    ordered = f"CONVERT(%s USING {column.charset}) COLLATE {column.collation}"
    return Form({"type": "string"}, _text, ordered if column.type in ("char", "varchar") else None)


def _bytes(column: Column) -> Form:
    return Form({"type": "bytes"}, _base64, "UNHEX(%s)" if column.type in ("binary", "varbinary") else None)


def _enum(column: Column) -> Form | None:
    allowed = _allowed(column)
    # The connector writes a comma in a value one way in its snapshot, and another in the stream.
    return None if any("," in value for value in allowed) else Form(_listed("Enum", allowed), _text)


def _listed(name: str, allowed: Sequence[str]) -> Schema:
    return _named("string", f"io.debezium.data.{name}", allowed=",".join(allowed))


def _allowed(column: Column) -> list[str]:
    return [value.replace("''", "'") for value in re.findall(r"'((?:[^']|'')*)'", column.sql)]


def _bits(column: Column) -> Form:
    if column.digits == 1:
        return Form({"type": "boolean"}, lambda bits: "true" if bits[0] else "false")
    return Form(_named("bytes", "io.debezium.data.Bits", length=str(column.digits)), lambda bits: _base64(bits[::-1]))


FORMS: Mapping[str, Callable[[Column], Form | None]] = {
    MASKED: lambda _: Form({"type": "string", "name": MASKED}, _text),
    **dict.fromkeys(INTEGERS, _whole),
    "decimal": _decimal,
    # As text a float has six digits. One with digits of its own is a double to the connector, of other values in the stream.
    "float": lambda column: None if "," in column.sql else Form({"type": "float"}, str, chosen="CAST({c} AS DOUBLE)"),
    "double": lambda _: Form({"type": "double"}, str),
    "date": lambda _: Form(
        _named("int32", "io.debezium.time.Date"),
        lambda text: str(date.fromisoformat(text).toordinal() - FIRST_DAY),
        "CAST(%s AS DATE)",
    ),
    "year": lambda _: Form(_named("int32", "io.debezium.time.Year"), lambda text: str(int(text)), "CAST(%s AS UNSIGNED)"),
    "time": lambda _: Form(_named("int64", "io.debezium.time.MicroTime"), _clock),
    "datetime": _datetime,
    "timestamp": lambda _: Form(_named("string", "io.debezium.time.ZonedTimestamp"), _zoned, "CAST(%s AS DATETIME(6))"),
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext"), _string),
    "enum": _enum,
    "set": lambda column: Form(_listed("EnumSet", _allowed(column)), _text),
    "uuid": lambda _: Form(_named("string", "io.debezium.data.Uuid"), _text, "CAST(%s AS UUID)"),
    "bit": _bits,
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), _bytes),
}
