"""Dates and times: numbers since an epoch, and ISO text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.errors import RejectCode
from replicator.domain.moments import DAY_MS, FIRST_DAY, FIRST_US, LAST_DAY, LAST_US

from .faults import Unfit
from .nodes import Node

INT64 = (-(2**63), 2**63 - 1)
MICROS = 1_000_000
"""In a second."""

UTC_US = pa.timestamp("us", "UTC")
LOCAL_US = pa.timestamp("us")
LOCAL_NS = pa.timestamp("ns")

DATE_RANGE = "holds infinity, or a day outside the years 1 to 9999"
TIME_RANGE = "holds a time of day outside 00:00:00 to 23:59:59.999999999"
STAMP_RANGE = "holds infinity, or a time outside the years 1 to 9999"
NANO_SENTINELS = "holds infinity, or a time that 64 bits of nanoseconds cannot hold"
ZONE = r"(Z|[+-]\d\d:\d\d)$"
SHORT_ZONE = r"([ T]\d\d(?::\d\d){1,2}(?:\.\d+)?)[+-]\d\d(?:\d\d)?$"
"""As PostgreSQL writes zones, and ISO 8601 in its basic format; only behind a time of day, for dates end so too."""


def counted(wire: pa.DataType, arrow: pa.DataType, bounds: tuple[int, int], sentence: str, factor: int = 1) -> Node:
    """Integers within `bounds`, times `factor`, read as `arrow`."""

    def build(values: Sequence[Any]) -> pa.Array:
        try:
            raw = pa.array(values, wire)
        except OverflowError:
            raise Unfit(RejectCode.OUT_OF_RANGE, sentence) from None
        if not _within(raw, *bounds):
            raise Unfit(RejectCode.OUT_OF_RANGE, sentence)
        return (pc.multiply(raw, factor) if factor != 1 else raw).view(arrow)

    return Node(arrow, int, build)


def date() -> Node:
    """Days since 1970."""
    return counted(pa.int32(), pa.date32(), (FIRST_DAY, LAST_DAY), DATE_RANGE)


def time(per_second: int) -> Node:
    """Time of day since midnight, in units of which a second has `per_second`: 1, 1,000, 1,000,000 or 1,000,000,000."""
    bounds = (0, 86_400 * per_second - 1)
    if per_second > MICROS:
        return counted(pa.int64(), pa.time64("ns"), bounds, TIME_RANGE)
    return counted(pa.int64(), pa.time64("us"), bounds, TIME_RANGE, MICROS // per_second)


def timestamp(per_second: int, arrow: pa.DataType = LOCAL_US) -> Node:
    """Time since 1970, in units as in `time`, as `arrow`, which counts microseconds. Nanoseconds stay nanoseconds."""
    if per_second > MICROS:
        return counted(pa.int64(), LOCAL_NS, (INT64[0] + 1, INT64[1] - 1), NANO_SENTINELS)
    factor = MICROS // per_second
    return counted(pa.int64(), arrow, (FIRST_US // factor, LAST_US // factor), STAMP_RANGE, factor)


def iso_timestamp(arrow: pa.DataType) -> Node:
    """ISO 8601 text with its zone, as an instant in UTC, or, for a type without zone, as the local time it shows."""

    def build(values: Sequence[Any]) -> pa.Array:
        written = pa.array(values, pa.string())
        if arrow.tz is None:
            written = pc.replace_substring_regex(pc.replace_substring_regex(written, ZONE, ""), SHORT_ZONE, r"\1")
        return _in_years(_parsed(written, arrow, STAMP_RANGE + ", or more places than microseconds"), arrow)

    return Node(arrow, str, build, "text")


def iso_date() -> Node:
    """ISO 8601 dates; a zone behind them is dropped."""

    def build(values: Sequence[Any]) -> pa.Array:
        written = pc.replace_substring_regex(pa.array(values, pa.string()), ZONE, "")
        days = _parsed(written, pa.date32(), DATE_RANGE)
        return days if _within(days.view(pa.int32()), FIRST_DAY, LAST_DAY) else _refuse(DATE_RANGE)

    return Node(pa.date32(), str, build, "text")


def iso_time() -> Node:
    """ISO 8601 times of day without zone (a trailing Z is dropped), in microseconds."""

    def build(values: Sequence[Any]) -> pa.Array:
        written = pc.replace_substring_regex(pa.array(values, pa.string()), "Z$", "")
        moment = pc.binary_join_element_wise(pa.scalar("1970-01-01"), written, "T")
        raw = _parsed(moment, LOCAL_US, TIME_RANGE).view(pa.int64())
        return raw.view(pa.time64("us")) if _within(raw, 0, DAY_MS * 1_000 - 1) else _refuse(TIME_RANGE)

    return Node(pa.time64("us"), str, build, "text")


def _parsed(written: pa.Array, arrow: pa.DataType, sentence: str) -> pa.Array:
    try:
        return written.cast(arrow)
    except pa.ArrowInvalid:
        raise Unfit(RejectCode.OUT_OF_RANGE, sentence) from None


def _in_years(stamps: pa.Array, arrow: pa.DataType) -> pa.Array:
    if arrow.unit == "us" and not _within(stamps.view(pa.int64()), FIRST_US, LAST_US):
        return _refuse(STAMP_RANGE)
    return stamps


def _within(raw: pa.Array, low: int, high: int) -> bool:
    bounds = pc.min_max(raw)
    least, most = bounds["min"].as_py(), bounds["max"].as_py()
    return least is None or (least >= low and most <= high)


def _refuse(sentence: str) -> pa.Array:
    raise Unfit(RejectCode.OUT_OF_RANGE, sentence)
