"""MongoDB's extended JSON (canonical, relaxed and version 1) as values of declared columns.

| BSON | in a column of |
| --- | --- |
| ObjectId, symbol, UUID in text | string |
| 32 and 64 bits, double, decimal128 | a number that can hold it; string |
| date | timestamp, timestamp[us, UTC], string, or date32 if it is midnight in UTC |
| binary | binary; string, as base64 |
| document, array, regular expression and the rest | string, as its JSON; an array in a list of its type |
| null, undefined | NULL |
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any

import msgspec

from replicator.domain.errors import RejectCode

from ...arrow.record_errors import ValueMisfit

DAY_MS = 86_400_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LIST = re.compile(r"list<(?:item:|element:)?(.+)>\Z")
NUMBER = re.compile(r"-?\d+(\.\d+)?(E[+-]?\d+)?\Z")

Convert = Callable[[bytes], Any]
"""Converts the JSON of one value to the form that a declared column reads. Raises ValueMisfit."""


@dataclass(frozen=True)
class Instant:
    """A date, in milliseconds since 1970."""

    ms: int

    @property
    def iso(self) -> str:
        """The date as text in UTC."""
        try:
            return (EPOCH + timedelta(milliseconds=self.ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        except OverflowError:
            raise ValueMisfit(RejectCode.OUT_OF_RANGE, "holds a date outside the years 1 to 9999") from None


@dataclass(frozen=True)
class Base64Bytes:
    """Binary data as base64."""

    text: str


class Digits(str):
    """A decimal128 as text."""


def _date(said: Any) -> Instant:
    said = unwrap(said) if isinstance(said, dict) else said
    if isinstance(said, str):
        at = datetime.fromisoformat(said) - EPOCH
        return Instant((at.days * 86_400 + at.seconds) * 1000 + at.microseconds // 1000)
    return Instant(int(said))


def _double(said: Any) -> Any:
    if said in ("NaN", "Infinity", "-Infinity"):
        return str(said)
    found = float(said)
    if not isfinite(found):
        raise ValueError
    return found


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "$oid": str,
    "$numberInt": int,
    "$numberLong": int,
    "$numberDouble": _double,
    "$numberDecimal": Digits,
    "$date": _date,
    "$binary": lambda said: Base64Bytes(said["base64"] if isinstance(said, dict) else said),
    "$uuid": str,
    "$symbol": str,
    "$undefined": lambda _: None,
}


def unwrap(value: Any) -> Any:
    """The value without the object that names its type. Documents, arrays and other values stay as they are."""
    if not isinstance(value, dict) or not value:
        return value
    name = next(iter(value))
    if name in WRAPPERS and len(value) == (2 if name == "$binary" and "$type" in value else 1):
        try:
            return WRAPPERS[name](value[name])
        except (ValueError, TypeError, KeyError, OverflowError):
            raise ValueMisfit(RejectCode.MALFORMED, f"holds an invalid {name}") from None
    return value


def make_converter(said: str) -> Convert:
    """The converter for values of a column declared as `said` (see `declared_columns`)."""
    name = re.sub(r"\s+", "", said.lower())
    if inner := LIST.match(name):
        return _list_converter(make_converter(inner[1]))
    return _text if name in ("string", "utf8") else _scalar_converter(_field_converter(name))


def _field_converter(name: str) -> Callable[[Any], Any]:
    if name.startswith("timestamp"):
        return lambda v: v.iso if isinstance(v, Instant) else v
    return SIMPLE.get(name, _number if name.startswith("decimal") else _to_integer)


def _number(value: Any) -> Any:
    """Decimals as JSON numbers, because their text might be read as Base64."""
    return msgspec.Raw(value.encode()) if isinstance(value, Digits) and NUMBER.match(value) else value


def _to_integer(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _binary(value: Any) -> Any:
    return value.text if isinstance(value, Base64Bytes) else value


def _floating(value: Any) -> Any:
    if not isinstance(value, Digits):
        return value
    try:
        return _double(value)
    except ValueError:
        raise ValueMisfit(RejectCode.OUT_OF_RANGE, "holds a number that its type cannot hold") from None


def _day(value: Any) -> Any:
    if not isinstance(value, Instant):
        return value
    if value.ms % DAY_MS:
        raise ValueMisfit(RejectCode.OUT_OF_RANGE, "holds a date with a time of day; declare it as timestamp[us, UTC]")
    return value.ms // DAY_MS


SIMPLE: dict[str, Callable[[Any], Any]] = {
    "binary": _binary,
    **dict.fromkeys(("float", "float32", "float64", "double"), _floating),
    **dict.fromkeys(("date", "date32", "date32[day]"), _day),
}


def _scalar_converter(of: Callable[[Any], Any]) -> Convert:
    def convert(raw: bytes) -> Any:
        value = of(unwrap(msgspec.json.decode(raw)))
        if isinstance(value, Instant | Base64Bytes | dict | list):
            kinds = {Instant: "a date", Base64Bytes: "binary data", dict: "a document", list: "an array"}
            raise ValueMisfit(RejectCode.MALFORMED, f"holds {kinds[type(value)]}, which its declared type cannot hold")
        return str(value) if isinstance(value, Digits) else value

    return convert


def _list_converter(element: Convert) -> Convert:
    def convert(raw: bytes) -> Any:
        if unwrap(msgspec.json.decode(raw)) is None:
            return None
        return [element(bytes(one)) for one in msgspec.json.decode(raw, type=list[msgspec.Raw])]

    return convert


def _text(raw: bytes) -> str | None:
    value = unwrap(msgspec.json.decode(raw))
    if value is None or isinstance(value, str):
        return None if value is None else str(value)
    if isinstance(value, Instant):
        return value.iso
    if isinstance(value, Base64Bytes):
        return value.text
    whole = raw if isinstance(value, dict | list) else msgspec.json.encode(value)
    return msgspec.json.format(whole, indent=-1).decode()
