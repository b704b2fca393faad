"""Dates and times: from numbers since an epoch, from ISO text, and out of range."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date as calendar_day
from functools import partial
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, Field

from replicator.domain.change import TIMESTAMP
from replicator.domain.errors import RejectCode
from replicator.domain.out_of_range import DAY_MS, FIRST_DAY, FIRST_US, LAST_DAY, LAST_US, OutOfRange, ReadMode
from replicator.domain.table import Column, TableSpec
from replicator.ports.options import IS_INSTANCE

from .record_errors import FAILURES, ValueMisfit, build_or_reject, find_table_entry
from .value_readers import UNSET, ValueReader, cast_values

INT64 = (-(2**63), 2**63 - 1)
MICROS = 1_000_000
"""Microseconds per second."""

UTC_US = TIMESTAMP
LOCAL_US = pa.timestamp("us")
LOCAL_NS = pa.timestamp("ns")

DAYS_OF_400_YEARS = 146_097
FIRST_YEAR, LAST_YEAR_OF_DATES, LAST_YEAR_OF_TIMES = -4712, 5_874_897, 294_246
"""The range of PostgreSQL's dates and times; for times, up to 64 bits of microseconds since 1970. -4712 is 4713 BC."""
INFINITE_DAY = -2_147_472_692
"""Debezium's `infinity` of a date: PostgreSQL's largest number of days, converted to days since 1970 with overflow."""

DATE_RANGE = "holds infinity, or a day outside the years 1 to 9999"
TIME_RANGE = "holds a time of day outside 00:00:00 to 23:59:59.999999999"
STAMP_RANGE = "holds infinity, or a time outside the years 1 to 9999"
NANO_SENTINELS = "holds infinity, or a time that 64 bits of nanoseconds cannot hold"

NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?\Z", re.ASCII)
INFINITE = re.compile(r"[+-]?inf", re.IGNORECASE)
DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
CLOCK = re.compile(r"-?\d{1,3}:\d\d(:\d\d(\.\d+)?)?", re.ASCII)
YEAR = re.compile(r"(0000|[+-]?\d{5,}|-\d{4})-", re.ASCII)
ZONE = re.compile(r"\s*(Z|[+-]\d\d(:?\d\d){0,2})\Z", re.ASCII | re.IGNORECASE)
PLACES = re.compile(r"\.\d{7,}", re.ASCII)
ZEROS = r"(\.\d{6})0+(\z|[^0-9])"
"""Zeros after microseconds, as in databases that count nanoseconds."""


def counted_reader(
    wire: pa.DataType,
    arrow: pa.DataType,
    bounds: tuple[int, int],
    sentence: str,
    factor: int = 1,
    *,
    beyond: Callable[[int], str],
) -> ValueReader:
    """Reader of integers within `bounds`, times `factor`, as `arrow`, which is as wide as `wire`. With a `factor` it has
    64 bits, as products have. `beyond`: see `ValueReader.out_of_range_text`."""

    def build(values: Sequence[Any]) -> pa.Array:
        try:
            raw = pa.array(values, wire)
        except OverflowError:
            raise ValueMisfit(RejectCode.OUT_OF_RANGE, sentence) from None
        if not _is_within(raw, *bounds):
            raise ValueMisfit(RejectCode.OUT_OF_RANGE, sentence)
        return (pc.multiply(raw, factor) if factor != 1 else raw).view(arrow)

    return ValueReader(arrow, int, build, out_of_range_text=beyond)


def date_reader() -> ValueReader:
    """Reader of days since 1970."""
    return counted_reader(pa.int32(), pa.date32(), (FIRST_DAY, LAST_DAY), DATE_RANGE, beyond=_date_text)


def time_reader(per_second: int) -> ValueReader:
    """Reader of the time since midnight, in units of 1/`per_second` seconds: 1, 1,000, 1,000,000 or 1,000,000,000."""
    bounds = (0, 86_400 * per_second - 1)
    if per_second > MICROS:
        return counted_reader(pa.int64(), pa.time64("ns"), bounds, TIME_RANGE, beyond=partial(_time_text, per_second))
    return counted_reader(
        pa.int64(), pa.time64("us"), bounds, TIME_RANGE, MICROS // per_second, beyond=partial(_time_text, per_second)
    )


def timestamp_reader(per_second: int, arrow: pa.DataType = LOCAL_US) -> ValueReader:
    """Reader of the time since 1970, in units as in `time_reader`, as `arrow` in microseconds. Nanoseconds stay."""
    if per_second > MICROS:
        return counted_reader(pa.int64(), LOCAL_NS, (INT64[0] + 1, INT64[1] - 1), NANO_SENTINELS, beyond=_infinity_text)
    factor, beyond = MICROS // per_second, partial(_timestamp_text, per_second, "Z" if arrow.tz else "")
    return counted_reader(pa.int64(), arrow, (FIRST_US // factor, LAST_US // factor), STAMP_RANGE, factor, beyond=beyond)


def iso_timestamp_reader(arrow: pa.DataType) -> ValueReader:
    """Reader of ISO 8601 text with a zone, as an instant in UTC; without a zone for a type that has none."""

    def build(values: Sequence[Any]) -> pa.Array:
        stamps = _parse_texts(pa.array(values, pa.string()), arrow, partial(_describe_bad_timestamp, arrow))
        if arrow.unit == "us" and not _is_within(stamps.view(pa.int64()), FIRST_US, LAST_US):
            return _raise_misfit(STAMP_RANGE)
        return stamps

    return ValueReader(arrow, str, build, "text")


def iso_date_reader() -> ValueReader:
    """Reader of ISO 8601 dates."""

    def build(values: Sequence[Any]) -> pa.Array:
        days = _parse_texts(pa.array(values, pa.string()), pa.date32(), _describe_bad_date)
        return days if _is_within(days.view(pa.int32()), FIRST_DAY, LAST_DAY) else _raise_misfit(DATE_RANGE)

    return ValueReader(pa.date32(), str, build, "text")


def iso_time_reader() -> ValueReader:
    """Reader of ISO 8601 times of day without a zone, in microseconds."""

    def build(values: Sequence[Any]) -> pa.Array:
        times = pc.binary_join_element_wise(pa.scalar("1970-01-01"), pa.array(values, pa.string()), "T")
        raw = _parse_texts(times, LOCAL_US, _describe_bad_time).view(pa.int64())
        return raw.view(pa.time64("us")) if _is_within(raw, 0, DAY_MS * 1_000 - 1) else _raise_misfit(TIME_RANGE)

    return ValueReader(pa.time64("us"), str, build, "text")


def zulu_reader(node: ValueReader) -> ValueReader:
    """A reader like `node` for texts that end with a Z that is no zone, as local times of Debezium's `isostring` mode."""

    def build(values: Sequence[Any]) -> pa.Array:
        return node.build(pc.replace_substring_regex(pa.array(values, pa.string()), "Z$", ""))

    return ValueReader(node.type, str, build, "text")


def _infinity_text(count: int) -> str:
    return "infinity" if count > 0 else "-infinity"


def _time_text(per_second: int, count: int) -> str:
    """A time of day or a span, in Arrow's form for times of day."""
    seconds, rest = divmod(abs(count), per_second)
    digits = 9 if per_second > MICROS else 6
    sign, fraction = "-" if count < 0 else "", rest * 10**digits // per_second
    return f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:0{digits}}"


def _date_text(days: int) -> str:
    return "infinity" if days == INFINITE_DAY else _day_text(days)


def _day_text(days: int, last: int = LAST_YEAR_OF_DATES, behind: str = "") -> str:
    """A day in PostgreSQL's form. A day outside PostgreSQL's years (up to `last`) is infinity."""
    cycle, rest = divmod(days - FIRST_DAY, DAYS_OF_400_YEARS)
    day = calendar_day.fromordinal(rest + 1)
    year = day.year + 400 * cycle
    if not FIRST_YEAR <= year <= last:
        return _infinity_text(days)
    era = " BC" if year < 1 else ""
    return f"{year if year > 0 else 1 - year:04}-{day:%m-%d}{behind}{era}"


def _timestamp_text(per_second: int, zone: str, count: int) -> str:
    days, rest = divmod(count, 86_400 * per_second)
    return _day_text(days, LAST_YEAR_OF_TIMES, f" {_time_text(per_second, rest)}{zone}")


def _parse_texts(texts: pa.Array, arrow: pa.DataType, wrong: Callable[[str], str]) -> pa.Array:
    try:
        return texts.cast(arrow)
    except pa.ArrowInvalid:
        shorter = pc.replace_substring_regex(texts, ZEROS, r"\1\2")
        if not shorter.equals(texts):
            return _parse_texts(shorter, arrow, wrong)
        raise ValueMisfit(
            RejectCode.OUT_OF_RANGE, wrong(next(text for text in texts.to_pylist() if text is not None))
        ) from None


def _describe_bad_timestamp(arrow: pa.DataType, text: str) -> str:
    """The error for a text that is not a timestamp, without the text."""
    if INFINITE.match(text) or YEAR.match(text):
        return STAMP_RANGE
    if NUMBER.match(text):
        return "holds a number, whose unit is not known, and no time such as 2024-02-29 23:59:59 (`int64` has numbers)"
    day = DAY.match(text)
    if day is None:
        return "holds something else than a time such as 2024-02-29 23:59:59 (`string` has any text)"
    if ZONE.search(text, day.end()) and arrow.tz is None:
        return "holds a time with a zone, and its type has none (`timestamp[us, UTC]` has)"
    if PLACES.search(text):
        return "holds a time with more places than its type (`timestamp[ns]` has nine)"
    return "holds a day or a time that no calendar has, or text behind it (`string` has any text)"


def _describe_bad_date(text: str) -> str:
    """The error for a text that is not a date, without the text."""
    if INFINITE.match(text) or YEAR.match(text):
        return DATE_RANGE
    if NUMBER.match(text):
        return "holds a number, and no date such as 2024-02-29 (`int64` has numbers)"
    day = DAY.match(text)
    if day is None:
        return "holds something else than a date such as 2024-02-29 (`string` has any text)"
    if ZONE.match(text, day.end()):
        return "holds a date with a zone, and its type has none (`string` has any text)"
    if CLOCK.match(text, day.end() + 1):
        return "holds a date with a time of day, and its type has none (`timestamp[us]` has)"
    return "holds a day that no calendar has, or text behind it (`string` has any text)"


def _describe_bad_time(time: str) -> str:
    """The error for a text that is not a time of day, without the text. `moment` has a day before the time."""
    text = time.partition("T")[2]
    if DAY.match(text):
        return "holds a time with its date, and its type has none (`timestamp[us]` has)"
    clock = CLOCK.match(text)
    if clock is None:
        return "holds something else than a time of day such as 23:59:59 (`string` has any text)"
    if clock.end() < len(text):
        kind = "a zone" if ZONE.match(text, clock.end()) else "text"
        return f"holds a time of day with {kind} behind it, and its type has none (`string` has any text)"
    if PLACES.search(text):
        return "holds a time of day with more places than microseconds (`string` has any text)"
    return f"{TIME_RANGE} (`string` has any text)"


def _is_within(raw: pa.Array, low: int, high: int) -> bool:
    bounds = pc.min_max(raw)
    least, most = bounds["min"].as_py(), bounds["max"].as_py()
    return least is None or (least >= low and most <= high)


def _raise_misfit(sentence: str) -> pa.Array:
    raise ValueMisfit(RejectCode.OUT_OF_RANGE, sentence)


# Dates and times out of range, with their configured treatment (`domain.out_of_range`).

BEFORE = re.compile(r"-\d|-infinity\Z|0000-|\d.*\bBC\Z", re.IGNORECASE)
AFTER = re.compile(r"\+?infinity\Z|\+?\d{5,}-|(2[4-9]|[3-9]\d|\d{3,}):", re.IGNORECASE)
ZERO_DAY = re.compile(r"\d{4}-(00-\d\d|\d\d-00)")
"""A day without month or day, as MySQL may store it. It is neither below nor above the range."""
ISO_BEFORE = re.compile(r"-(\d{4,})-(.*)\Z", re.DOTALL)
HINT = "; set `out_of_range` of the table to keep the row, or `cast: string` to keep its text, or drop the column"
BOUNDS = {
    "date32[day]": (FIRST_DAY, LAST_DAY),
    "timestamp[us]": (FIRST_US, LAST_US),
    "timestamp[us, tz=UTC]": (FIRST_US, LAST_US),
    "timestamp[ns]": (INT64[0] + 1, INT64[1] - 1),
    "time64[us]": (0, DAY_MS * 1_000 - 1),
    "time64[ns]": (0, DAY_MS * 1_000_000 - 1),
}


class OutOfRangeOptions(BaseModel):
    """The option `out_of_range` of decoders: for each table the treatment of times that no target can hold."""

    out_of_range: dict[str, Annotated[OutOfRange, IS_INSTANCE]] = Field(default_factory=dict, exclude=True)

    def reading_of(self, table: str, column: str) -> ReadMode:
        """The treatment of out-of-range times in a column. In keys they are rejected, because rows could become equal."""
        modes = find_table_entry(self.out_of_range, table)
        return modes.get_mode(column) if modes else "reject"

    def to_read_types(self, table: TableSpec) -> TableSpec:
        """The table with the types in which its columns are read."""
        columns = []
        for column in table.columns:
            is_text = column.name not in table.keys and self.reading_of(table.name, column.name) == "text"
            is_time = str(column.type) in BOUNDS
            columns.append(Column(column.name, pa.string(), column.nullable) if is_text and is_time else column)
        return replace(table, columns=tuple(columns))


def make_lenient(node: ValueReader, mode: ReadMode) -> ValueReader:
    """A reader like `node` with treatment `mode` for values out of range. Other invalid values are still refused."""
    if mode != "unread" and str(node.type) not in BOUNDS:
        return node
    if mode == "reject":
        return replace(node, build=partial(_build_with_hint, node))
    arrow = pa.string() if mode == "text" else node.type

    def build(values: Sequence[Any]) -> pa.Array:
        try:
            return _cast_to(node.build(values), arrow)
        except FAILURES:
            if any(value is UNSET for value in values):
                raise  # The caller needs to find the UNSET values.
        kind = values.type if isinstance(values, pa.Array) else None
        cells = values.to_pylist() if isinstance(values, pa.Array) else list(values)
        array, bad = build_or_reject(lambda items: node.build(items if kind is None else pa.array(items, kind)), cells, "")
        if mode == "unread":
            return array
        texts = {index: _to_text(node, cells[index]) for index in bad}
        for index, reject in bad.items():
            if reject.code != RejectCode.OUT_OF_RANGE or not _is_out_of_range(texts[index], mode):
                raise ValueMisfit(reject.code, reject.sentence.strip())
        if mode == "clamp":
            lowest, highest = BOUNDS[str(node.type)]
            return _fill_nulls(array, {index: lowest if BEFORE.match(text) else highest for index, text in texts.items()})
        return _fill_nulls(_cast_to(array, arrow), texts) if mode == "text" else array

    return replace(node, type=arrow, build=build)


def _cast_to(array: pa.Array, arrow: pa.DataType) -> pa.Array:
    return array if array.type == arrow else cast_values(array, arrow)


def _build_with_hint(node: ValueReader, values: Sequence[Any]) -> pa.Array:
    try:
        return node.build(values)
    except ValueMisfit as error:
        if (
            error.reject.code != RejectCode.OUT_OF_RANGE
            or len(values) != 1
            or not _is_out_of_range(_to_text(node, values[0]), "text")
        ):
            raise
        raise ValueMisfit(error.reject.code, error.reject.sentence + HINT) from None


def _fill_nulls(array: pa.Array, fills: dict[int, Any]) -> pa.Array:
    wire = {"date32[day]": pa.int32(), "string": pa.string()}.get(str(array.type), pa.int64())
    mask = pa.array([index in fills for index in range(len(array))], pa.bool_())
    return pc.replace_with_mask(array, mask, pa.array([fills[index] for index in sorted(fills)], wire).view(array.type))


def _to_text(node: ValueReader, value: Any) -> str:
    """The text of an out-of-range value: years before 1 in PostgreSQL's form, all else as it is."""
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    if isinstance(value, msgspec.Raw):
        value = msgspec.json.decode(value)
    if node.out_of_range_text is not None and not isinstance(value, str):
        return node.out_of_range_text(value)
    text = str(value).strip()
    year = ISO_BEFORE.match(text)
    return f"{int(year[1]) + 1:04}-{year[2].replace('T', ' ')} BC" if year else text


def _is_out_of_range(text: str, mode: ReadMode) -> bool:
    """True if the text is an out-of-range date or time that `mode` can treat."""
    return bool(BEFORE.match(text) or AFTER.match(text) or (mode != "clamp" and ZERO_DAY.match(text)))
