"""Mutations of good records: bytes, JSON and CSV lines, altered where a reader may fail.

Every function gets the record and a random generator, and returns the altered record. The same seed gives the same
result.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

Mutation = Callable[[bytes, Random], bytes]

LIMITS = tuple(
    str(sign * 2**bits + off) for bits in (7, 8, 15, 16, 31, 32, 53, 63, 64) for sign in (1, -1) for off in (-1, 0, 1)
)
NUMBERS = (
    *LIMITS, "0", "-0", "-0.0", "1e400", "-1e400", "1e-400", "1e9", "1E+2", "0.1", "3.4028236e38", "9" * 40, "-" + "9" * 400,
    "1." + "0" * 60, "0." + "3" * 60, "1e2147483648", "253402300800000", "-62135596800001", "253402300800000000",
)  # fmt: skip
"""JSON numbers, most of them just inside or outside the range of some type."""
TEXTS = (
    "", " ", "a", "é☃\U0001f600", "\x00", "a\x00b", "\x7f\x80", "\u2028", "\ufeff1", "null", "NULL", "true", "t", "f",
    "2", "0x10",
    "1_000", " 1", "1 ", "+1", "١", "NaN", "Infinity", "-Infinity", "nan", "inf", "1e5", "1,5", "0.105",
    "12345678901234567890.5",
    "0000-00-00", "0000-00-00 00:00:00", "0001-01-01", "9999-12-31 23:59:59.999999", "10000-01-01", "2024-02-30",
    "2023-02-29",
    "2024-02-29", "2024-02-29T24:00:00", "2024-02-29 23:59:60", "2024-02-29 23:59:59.1234567", "2024-02-29T10:00:00+14:00",
    "2024-02-29T10:00:00Z", "2024-02-29 10:00:00 Europe/Paris", "-00:00:01", "23:59:59.999999", "838:59:59", "25:00:00",
    "24:00:00",
    "AA==", "A", "AA=", "=", "AA==\n", "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==", "__debezium_unavailable_value", "[1",
    "{}",
    '["1","2"]', '{"a":', "int64", "decimal(10,2)", "decimal(99,2)", "struct", "io.debezium.time.MicroTimestamp",
    "x" * 70_000,
    "c", "u", "d", "r", "t", "m", "I", "U", "D", "T", "INSERT", "delete",
)  # fmt: skip
"""Texts: numbers, times, placeholders and codes, right and nearly right."""
ODD = (
    rb'"\ud800"', rb'"\udc00\ud800"', rb'"a\ud83d"', rb'"\u0000"', b'"\xff"', b'"\xed\xa0\x80"', b'"\xc0\x80"',
    b'"\x01"', b'"\\x"',
    b'"', b"01", b"1.", b".5", b"+1", b"NaN", b"Infinity", b"-", b"1e", b"nul", b"TRUE", b"'a'", b"", b" ", b"1 2",
    b"{}", b"[]",
    b"{,}", b"[,]", b"[1,]", b'{"a":1,}', b'{"a":1,"a":2}', b'{1:2}', b"\xef\xbb\xbf1", b"//", b"]", b"}",
    b'"\\ud800\\u0041"',
    *(b"[" * n + b"]" * n for n in (9, 62, 63, 64, 65, 500, 3000)), b'{"a":' * 200 + b"1" + b"}" * 200, b"[" * 5000,
)  # fmt: skip
"""Replacements of a JSON value, most of them invalid."""
TOKENS = (
    b"null", b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"\\u", b"\x00", b"\xff", b"\xf0\x9f", b"\xef\xbb\xbf",
    b"-", b"1e9",
    b"\n", b"\r\n", b"true", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\xfe\xff\xff\xff\x0f", b"\x80" * 12, b"\x01",
    b"\x02",
)  # fmt: skip
QUOTES = (b'"', b'""', b'"""', b'"a', b'a"', b'"a"b', b'"a,\r\nb"', b"\r", b"\n", b"\x00", b"\xff", b"\\")
RAW_MARK = "@raw{}@"
AT_PAYLOAD = 0.92
"""The probability of altering the payload of a document with a schema. Another schema is another table, which is
learned."""


NESTED_SHARE = 0.6
"""The probability of descending into a container: rows are deeper in a document than the metadata of their table."""


def alter_bytes(value: bytes, rng: Random) -> bytes:
    """Flip bits, cut, double and move ranges, and insert tokens."""
    text = bytearray(value)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(text) + 1)
        kind = rng.randrange(6)
        if kind == 0 and at < len(text):
            text[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del text[at : at + rng.choice((1, 1, 2, 9, 40))]
        elif kind == 2:
            text[at:at] = rng.choice(TOKENS)
        elif kind == 3:
            text[at:at] = text[at : at + rng.choice((1, 4, 30))] * rng.choice((1, 2))
        elif kind == 4 and rng.random() < 0.3:
            del text[at:]
        else:
            text[at : at + 1] = bytes((rng.randrange(256),))
    return bytes(text)


def alter_json(value: bytes, rng: Random) -> bytes:
    """Replace, remove, double, rename or nest values. Sometimes, and if it is not JSON, alter bytes."""
    if rng.random() < 0.12:
        return alter_bytes(value, rng)
    try:
        document = msgspec.json.decode(value)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return alter_bytes(value, rng)
    raw: list[bytes] = []
    holder = [document]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        _alter_somewhere(holder, rng, raw)
    out = msgspec.json.encode(holder[0])
    for number, token in enumerate(raw):
        out = out.replace(b'"' + RAW_MARK.format(number).encode() + b'"', token)
    return out


def _alter_somewhere(holder: list[Any], rng: Random, raw: list[bytes]) -> None:
    at: Any = holder
    key: Any = 0
    while isinstance(at[key], dict | list) and at[key] and rng.random() < 0.9:
        at, key = at[key], _choose_key(at[key], rng)
    _alter_value(at, key, rng, raw)


def _choose_key(container: Any, rng: Random) -> Any:
    if isinstance(container, list):
        return rng.randrange(len(container))
    if "payload" in container and rng.random() < AT_PAYLOAD:
        return "payload"
    deep = [key for key, value in container.items() if value and isinstance(value, dict | list)]
    return rng.choice(deep if deep and rng.random() < NESTED_SHARE else list(container))


def _alter_value(at: Any, key: Any, rng: Random, raw: list[bytes]) -> None:
    value = at[key]
    kind = rng.randrange(12)
    if kind <= 2 or not (kind <= 8 or isinstance(at, dict) or len(at) > 1):
        at[key] = _add_raw(rng.choice(NUMBERS).encode(), raw)
    elif kind <= 4:
        at[key] = rng.choice(TEXTS)
    elif kind == 5 and rng.random() < 0.5:
        at[key] = _add_raw(rng.choice(ODD), raw)
    elif kind == 6:
        at[key] = rng.choice((None, True, False, [], {}, 0, 1))
    elif kind == 7:
        at[key] = rng.choice(([value], {"a": value}, [value, value], {"value": value, "scale": 2}))
    elif kind == 8:
        at[key] = _change_representation(value)
    elif kind == 9 and isinstance(at, dict):
        del at[key]
    elif kind == 10 and isinstance(at, dict):
        names = ("", '"', "\\", "\n", "é", "k" * 300, "id", key.swapcase(), f"{key}_", rng.choice(list(at)))
        at[rng.choice(names)] = at.pop(key)
    elif isinstance(at, dict):
        twin = msgspec.json.encode(rng.choice((value, None, 1, "2"))) + b"," + msgspec.json.encode(key) + b":"
        at[key] = _add_raw(twin + msgspec.json.encode(value), raw)
    else:
        at.extend(at[: rng.choice((1, 2, 40))])


def _add_raw(token: bytes, raw: list[bytes]) -> str:
    raw.append(token)
    return RAW_MARK.format(len(raw) - 1)


def _change_representation(value: Any) -> Any:
    """A number as text, text as a number, anything else as JSON text."""
    if isinstance(value, str):
        try:
            return msgspec.json.decode(value.encode("utf-8", "replace"))
        except (msgspec.MsgspecError, RecursionError):
            return value + value
    return str(value) if isinstance(value, int | float) else msgspec.json.encode(value).decode()


def alter_csv(value: bytes, rng: Random) -> bytes:
    """Replace, remove, double, quote and unquote cells; or alter bytes."""
    if rng.random() < 0.15:
        return alter_bytes(value, rng)
    cells = value.split(b",")
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(cells))
        kind = rng.randrange(10)
        if kind <= 2:
            cells[at] = rng.choice(NUMBERS).encode()
        elif kind <= 4:
            cells[at] = rng.choice(TEXTS).encode()
        elif kind == 5:
            cells[at] = rng.choice(QUOTES)
        elif kind == 6:
            cells[at] = b'"' + cells[at].replace(b'"', b'""') + b'"'
        elif kind == 7 and len(cells) > 1:
            del cells[at]
        elif kind == 8:
            cells.insert(at, rng.choice((b"", cells[at], b"x" * 70_000)))
        else:
            cells[at], cells[0] = cells[0], cells[at]
    return b",".join(cells)
