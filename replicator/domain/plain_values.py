"""Rows as Python values and as JSON values, text that is safe for a terminal, and counts with their noun."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""The time from which sources and stored states count milliseconds or microseconds."""


def to_rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """The rows of `table`. A value that Python cannot represent (a time outside the years 1 to 9999) is text."""
    columns = [to_values(column) for column in table.columns]
    return (dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True))


def to_values(column: pa.ChunkedArray) -> Iterable[Any]:
    """The values of a column, as in `to_rows`."""
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):
        return [_to_value(scalar) for scalar in column]


def _to_value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        if hasattr(scalar, "items"):
            return {name: _to_value(part) for name, part in scalar.items()}
        if hasattr(scalar, "values"):
            return [_to_value(part) for part in scalar.values]
        # Arrow's own text of such a time has a wrong year.
        return f"{scalar.value} {getattr(scalar.type, 'unit', 'days')} since 1970"


def to_json_value(value: Any) -> Any:
    """A JSON value: bytes are hexadecimal text, NaN and infinities are text, decimals are text without an exponent."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):  # noqa: PLR0124
        return str(value)
    if isinstance(value, list):
        return [to_json_value(v) for v in value]
    return {k: to_json_value(v) for k, v in value.items()} if isinstance(value, dict) else value


def to_printable(text: str) -> str:
    """`text` with control characters escaped, for a terminal. Names of tables may contain any character."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def format_count(number: int, noun: str) -> str:
    """`1 row`, `2 rows`, `2 entries`."""
    plural = f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


# Addresses as HOST:PORT.


def is_loopback(address: str) -> bool:
    """True if only this machine can reach `address` (HOST:PORT). Names other than localhost are resolved elsewhere, so
    they never count."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
