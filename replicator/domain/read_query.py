"""A query for rows of a table, as data: values are never part of a SQL text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, time
from typing import Literal

import pyarrow as pa

from .errors import ConfigProblem, Fatal
from .sequence import is_bytes, is_text

Operator = Literal["=", "<>", "<", "<=", ">", ">=", "is null", "is not null"]


class InvalidReadQuery(ConfigProblem):
    """The query does not fit the table, now or at the earlier time."""


class ReadTimeout(Fatal):
    """A read exceeded its time limit."""


@dataclass(frozen=True, slots=True)
class ReadCondition:
    """A comparison of a column with a value of its type; `is null` and `is not null` have no value. Unknown, as in SQL,
    if the column is NULL. Text compares as in the system of the table: in a lake as bytes."""

    column: str
    operator: Operator
    value: pa.Scalar | None = None


@dataclass(frozen=True, slots=True)
class ReadQuery:
    """Rows for which all `conditions` hold, in ascending order of the columns `order`, NULLs last; at most `limit`.
    `start` has a value for each column of `order`: the result has only rows equal to it there, or after it."""

    conditions: tuple[ReadCondition, ...] = ()
    order: tuple[str, ...] = ()
    start: tuple[pa.Scalar, ...] = ()
    limit: int | None = None


BuildReadQuery = Callable[[pa.Schema], ReadQuery]
"""Builds the query for a table with these columns. Raises InvalidReadQuery."""


def is_comparable(kind: pa.DataType) -> bool:
    """True if values of the type can be compared with a value that a user writes."""
    t = pa.types
    tests = (t.is_integer, t.is_floating, t.is_decimal, t.is_boolean, t.is_temporal, is_text, is_bytes)
    return any(test(kind) for test in tests) and not t.is_interval(kind)


def parse_value(text: str, kind: pa.DataType) -> pa.Scalar:
    """The value of `text` in the type: bytes are hexadecimal digits, times are ISO text (in UTC without a zone),
    durations are numbers. ValueError for any other text; the error does not contain it."""
    t = pa.types
    try:
        if is_bytes(kind):
            return pa.scalar(bytes.fromhex(text), kind)
        if t.is_time(kind):
            return pa.scalar(time.fromisoformat(text), kind)
        if t.is_duration(kind):
            return pa.scalar(int(text), pa.int64()).cast(kind)
        if t.is_timestamp(kind) and kind.tz is not None and not _has_zone(text):
            text += "Z" if "T" in text or " " in text else "T00:00:00Z"
        return pa.array([text], pa.string()).cast(kind)[0]
    except (pa.ArrowException, ValueError, OverflowError, TypeError):
        raise ValueError(f"no {kind}") from None


def _has_zone(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return True  # Arrow may accept it, and otherwise raises.


def parse_time(text: str) -> datetime:
    """The time in `text`, in UTC without a zone. ValueError for any other text."""
    try:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)
    except OverflowError:
        raise ValueError("not a time in the years 1 to 9999") from None


def to_exact_text(value: pa.Scalar) -> str | None:
    """The exact text of a value of a comparable type, for `from_exact_text`; None for NULL."""
    if not value.is_valid:
        return None
    if pa.types.is_temporal(value.type):
        return str(value.value)
    if is_bytes(value.type):
        return str(value.as_py().hex())
    return str(value.as_py())


def from_exact_text(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """The value that `to_exact_text` wrote. ValueError for any other text."""
    if text is None:
        return pa.scalar(None, kind)
    if pa.types.is_temporal(kind):
        try:
            number = pa.int32() if kind.bit_width == 32 else pa.int64()
            return pa.scalar(int(text), number).cast(kind)
        except (pa.ArrowException, OverflowError):
            raise ValueError(f"no {kind}") from None
    return parse_value(text, kind)
