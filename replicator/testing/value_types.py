"""The value types of random histories: an Arrow type, useful values, and their form in Debezium."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class ValueType:
    """A value type. `values`: by number, the first is the plainest. `schema`: the Kafka Connect schema of a field.
    `encode`: the form of a value in the JSON converter."""

    type: pa.DataType
    values: tuple[Any, ...]
    schema: Mapping[str, Any]
    encode: Callable[[Any], Any] = field(default=lambda value: value)

    def get_value(self, salt: int) -> Any:
        """The value of that number. Numbers after the last start again."""
        return self.values[salt % len(self.values)]


def to_micros(value: datetime) -> int:
    """Microseconds since 1970."""
    return (value - EPOCH) // timedelta(microseconds=1)


def encode_decimal(value: Decimal) -> str:
    """Base64 of the big-endian two's complement of the unscaled value: Connect's Decimal."""
    number = int(value.scaleb(2))
    return base64.b64encode(number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)).decode()


def encode_instant(value: datetime) -> str:
    """The form of `io.debezium.time.ZonedTimestamp`."""
    return value.strftime("%Y-%m-%dT%H:%M:%S.%f") + "Z"


def encode_number(value: float) -> float | str:
    """A double in the JSON converter: values outside JSON are text."""
    return value if abs(value) < float("inf") else {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]


VALUE_TYPES: dict[str, ValueType] = {
    "int": ValueType(pa.int64(), (0, 1, -1, 2**53 + 1, -(2**63), 2**63 - 1), {"type": "int64"}),
    "small": ValueType(pa.int32(), (0, 7, -7, 2**31 - 1, -(2**31)), {"type": "int32"}),
    "text": ValueType(
        pa.string(),
        ("a", "", "it's", 'say "no"; --', "back\\slash\ttab\nline", "é漢🎉", "NULL", "\\N", "{a,b}", "__unset__"),
        {"type": "string"},
    ),
    "truth": ValueType(pa.bool_(), (True, False), {"type": "boolean"}),
    "double": ValueType(
        pa.float64(),
        (0.5, -0.1, 1e300, 5e-324, float("inf"), float("-inf"), float("nan")),
        {"type": "double"},
        encode_number,
    ),
    "money": ValueType(
        pa.decimal128(12, 2),
        tuple(Decimal(text) for text in ("0.01", "0.00", "-0.01", "9999999999.99", "-9999999999.99")),
        {
            "type": "bytes",
            "name": "org.apache.kafka.connect.data.Decimal",
            "version": 1,
            "parameters": {"scale": "2", "connect.decimal.precision": "12"},
        },
        encode_decimal,
    ),
    "day": ValueType(
        pa.date32(),
        (date(2024, 2, 29), date(1970, 1, 1), date(1815, 12, 10), date(9999, 12, 31)),
        {"type": "int32", "name": "io.debezium.time.Date", "version": 1},
        lambda value: (value - EPOCH.date()).days,
    ),
    "instant": ValueType(
        pa.timestamp("us", "UTC"),
        tuple(datetime(y, 1, 2, 3, 4, 5, us, UTC) for y, us in ((2024, 0), (1969, 999_999), (1900, 1), (9999, 123_456))),
        {"type": "string", "name": "io.debezium.time.ZonedTimestamp", "version": 1},
        encode_instant,
    ),
    "bytes": ValueType(
        pa.binary(),
        (b"\x00\xff", b"", b"'\\", b"__debezium"),
        {"type": "bytes"},
        lambda value: base64.b64encode(value).decode(),
    ),
}
"""By the name of a column's type in a history."""

KEY_TYPES: dict[str, tuple[str, ...]] = {
    "int": ("int",),
    "text": ("text",),
    "composite": ("small", "text"),
    "none": (),
}
"""The types of the key columns, by the name of a key."""

TOAST = {"text": "__debezium_unavailable_value", "bytes": base64.b64encode(b"__debezium_unavailable_value").decode()}
"""Debezium's placeholder of an unchanged value. Only values of variable length can have it."""
