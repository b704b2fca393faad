"""Dates, times and durations as PostgreSQL writes them, also outside the years 1 to 9999."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.time_bounds import FIRST_DAY, FIRST_US, LAST_DAY, LAST_US

DAY = 86_400_000_000
CYCLE_DAYS, CYCLE_YEARS = 146_097, 400
INFINITE_MICROS = {9_223_372_036_825_200_000: "infinity", -9_223_372_036_832_400_000: "-infinity"}
"""The values of the JDBC driver, and so of Debezium, for an infinite timestamp, in microseconds since 1970."""
INFINITE_DAYS = {2_147_483_647: "infinity", -2_147_483_648: "-infinity"}
NANOS = pa.types.is_time64


def instant_text(column: pa.Array) -> pa.Array:
    """Timestamps as `2024-02-29 12:34:56.789`, without zone, because the session's time zone is UTC.

    Nanoseconds are kept, for text columns.
    """
    local = column.cast(pa.timestamp(column.type.unit))
    if column.type.unit == "ns":
        return local.cast(pa.string())
    micros = local.cast(pa.timestamp("us")).cast(pa.int64())
    return _replace_rare(local.cast(pa.timestamp("us")), micros, FIRST_US, LAST_US, distant_instant)


def date_text(column: pa.Array) -> pa.Array:
    """Days as `2024-02-29`."""
    return _replace_rare(column, column.cast(pa.int32()), FIRST_DAY, LAST_DAY, distant_date)


def _replace_rare(column: pa.Array, numbers: pa.Array, first: int, last: int, rare: Callable[[int], str]) -> pa.Array:
    """Arrow's own text where PostgreSQL has the same, and the result of `rare` for each other value."""
    bounds = pc.min_max(numbers)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is None or (low >= first and high <= last):
        return column.cast(pa.string())
    outside = pc.fill_null(pc.or_(pc.less(numbers, first), pc.greater(numbers, last)), False)
    inside = pc.if_else(outside, pa.scalar(None, column.type), column).cast(pa.string())
    texts = pa.array([rare(n) for n in numbers.filter(outside).to_pylist()], pa.string())
    return pc.replace_with_mask(inside, outside, texts)


def distant_instant(micros: int) -> str:
    """A timestamp outside the years 1 to 9999, or an infinite one."""
    if micros in INFINITE_MICROS:
        return INFINITE_MICROS[micros]
    days, rest = divmod(micros, DAY)
    year_month_day, era = _calendar(days)
    seconds, fraction = divmod(rest, 1_000_000)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:06d}"
    return f"{year_month_day} {clock}{era}"


def distant_date(days: int) -> str:
    """A day outside the years 1 to 9999, or an infinite one."""
    return INFINITE_DAYS[days] if days in INFINITE_DAYS else "".join(_calendar(days))


def _calendar(days: int) -> tuple[str, str]:
    """`yyyy-mm-dd` and the era of a day since 1970, moved by whole 400-year cycles into Python's calendar."""
    cycles, within = divmod(days, CYCLE_DAYS)
    near = date(1970, 1, 1) + timedelta(days=within)
    year = near.year + cycles * CYCLE_YEARS
    return f"{year if year > 0 else 1 - year:04d}-{near:%m-%d}", " BC" if year <= 0 else ""


def time_text(column: pa.Array) -> pa.Array:
    """Times of day, including 24:00:00, which PostgreSQL has and Arrow writes as out of range."""
    if column.type.unit == "ns":
        return column.cast(pa.string())
    micros = column.cast(pa.time64("us")).cast(pa.int64())
    midnight = pc.fill_null(pc.equal(micros, DAY), False)
    within = pc.if_else(midnight, pa.scalar(0, pa.int64()), micros).cast(pa.time64("us")).cast(pa.string())
    return pc.if_else(midnight, pa.scalar("24:00:00"), within)


def duration_text(column: pa.Array) -> pa.Array:
    """Durations as an interval of microseconds."""
    micros = column.cast(pa.duration("us")).cast(pa.int64()).cast(pa.string())
    return pc.binary_join_element_wise(micros, pa.scalar(" microseconds"), pa.scalar(""))
