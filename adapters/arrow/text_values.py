"""Text to values of a column.

| Arrow | text |
| --- | --- |
| integers | digits, with a minus sign |
| float32, float64 | decimal or scientific; `NaN`, `Infinity`, `-Infinity` |
| decimal | the same, finite; places beyond the type's only if they are zero |
| bool | `true`, `t`, `1`, `false`, `f`, `0`, in any case |
| string | as it is |
| binary | hexadecimal digits |
| date32 | `2024-02-29` |
| timestamp | `2024-02-29 23:59:59.123456` or with a `T` |
| time64 | `23:59:59.123456` |

A zone after a timestamp, time of day or date is invalid if the type has none. If the type has a zone and the text has
none, the text is in UTC.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from replicator.domain.errors import Reject, RejectCode
from replicator.domain.out_of_range import ReadMode, null_out_of_range

from . import decimals, record_errors, temporal_values, value_readers
from .frame_slices import read_bytes
from .record_errors import ValueMisfit
from .temporal_values import make_lenient
from .value_readers import ValueReader

TextReader = Callable[[pa.Array], pa.Array]
"""Converts text to values. Raises one of `record_errors.FAILURES` for an invalid text."""

TRUTHS = ("true", "t", "1", "false", "f", "0")
NAMES = "int64, string, double, bool, binary, date32, timestamp[us], timestamp[us, UTC], time or decimal(10,2)"
STRANGE = r"(?i)\A(?:[^0-9+\-.nitf]|\z)"
INFINITE = r"(?i)\A[+-]?inf"
DAY = r"\A(\d{4}-\d\d-\d\d)\z"
LOCAL = r"\A(\d{4}-\d\d-\d\d([ T]\d\d(:\d\d){0,2}(\.\d+)?)?)\z"


def find_text_reader(arrow: pa.DataType) -> TextReader | None:
    """The function that converts text to values of `arrow`; None if there is none."""
    readers: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], TextReader]], ...] = (
        (t.is_string, lambda _: lambda texts: texts),
        (t.is_integer, _integer_reader),
        (t.is_floating, _float_reader),
        (t.is_decimal, lambda a: lambda texts: decimals.from_text(texts, a)),
        (t.is_boolean, lambda _: _to_booleans),
        (t.is_binary, lambda _: _to_bytes),
        (t.is_date32, lambda _: _to_dates),
        (t.is_timestamp, _timestamp_reader),
        (t.is_time64, lambda _: temporal_values.iso_time_reader().build),
    )
    return next((make_reader(arrow) for applies, make_reader in readers if applies(arrow)), None)


def make_text_reader(arrow: pa.DataType) -> TextReader:
    """`find_text_reader`. Raises TypeError if there is none."""
    one = find_text_reader(arrow)
    if one is None:
        raise TypeError(f"no text is read as {arrow}")
    return one


def text_value_reader(arrow: pa.DataType) -> ValueReader:
    """Reader of a column's values from JSON text. Raises TypeError for a type without a text form."""
    one = make_text_reader(arrow)
    return ValueReader(arrow, str, lambda values: one(pa.array(values, pa.string())))


def read_texts(
    texts: pa.Array, arrow: pa.DataType, subject: str, mode: ReadMode = "reject"
) -> tuple[pa.Array, dict[int, Reject]]:
    """The values of a column, null for invalid ones, and their errors by index. `mode`: of values out of range."""
    one = make_lenient(ValueReader(arrow, str, make_text_reader(arrow)), mode).build

    def build(texts: pa.Array | list[object]) -> pa.Array:
        return one(texts if isinstance(texts, pa.Array) else pa.array(texts, pa.string()))

    try:
        return build(texts), {}
    except record_errors.FAILURES:
        # Texts that do not begin like a number, boolean or time: finds many errors at once in columns of other types.
        strange = pc.indices_nonzero(pc.match_substring_regex(texts, STRANGE))
    if pa.types.is_binary(arrow) or not len(strange):
        return record_errors.build_or_reject(build, texts, subject)
    misfit = Reject(RejectCode.OUT_OF_RANGE, f"{subject} holds a value that its type cannot hold")
    errors = dict.fromkeys(strange.to_pylist(), misfit)
    mask = pc.is_in(pc.cumulative_sum(pa.repeat(1, len(texts))), value_set=pc.add(strange.cast(pa.int64()), 1))
    array, bad = record_errors.build_or_reject(build, pc.if_else(mask, pa.scalar(None, pa.string()), texts), subject)
    return array, errors | bad


def _integer_reader(arrow: pa.DataType) -> TextReader:
    def build(texts: pa.Array) -> pa.Array:
        """Refuses `0x10`, which Arrow reads as a number; DMS does not write numbers so."""
        content = read_bytes(texts).lower()
        if b"x" in content and pc.any(pc.match_substring(texts, "x", ignore_case=True)).as_py():
            raise ValueMisfit(RejectCode.OUT_OF_RANGE, "holds something else than decimal digits")
        return texts.cast(arrow)

    return build


def _float_reader(arrow: pa.DataType) -> TextReader:
    node = value_readers.float_reader(arrow)

    def build(texts: pa.Array) -> pa.Array:
        """Refuses numbers that are too large, which Arrow reads as infinity."""
        numbers = node.build(texts)
        infinite = pc.is_inf(numbers)
        if pc.any(infinite).as_py() and not pc.all(pc.match_substring_regex(texts.filter(infinite), INFINITE)).as_py():
            raise ValueMisfit(RejectCode.OUT_OF_RANGE, "holds a number too large for its type")
        return numbers

    return build


def _to_booleans(texts: pa.Array) -> pa.Array:
    indices = pc.index_in(pc.utf8_lower(texts), value_set=pa.array(TRUTHS))
    if indices.null_count > texts.null_count:
        raise ValueMisfit(RejectCode.OUT_OF_RANGE, "holds something else than a truth value")
    return pc.less(indices, TRUTHS.index("false"))


def _to_bytes(texts: pa.Array) -> pa.Array:
    """Converts all digits at once: two digits are one byte, so offsets are halved."""
    filled = pc.fill_null(texts, "")
    sizes = pc.binary_length(filled)
    digits = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(filled)], pa.int32()), filled), "")[0].as_py()
    if pc.any(pc.equal(pc.bit_wise_and(sizes, 1), 1)).as_py():
        raise ValueMisfit(RejectCode.OUT_OF_RANGE, "holds an odd number of hexadecimal digits")
    data = bytes.fromhex(digits)
    if 2 * len(data) != len(digits):
        raise ValueMisfit(RejectCode.OUT_OF_RANGE, "holds something else than hexadecimal digits")
    ends = pc.divide(pc.cumulative_sum(sizes), 2)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends.cast(pa.int32())])
    decoded = pa.Array.from_buffers(pa.binary(), len(texts), [None, offsets.buffers()[1], pa.py_buffer(data)])
    return pc.if_else(pc.is_valid(texts), decoded, pa.scalar(None, pa.binary()))


def _to_dates(texts: pa.Array) -> pa.Array:
    try:
        days = texts.cast(pa.date32())
    except pa.ArrowInvalid:
        return temporal_values.iso_date_reader().build(texts)
    return days if _is_within_years(days.cast(pa.timestamp("ms"))) else temporal_values.iso_date_reader().build(texts)


def _timestamp_reader(arrow: pa.DataType) -> TextReader:
    """Few texts have zones: columns without any are converted without a look at each text."""
    node = temporal_values.iso_timestamp_reader(arrow)

    def build(texts: pa.Array) -> pa.Array:
        try:
            local = texts.cast(pa.timestamp(arrow.unit))
        except pa.ArrowInvalid:
            if arrow.tz:  # Texts without a zone are in UTC. Arrow reads no zone after a day, so a day becomes its midnight.
                texts = pc.replace_substring_regex(texts, DAY, r"\1 00:00:00")
                texts = pc.replace_substring_regex(texts, LOCAL, r"\1Z")
            return node.build(texts)
        return local.view(arrow) if arrow.unit == "ns" or _is_within_years(local) else node.build(texts)

    return build


def _is_within_years(stamps: pa.Array) -> bool:
    return bool(null_out_of_range(stamps).null_count == stamps.null_count)
