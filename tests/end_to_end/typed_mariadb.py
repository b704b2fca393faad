"""A table with every MariaDB type that a connector sends without loss, and special values."""

from __future__ import annotations

import json
import struct
from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from random import Random
from typing import Any
from uuid import UUID

from .typed import (
    Make,
    Typed,
    any_double,
    any_json,
    any_single,
    any_text,
    clock,
    day,
    digits,
    document,
    floating,
    make_timestamp,
    number,
    octets,
    same,
    single,
    stamp,
    whole,
)  # fmt: skip

FINITE = ("nan", "NaN", "inf", "Inf")


def quote_value(make: Make) -> Make:
    """The value as a text literal with any content."""
    return lambda random: text(make(random))


def text(value: str) -> str:
    return f"CONVERT(x'{value.encode().hex()}' USING utf8mb4)" if value else "''"


def octet(count: int, least: int = 0) -> Make:
    return lambda random: f"x'{random.randbytes(random.randint(least, count)).hex()}'"


def some_bits(length: int) -> Make:
    return lambda random: f"b'{random.getrandbits(length):0{length}b}'"


def finite(make: Make) -> Make:
    """Values without NaN and infinity."""

    def choose_value(random: Random) -> str:
        while any(word in (value := make(random)) for word in FINITE):
            pass
        return value

    return choose_value


def six_digits(random: Random) -> str:
    """A FLOAT with six digits: a snapshot contains no more."""
    return f"{float(finite(any_single)(random)):.6g}"


def choose_from(*values: str) -> Make:
    return lambda random: random.choice(values)


def some_point(random: Random) -> str:
    return f"POINT({random.uniform(-1e9, 1e9)!r}, {random.uniform(-90, 90)!r})"


def bits(value: Any) -> int:
    """A bit string as a number. Bytes start with the lowest, and one bit is a boolean."""
    if isinstance(value, bool | str):
        return int(value)
    return int.from_bytes(bytes(value), "little")


def shape(value: Any) -> tuple[bytes, int]:
    """A geometry as WKB, and its reference system."""
    if isinstance(value, tuple):
        return value
    fields = json.loads(value) if isinstance(value, str) else value
    raw = fields["wkb"]
    return (b64decode(raw) if isinstance(raw, str) else bytes(raw)), fields["srid"] or 0


def spot(value: Any) -> tuple[bytes, int]:
    """A point. Its coordinates must equal its WKB."""
    found = shape(value)
    if not isinstance(value, tuple):
        fields = json.loads(value) if isinstance(value, str) else value
        assert struct.unpack("<dd", found[0][5:]) == (fields["x"], fields["y"])
    return found


COLUMNS = (
    Typed("flag", "boolean", ("0", "1"), choose_from("true", "false"), number),
    Typed("ti", "tinyint", ("-128", "127"), whole(-128, 127), number),
    Typed("tu", "tinyint unsigned", ("0", "255"), whole(0, 255), number),
    Typed("si", "smallint", ("-32768", "32767"), whole(-(2**15), 2**15 - 1), number),
    Typed("su", "smallint unsigned", ("0", "65535"), whole(0, 2**16 - 1), number),
    Typed("mi", "mediumint", ("-8388608", "8388607"), whole(-(2**23), 2**23 - 1), number),
    Typed("mu", "mediumint unsigned", ("0", "16777215"), whole(0, 2**24 - 1), number),
    Typed("i", "int", ("-2147483648", "2147483647"), whole(-(2**31), 2**31 - 1), number),
    Typed("iu", "int unsigned", ("0", "4294967295"), whole(0, 2**32 - 1), number),
    Typed("bi", "bigint", ("-9223372036854775808", "9223372036854775807"), whole(-(2**63), 2**63 - 1), number),
    Typed("bu", "bigint unsigned", ("0", "18446744073709551615"), whole(0, 2**64 - 1), number),
    Typed("d10", "decimal(10,2)", ("99999999.99", "-0.01"), digits(10, 2), number),
    Typed("d38", "decimal(38,10)", ("9" * 28 + "." + "9" * 10, "-1e-10"), digits(38, 10), number),
    Typed("d65", "decimal(65,30)", ("9" * 35 + "." + "9" * 30, "-0." + "0" * 29 + "1"), digits(65, 30), number),
    Typed("f", "float", ("0.1", "3.40282e38", "-1.17549e-38"), six_digits, single),
    Typed("fd", "double", ("0.1", "1.7976931348623157e308", "-2.2250738585072014e-308"), finite(any_double), floating),
    Typed("b1", "bit(1)", ("b'0'", "b'1'"), choose_from("b'0'", "b'1'"), bits),
    Typed("b9", "bit(9)", ("b'100000010'", "b'000000000'"), some_bits(9), bits),
    Typed("b64", "bit(64)", (f"b'{'1' * 64}'",), some_bits(64), bits),
    Typed("dt", "date", ("'1582-10-15'", "'9999-12-31'"), quote_value(lambda r: stamp(0, places=0)(r)[:10]), day),
    Typed("t0", "time", ("'00:00:00'", "'23:59:59'"), quote_value(stamp(11, places=0)), clock),
    Typed("t6", "time(6)", ("'23:59:59.999999'", "'00:00:00.000001'"), quote_value(stamp(11)), clock),
    Typed("dt0", "datetime", ("'1582-10-15 00:00:00'", "'9999-12-31 23:59:59'"),
          quote_value(stamp(0, places=0)), make_timestamp),
    Typed("dt3", "datetime(3)", ("'1969-12-31 23:59:59.999'",), quote_value(stamp(0, places=3)), make_timestamp),
    Typed("dt6", "datetime(6)", ("'9999-12-31 23:59:59.999999'",), quote_value(stamp(0)), make_timestamp),
    Typed("ts0", "timestamp NULL", ("'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'"),
          quote_value(stamp(0, places=0, years=(1971, 2037))), make_timestamp),
    Typed("ts6", "timestamp(6) NULL", ("'2038-01-19 03:14:07.999999'",),
          quote_value(stamp(0, years=(1971, 2037))), make_timestamp),
    Typed("y", "year", ("1901", "2155"), choose_from("1999", "2024"), number),
    Typed("c", "char(5)", ("''", "'a'"), choose_from("'ab'", "'abcde'"), same),
    Typed("v", "varchar(20)", ("''", "' x'"), quote_value(any_text), same),
    Typed("t", "text", ("''", "'NULL'", text("\\N"), text("漢字 🎉")), quote_value(any_text), same),
    Typed("lt", "longtext", (text('"'), text("\\")), quote_value(any_text), same),
    Typed("e", "enum('a', 'b c', 'é')", ("'a'", "'b c'", "'é'"), choose_from("'a'", "'b c'"), same),
    Typed("s", "set('x', 'y', 'z')", ("''", "'x,y,z'"), choose_from("'x'", "'y,z'"), same),
    Typed("bin", "binary(4)", ("x'00ff5c00'", "x'01'"), octet(4, 1), octets),
    Typed("vb", "varbinary(9)", ("''", "x'00ff5c'"), octet(9), octets),
    Typed("bl", "blob", ("''", "x'00ff5c'"), octet(9), octets),
    Typed("j", "json", (text('{"b": 1.10,  "a":[]}'), "'null'", "'1e400'"), quote_value(any_json), document),
    Typed("u", "uuid", ("'11111111-1111-1111-1111-111111111111'",),
          lambda r: f"'{UUID(bytes=r.randbytes(16), version=4)}'", same),
    Typed("p", "point", ("POINT(1.5, -2.25)",), some_point, spot),
    Typed("g", "geometry", ("ST_GeomFromText('LINESTRING(0 0, 1.5 -2)')", "ST_GeomFromText('POLYGON((0 0,1 1,1 0,0 0))')"),
          some_point, shape),
)  # fmt: skip


def of_hex(found: str) -> str:
    return bytes.fromhex(found).decode()


def wkb(found: str) -> tuple[bytes, int]:
    srid, raw = found.split(":")
    return bytes.fromhex(raw), int(srid)


Asked = tuple[str, Callable[[str], Any]]
SAID: Mapping[str, Asked] = {
    **dict.fromkeys(("v", "t", "lt", "c", "e", "s", "j"), ("hex({})", of_hex)),
    **dict.fromkeys(("bin", "vb", "bl"), ("hex({})", bytes.fromhex)),
    **dict.fromkeys(("f", "fd"), ("{} * 1e0", float)),
    **dict.fromkeys(("b1", "b9", "b64"), ("{} + 0", str)),
    **dict.fromkeys(("dt",), ("{}", date.fromisoformat)),
    **dict.fromkeys(("dt0", "dt3", "dt6"), ("{}", datetime.fromisoformat)),
    **dict.fromkeys(("ts0", "ts6"), ("{}", lambda found: datetime.fromisoformat(found).replace(tzinfo=UTC))),
    **dict.fromkeys(("p", "g"), ("concat(st_srid({0}), ':', hex(st_aswkb({0})))", wkb)),
}
"""Column -> SQL expression of its values, and a function that parses the text. Other columns are read unchanged."""

BEYOND = (("t0", "'-00:00:01'"), ("t0", "'24:00:00'"), ("t0", "'838:59:59'"), ("t6", "'-838:59:59.000000'"))
"""Values that must be rejected, each in a separate row."""
