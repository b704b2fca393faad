"""Which rows of a table somebody asks for, as data: values are never part of a text that a database reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, time
from typing import Literal

import pyarrow as pa

from .errors import ConfigProblem, Fatal

Operator = Literal["=", "<>", "<", "<=", ">", ">=", "is null", "is not null"]


class InvalidReadQuery(ConfigProblem):
    """What is asked makes no sense of this table, now or then."""


class ReadTimeout(Fatal):
    """A reading took longer than it may."""


@dataclass(frozen=True, slots=True)
class ReadCondition:
    """A column beside a value of its type, or, of `is null` and `is not null`, beside none. Unknown, as in SQL, where the
    column is NULL. Text compares as the table's own place compares it: in a lake as bytes."""

    column: str
    operator: Operator
    value: pa.Scalar | None = None


@dataclass(frozen=True, slots=True)
class ReadQuery:
    """Rows for which all `conditions` hold, in ascending order of the columns `order`, NULLs last; of these the ones from
    `start` on, which has a value for each of `order`: rows that equal it there, and those behind. At most `limit`."""

    conditions: tuple[ReadCondition, ...] = ()
    order: tuple[str, ...] = ()
    start: tuple[pa.Scalar, ...] = ()
    limit: int | None = None


BuildReadQuery = Callable[[pa.Schema], ReadQuery]
"""Says what is wanted of a table with these columns. Raises Misasked."""


def is_comparable(kind: pa.DataType) -> bool:
    """Whether values of the type can be compared with one that somebody wrote down."""
    t = pa.types
    tests = (t.is_integer, t.is_floating, t.is_decimal, t.is_boolean, t.is_temporal, _is_text, _is_bytes)
    return any(test(kind) for test in tests) and not t.is_interval(kind)


def parse_value(text: str, kind: pa.DataType) -> pa.Scalar:
    """The value of the type that `text` says: bytes in hexadecimal digits, times as ISO text, of a moment without a zone in
    UTC, durations as a number. ValueError for a text that is none, without the text in it."""
    try:
        return _parse(text, kind)
    except (pa.ArrowException, ValueError, OverflowError, TypeError):
        raise ValueError(f"no {kind}") from None


def _parse(text: str, kind: pa.DataType) -> pa.Scalar:
    t = pa.types
    if _is_bytes(kind):
        return pa.scalar(bytes.fromhex(text), kind)
    if t.is_time(kind):
        return pa.scalar(time.fromisoformat(text), kind)
    if t.is_duration(kind):
        return pa.scalar(int(text), pa.int64()).cast(kind)
    if t.is_timestamp(kind) and kind.tz is not None and not _has_zone(text):
        text += "Z" if "T" in text or " " in text else "T00:00:00Z"
    return pa.array([text], pa.string()).cast(kind)[0]


def _has_zone(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return True  # Arrow may read it, and says so where it does not.


def parse_time(text: str) -> datetime:
    """The moment that `text` says; one without a zone is in UTC. ValueError for a text that is none."""
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except OverflowError:
        raise ValueError("no moment of the years 1 to 9999") from None


def to_place_text(value: pa.Scalar) -> str | None:
    """A value of a comparable type as `from_place_text` reads it, exactly; None for NULL."""
    if not value.is_valid:
        return None
    if pa.types.is_temporal(value.type):
        return str(value.value)
    if _is_bytes(value.type):
        return str(value.as_py().hex())
    return str(value.as_py())


def from_place_text(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """What `to_place_text` wrote. ValueError for a text that is no such value."""
    if text is None:
        return pa.scalar(None, kind)
    if pa.types.is_temporal(kind):
        try:
            number = pa.int32() if kind.bit_width == 32 else pa.int64()
            return pa.scalar(int(text), number).cast(kind)
        except (pa.ArrowException, OverflowError):
            raise ValueError(f"no {kind}") from None
    return parse_value(text, kind)


def _is_text(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind) or t.is_binary_view(kind))
