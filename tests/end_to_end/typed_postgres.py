"""A table with every PostgreSQL type that a connector sends without loss, and special values."""

from __future__ import annotations

import json
import re
import struct
from base64 import b64decode
from decimal import Decimal
from random import Random
from typing import Any

from .typed import (
    Typed,
    any_double,
    any_json,
    any_single,
    any_text,
    array,
    bits,
    clock,
    day,
    digits,
    document,
    floating,
    make_timestamp,
    number,
    octets,
    same,
    several,
    single,
    span,
    stamp,
    whole,
)  # fmt: skip

PREPARE = """
CREATE EXTENSION hstore; CREATE EXTENSION citext; CREATE EXTENSION ltree;
CREATE TYPE mood AS ENUM ('sad', 'ok', 'a,b'); CREATE DOMAIN natural_number AS int CHECK (value > 0);
"""
UUID = "11111111-1111-1111-1111-111111111111"


def choose_from(*values: str) -> Any:
    return lambda random: random.choice(values)


def some_bytes(random: Random) -> str:
    return "\\x" + random.randbytes(random.randint(0, 9)).hex()


def some_bits(length: int) -> Any:
    return lambda random: f"{random.getrandbits(length):0{length}b}"


def some_span(random: Random) -> str:
    months, days = random.randint(-40, 40), random.randint(-400, 400)
    return f"{months} mons {days} days {Decimal(random.randint(-(10**12), 10**12)).scaleb(-6):f} seconds"


def some_uuid(random: Random) -> str:
    return random.randbytes(16).hex()


def some_pairs(random: Random) -> str:
    def quote_value(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    keys = {any_text(random) for _ in range(3)}
    return ",".join(f"{quote_value(k)}=>{random.choice(('NULL', quote_value(any_text(random))))}" for k in sorted(keys))


def some_range(random: Random) -> str:
    low = random.randint(-99, 99)
    return f"[{low},{low + random.randint(1, 9)}.5]"


def some_numbers(random: Random) -> str:
    return f"[{random.randint(-9, 0)},{random.randint(1, 9)}]"


def money(value: Any) -> Decimal:
    """PostgreSQL's text of money has the signs of a locale."""
    return Decimal(re.sub(r"[^\d.-]", "", value)) if isinstance(value, str) else number(value)


def point(value: Any) -> Any:
    """The coordinates, from PostgreSQL's text or from fields. In fields, the bytes (WKB) must have the same
    coordinates."""
    if isinstance(value, str) and value.startswith("("):
        return [floating(float(part)) for part in value.strip("()").split(",")]
    fields = json.loads(value) if isinstance(value, str) else value
    found = [floating(float(fields[name])) for name in "xy"]
    raw = b64decode(fields["wkb"]) if isinstance(fields["wkb"], str) else fields["wkb"]
    assert raw[:5] == b"\x01\x01\x00\x00\x00" and [floating(part) for part in struct.unpack("<dd", raw[5:])] == found
    assert fields["srid"] is None
    return found


NINES = "9" * 28 + "." + "9" * 10
COLUMNS = (
    Typed("b", "boolean", ("true", "false"), choose_from("t", "f"), same),
    Typed("i2", "smallint", ("-32768", "32767"), whole(-(2**15), 2**15 - 1), number),
    Typed("i4", "integer", ("-2147483648", "2147483647"), whole(-(2**31), 2**31 - 1), number),
    Typed("i8", "bigint", ("-9223372036854775808", "9223372036854775807"), whole(-(2**63), 2**63 - 1), number),
    Typed("o", "oid", ("0", "4294967295"), whole(0, 2**32 - 1), number),
    Typed("dom", "natural_number", ("2147483647",), whole(1, 2**31 - 1), number),
    Typed("f4", "real", ("NaN", "Infinity", "-Infinity", "-0", "3.4028235e38", "1e-45", "0.1"), any_single, single),
    Typed("f8", "double precision", ("NaN", "Infinity", "-Infinity", "-0", "5e-324", "1.7976931348623157e308", "0.1"),
          any_double, floating),
    Typed("n", "numeric", ("0", "-0.00", "1.500", "1e1000", "1e-16383", f"{'8' * 60}.5"), digits(200, 50), number),
    Typed("n10", "numeric(10,2)", ("99999999.99", "-0.01"), digits(10, 2), number),
    Typed("n38", "numeric(38,10)", (NINES, f"-{NINES}", "1e-10"), digits(38, 10), number),
    Typed("n50", "numeric(50,5)", ("9" * 45 + ".99999", "-1e-5"), digits(50, 5), number),
    Typed("n100", "numeric(100,50)", ("9" * 50 + "." + "9" * 50, "-1e-50"), digits(100, 50), number),
    Typed("n_left", "numeric(3,-2)", ("99900", "-100", "0"), choose_from("12300", "-45600"), number),
    Typed("n_right", "numeric(2,5)", ("0.00099", "-0.00001"), choose_from("0.00012", "0"), number),
    Typed("m", "money", ("0.01", "-9999999999999.99"), digits(14, 2), money),
    Typed("t", "text", ("", "NULL", "\\N", '"', "\\", "\x01", "漢字 🎉"), any_text, same),
    Typed("v", "varchar(20)", ("", " x "), any_text, same),
    Typed("c", "char(5)", ("a", ""), choose_from("ab", "abcde"), same),
    Typed("ci", "citext", ("Ab",), any_text, same),
    Typed("by", "bytea", ("", "\\x00ff5c"), some_bytes, octets),
    Typed("d", "date", ("1582-10-15", "1969-12-31", "9999-12-31"), lambda r: stamp(0, places=0)(r)[:10], day),
    Typed("t0", "time(0)", ("00:00:00", "23:59:59"), stamp(11, places=0), clock),
    Typed("t3", "time(3)", ("23:59:59.999",), stamp(11, places=3), clock),
    Typed("t6", "time", ("00:00:00.000001", "23:59:59.999999"), stamp(11), clock),
    Typed("tz", "timetz", ("23:59:59.999999+00",), lambda r: stamp(11)(r) + "+00", clock),
    Typed("ts0", "timestamp(0)", ("1582-10-15 00:00:00", "9999-12-31 23:59:59"), stamp(0, places=0), make_timestamp),
    Typed("ts3", "timestamp(3)", ("1969-12-31 23:59:59.999",), stamp(0, places=3), make_timestamp),
    Typed("ts6", "timestamp", ("1969-12-31 23:59:59.999999", "9999-12-31 23:59:59.999999"), stamp(0), make_timestamp),
    Typed("tsz", "timestamptz", ("1969-12-31 23:59:59.999999+00", "9999-12-31 23:59:59.999999+00"),
          lambda r: stamp(0)(r) + r.choice(("+00", "+05:30", "-08")), make_timestamp),
    Typed("iv", "interval", ("0", "1 year 2 mons 3 days 04:05:06.789012", "1 mon -1 day", "-1 mon 1 day -00:00:01",
                             "0.000001 seconds", "-0.000001 seconds", "2147483647 days", "-999999 hours"), some_span, span),
    Typed("u", "uuid", (UUID,), some_uuid, same),
    Typed("j", "json", ('{"b": 1.10,  "a":[]}', "null", '"x"', "1e400"), any_json, document),
    Typed("jb", "jsonb", ('{"a": 12345678901234567890.1234567890123456789}', "null", "[]", "1e400"), any_json, document),
    Typed("x", "xml", ("<a>é</a>", "text"), choose_from("<b/>", "<c d=\"e\">&amp;</c>"), same),
    Typed("hs", "hstore", ('a=>1,b=>NULL,""=>x', ""), some_pairs, document),
    Typed("lt", "ltree", ("a.b",), choose_from("a", "b.c.d"), same),
    Typed("ip", "inet", ("10.0.0.1/8", "::1"), choose_from("192.168.0.1", "fe80::1/64"), same),
    Typed("net", "cidr", ("10.0.0.0/8",), choose_from("192.168.0.0/24", "fe80::/64"), same),
    Typed("mac", "macaddr", ("08:00:2b:01:02:03",), choose_from("ff:ff:ff:ff:ff:ff"), same),
    Typed("b1", "bit(1)", ("0", "1"), choose_from("0", "1"), lambda value: value in (True, "1")),
    Typed("b9", "bit(9)", ("100000010", "000000000"), some_bits(9), bits(9)),
    Typed("b70", "bit(70)", ("1" * 70, "1" + "0" * 69), some_bits(70), bits(70)),
    Typed("e", "mood", ("sad", "a,b"), choose_from("sad", "ok", "a,b"), same),
    Typed("ir", "int4range", ("[1,5)", "empty", "(,)"), some_numbers,
          same),
    Typed("nr", "numrange", ("(1.5,)",), some_range, same),
    Typed("tv", "tsvector", ("a:1 b:2",), choose_from("c", "'it''s' d:3A"), same),
    Typed("p", "point", ("(1.5,-2.25)", "(NaN,Infinity)", "(0,5e-324)"),
          lambda r: f"({any_double(r)},{any_double(r)})", point),
    Typed("a_b", "boolean[]", ("{}", "{t,NULL,f}"), array(choose_from("t", "f")), several(same)),
    Typed("a_i2", "smallint[]", ("{-32768,NULL}",), array(whole(-(2**15), 2**15 - 1)), several(number)),
    Typed("a_i4", "integer[]", ("{2147483647,NULL}",), array(whole(-(2**31), 2**31 - 1)), several(number)),
    Typed("a_i8", "bigint[]", ("{9223372036854775807,NULL}",), array(whole(-(2**63), 2**63 - 1)), several(number)),
    Typed("a_f4", "real[]", ("{NaN,Infinity,-0,NULL}",), array(any_single), several(single)),
    Typed("a_f8", "double precision[]", ("{NaN,-Infinity,-0,NULL}",), array(any_double), several(floating)),
    Typed("a_n", "numeric[]", ("{1.5,NULL,-0.001}",), array(digits(60, 20)), several(number)),
    Typed("a_n10", "numeric(10,2)[]", ("{99999999.99,NULL}",), array(digits(10, 2)), several(number)),
    Typed("a_t", "text[]", ('{a,NULL,"NULL","","a,b"}', "{}"), array(any_text), several(same)),
    Typed("a_by", "bytea[]", ('{"\\\\x00ff",NULL}',), array(some_bytes), several(octets)),
    Typed("a_d", "date[]", ("{9999-12-31,NULL}",), array(lambda r: stamp(0, places=0)(r)[:10]), several(day)),
    Typed("a_tm", "time[]", ("{23:59:59.999,NULL}",), array(stamp(11, places=3)), several(clock)),
    Typed("a_ts", "timestamp[]", ('{"9999-12-31 23:59:59.999999",NULL}',), array(stamp(0)), several(make_timestamp)),
    Typed("a_tsz", "timestamptz[]", ('{"2024-02-29 12:00:00.5+02",NULL}',), array(lambda r: stamp(0)(r) + "+00"),
          several(make_timestamp)),
    Typed("a_u", "uuid[]", (f"{{{UUID},NULL}}",), array(some_uuid), several(same)),
    Typed("a_jb", "jsonb[]", ('{"{\\"a\\": 1}",NULL}',), array(any_json), several(document)),
    Typed("a_ip", "inet[]", ("{10.0.0.1,NULL}",), array(choose_from("::1", "10.0.0.1/8")), several(same)),
)  # fmt: skip

EARLY = {
    "d": "0001-01-01",
    "ts6": "0001-01-01 00:00:00",
    "tsz": "0001-01-01 00:00:00+00",
    "a_d": "{0001-01-01}",
    "m": "-92233720368547758.08",
}
"""Values that a connector reads correctly in the log, but not in a snapshot: days before 1582-10-15, large money."""

BEYOND = tuple(
    (column, value)
    for column, values in {
        "d": ("infinity", "-infinity", "10000-01-01", "0001-12-31 BC", "4713-01-01 BC", "5874897-12-31"),
        "ts3": ("infinity", "-infinity", "10000-01-01", "0001-01-01 BC", "294276-12-31 23:59:59.999"),
        "ts6": ("infinity", "-infinity", "10000-01-01", "0001-12-31 23:59:59.999999 BC", "4713-01-01 BC"),
        "tsz": ("infinity", "-infinity", "10000-01-01 00:00:00+00", "0001-12-31 23:59:59.999999+00 BC",
                "9999-12-31 23:59:59-01"),
        "t0": ("24:00:00",),
        "t6": ("24:00:00",),
        "a_d": ("{2024-01-01,infinity}",),
        "a_ts": ("{infinity,NULL}",),
        "a_tsz": ("{10000-01-01 00:00:00+00}",),
    }.items()
    for value in values
)  # fmt: skip
"""Values that must be rejected, each in a separate row."""
