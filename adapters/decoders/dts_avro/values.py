"""Values of images to text or bytes."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from replicator.domain.errors import RejectCode

from ...arrow.record_errors import ValueMisfit
from .schema import NAMESPACE

Value = tuple[str, Mapping[str, Any]]
"""The name of a branch and its record."""

NULL, NONE = "NULL", "NONE"
WHOLE = "%04d-%02d-%02d %02d:%02d:%02d"
FULL = WHOLE + ".%06d"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROS = 1_000_000
MOSTLY = "utf8mb4"
OFFSET = re.compile(r"(?:GMT|UTC)?([+-])(\d{1,2})(?::?(\d\d))?\Z", re.ASCII)
GREENWICH = frozenset({"Z", "UTC", "GMT"})


def to_text_or_bytes(value: Value) -> str | bytes:
    """The text of a value, or its bytes if it is binary. Raises ValueMisfit."""
    branch, said = value
    return BRANCHES[branch](said)


def to_timestamp_text(seconds: int, micros: int) -> str:
    """A time in UTC as text without a zone."""
    if not 0 <= micros < MICROS:
        raise ValueMisfit(RejectCode.OUT_OF_RANGE, "holds a time whose fraction is no number of microseconds")
    try:
        at = EPOCH + timedelta(seconds=seconds, microseconds=micros)
    except OverflowError:
        raise ValueMisfit(RejectCode.OUT_OF_RANGE, "holds a time outside the years 1 to 9999") from None
    return at.replace(tzinfo=None).isoformat(" ")


def to_clock_text(said: Mapping[str, int | None]) -> str:
    """A date, a time of day or span, both, or a year, depending on the parts. A fraction is in microseconds."""
    parts: tuple[Any, ...] = (*said.values(),)
    if None not in parts and min(parts) >= 0 and parts[-1] < MICROS:
        return FULL % parts if parts[-1] else WHOLE % parts[:-1]
    date = [said["year"], said["month"], said["day"]]
    time = [said["hour"], said["minute"], said["second"]]
    if time == [None, None, None] and said["millis"] is None:
        return f"{date[0]:04}" if date[0] is not None and date[1:] == [None, None] else _date_text(date)
    if date == [None, None, None]:
        return _time_text(time, said["millis"] or 0)
    return f"{_date_text(date)} {_time_text(time, said['millis'] or 0)}"


def _date_text(parts: list[int | None]) -> str:
    year, month, day = parts
    if year is None or month is None or day is None:
        raise ValueMisfit(RejectCode.MALFORMED, "holds a date without year, month or day")
    return f"{year:04}-{month:02}-{day:02}"


def _time_text(parts: list[int | None], micros: int) -> str:
    """A time of day or a span. In a negative span no part is positive."""
    hour, minute, second = (part or 0 for part in parts)
    if min(hour, minute, second, micros) < 0 < max(hour, minute, second, micros) or abs(micros) >= MICROS:
        raise ValueMisfit(RejectCode.OUT_OF_RANGE, "holds a time of day whose parts do not go together")
    sign = "-" if min(hour, minute, second, micros) < 0 else ""
    fraction = f".{abs(micros):06}" if micros else ""
    return f"{sign}{abs(hour):02}:{abs(minute):02}:{abs(second):02}{fraction}"


def _zoned_text(said: Mapping[str, Any]) -> str:
    """The text with an ISO 8601 offset. Other zone names follow after a space, and no time type reads them."""
    zone = said["timezone"].strip()
    found = OFFSET.match(zone)
    if found:
        return f"{to_clock_text(said['value'])}{found[1]}{int(found[2]):02}:{found[3] or '00'}"
    return f"{to_clock_text(said['value'])}{'Z' if zone in GREENWICH else f' {zone}'}"


def _decode_characters(said: Mapping[str, Any]) -> str | bytes:
    value: bytes = said["value"]
    if said["charset"] == MOSTLY:
        return decode_text(MOSTLY, value)
    return value if said["charset"].lower() == BINARY else decode_text(said["charset"], value)


def _read_as_is(said: Mapping[str, Any]) -> str | bytes:
    value: str | bytes = said["value"]
    return value


def _float_text(said: Mapping[str, Any]) -> str:
    text = repr(said["value"])
    return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(text, text)


INTEGER = f"{NAMESPACE}.Integer"
PLAIN = frozenset(f"{NAMESPACE}.{name}" for name in ("Integer", "Decimal", "TextGeometry", "TextObject"))
"""Branches whose `value` is the text."""
BRANCHES: Mapping[str, Callable[[Mapping[str, Any]], str | bytes]] = {
    f"{NAMESPACE}.{name}": read
    for name, read in {
        **dict.fromkeys(("Integer", "Decimal"), _read_as_is),
        "Character": _decode_characters,
        "Float": _float_text,
        "Timestamp": lambda said: to_timestamp_text(said["timestamp"], said["millis"]),
        "DateTime": to_clock_text,
        "TimestampWithTimeZone": _zoned_text,
        **dict.fromkeys(("BinaryGeometry", "TextGeometry", "BinaryObject", "TextObject"), _read_as_is),
    }.items()
}


# Character set names of sources, and the Python codecs that decode them in the same way.


BINARY = "binary"
UNDEFINED = frozenset(b"\x81\x8d\x8f\x90\x9d")
"""Bytes without a character in Windows code page 1252. MySQL's latin1 maps them to control characters."""

CODECS = {
    **dict.fromkeys(("utf8", "utf8mb3", "utf8mb4"), "utf-8"),
    **dict.fromkeys(("ascii", "usascii"), "ascii"),
    **dict.fromkeys(("utf16", "utf16be", "ucs2"), "utf-16-be"),
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
    "gbk": "gbk",
    "gb2312": "gb2312",
    "gb18030": "gb18030",
    "big5": "big5",
    "sjis": "shift_jis",
    "cp932": "cp932",
    "ujis": "euc_jp",
    "euckr": "euc_kr",
    "latin2": "iso8859-2",
    "latin5": "iso8859-9",
    "greek": "iso8859-7",
    "hebrew": "iso8859-8",
    "koi8r": "koi8-r",
    "koi8u": "koi8-u",
    "tis620": "tis-620",
    **{f"cp{n}": f"cp{n}" for n in (850, 852, 866, 1250, 1251, 1256, 1257)},
}


def _decode_latin1(value: bytes) -> str:
    if value.isascii():
        return value.decode("ascii")
    return "".join([chr(b) if b in UNDEFINED else bytes((b,)).decode("cp1252") for b in value])


def _find_decoder(codec: str) -> Callable[[bytes], str]:
    if codec == "utf-8":
        return bytes.decode
    read = codecs.lookup(codec).decode
    return lambda value: read(value, "strict")[0]


DECODERS = {name: _find_decoder(codec) for name, codec in CODECS.items()} | dict.fromkeys(
    ("latin1", "cp1252"), _decode_latin1
)


def decode_text(charset: str, value: bytes) -> str:
    """The text of bytes in a character set. Raises ValueMisfit for an unknown character set and for invalid bytes."""
    decode = DECODERS.get(charset)
    if decode is None:
        decode = DECODERS.get(charset.lower().replace("-", "").replace("_", ""))
    if decode is None:
        raise ValueMisfit(RejectCode.MALFORMED, f"holds text in the character set {charset[:40]!r}, which is not known")
    try:
        return decode(value)
    except UnicodeError:
        raise ValueMisfit(
            RejectCode.MALFORMED, f"holds bytes that are no text in the character set {charset[:40]!r}"
        ) from None
