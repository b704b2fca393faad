"""Decimals from unscaled integers, text and numbers, without floats."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.errors import RejectCode

from .record_errors import ValueMisfit
from .value_readers import ValueReader, make_nullable, text_reader

MAX_PRECISION = 76
MAX_SCALE = 16_383 + 131_072
"""The most digits of a database's number after (PostgreSQL: 16,383) and before the point (PostgreSQL: 131,072)."""
BIG = 4_000
"""Digits from which Python refuses to convert an int to text directly."""
TOO_LONG = "holds a decimal with more digits than its type"
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,5})?\Z", re.ASCII)


def decimal_type(precision: int | None, scale: int) -> pa.DataType | None:
    """The Arrow type of a decimal; None if no decimal type is wide enough. Without a precision, the widest 128-bit type,
    or wider if the scale requires it. A negative scale becomes digits before the point."""
    digits = (precision or 38) + max(0, -scale)
    fraction = max(0, scale)
    digits = max(digits, fraction)
    if digits > MAX_PRECISION:
        return None
    return pa.decimal128(digits, fraction) if digits <= 38 else pa.decimal256(digits, fraction)


def decimal_reader(precision: int | None, scale: int, *, numeric: bool) -> ValueReader:
    """Reader of `org.apache.kafka.connect.data.Decimal`: base64 of the big-endian unscaled value; with `numeric` also
    JSON numbers (the converter's `decimal.format=NUMERIC`). Text if no Arrow decimal is wide enough."""
    arrow = decimal_type(precision, scale)
    if arrow is None:
        if numeric:
            return ValueReader(pa.string(), msgspec.Raw, text_reader().build)

        def build_text(values: Sequence[Any]) -> pa.Array:
            return pa.array([None if v is None else to_plain_text(parse_unscaled(v), scale) for v in values], pa.string())

        return ValueReader(pa.string(), bytes, build_text)
    factor = 10 ** max(0, -scale)

    def build(values: Sequence[Any]) -> pa.Array:
        return from_unscaled([None if v is None else parse_unscaled(v) * factor for v in values], arrow)

    return _lenient_reader(build, arrow) if numeric else ValueReader(arrow, bytes, build, "bytes")


def accept_numbers(node: ValueReader) -> ValueReader:
    """The reader, which also accepts JSON numbers if it reads decimals from unscaled values."""
    return _lenient_reader(node.build, node.type) if pa.types.is_decimal(node.type) and node.wire is bytes else node


def parse_unscaled(value: bytes) -> int:
    """The integer of big-endian two's complement bytes. A backfill sends no bytes for NaN and infinities."""
    if not value:
        raise ValueMisfit(RejectCode.OUT_OF_RANGE, "holds NaN or an infinity, and no finite number")
    return int.from_bytes(value, "big", signed=True)


def from_unscaled(values: list[int | None], arrow: pa.DataType) -> pa.Array:
    """Decimals of `arrow` from unscaled integers. Raises ValueMisfit for more digits than its precision."""
    limit = 10**arrow.precision
    try:
        small = pa.array(values, pa.int64())
    except OverflowError:
        width = arrow.byte_width
        if any(v is not None and not -limit < v < limit for v in values):
            raise ValueMisfit(RejectCode.OUT_OF_RANGE, TOO_LONG) from None
        data = b"".join([(v or 0).to_bytes(width, "little", signed=True) for v in values])
        validity = pa.array([v is not None or None for v in values]).buffers()[0]
        return pa.Array.from_buffers(arrow, len(values), [validity, pa.py_buffer(data)])
    bounds = pc.min_max(small)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is not None and (low <= -limit or high >= limit):
        raise ValueMisfit(RejectCode.OUT_OF_RANGE, TOO_LONG)
    whole = small.cast(pa.decimal128(19, 0) if pa.types.is_decimal128(arrow) else pa.decimal256(19, 0))
    return pa.Array.from_buffers(arrow, len(whole), whole.buffers())


def _lenient_reader(of_bytes: Callable[[Sequence[Any]], pa.Array], arrow: pa.DataType) -> ValueReader:
    """Reader of base64 text or JSON numbers, decided value by value."""

    def build(values: Sequence[Any]) -> pa.Array:
        raws = [None if v is None or bytes(v) == b"null" else bytes(v) for v in values]
        strings = [raw is not None and raw.startswith(b'"') for raw in raws]
        pairs = list(zip(strings, raws, strict=True))
        coded = of_bytes([msgspec.json.decode(raw or b"", type=bytes) if s else None for s, raw in pairs])
        numbers = from_unscaled(
            [None if s or raw is None else _parse_number(raw.decode(), arrow.scale) for s, raw in pairs], arrow
        )
        return pc.if_else(pa.array(strings, pa.bool_()), coded, numbers)

    return ValueReader(arrow, msgspec.Raw, build, "raw")


def _parse_number(digits: str | None, scale: int) -> int | None:
    """The unscaled integer of a number in decimal digits, exactly; None for None."""
    if digits is None:
        return None
    if len(digits) > MAX_SCALE or not NUMBER.match(digits):
        raise ValueMisfit(RejectCode.OUT_OF_RANGE, "holds something else than a finite decimal number")
    value = Decimal(digits)
    sign, figures, exponent = value.as_tuple()
    shift = int(exponent) + scale
    if abs(shift) > MAX_SCALE or len(figures) > MAX_SCALE:
        raise ValueMisfit(RejectCode.OUT_OF_RANGE, TOO_LONG)
    whole, rest = (_parse_integer(figures) * 10**shift, 0) if shift >= 0 else divmod(_parse_integer(figures), 10**-shift)
    whole = int(whole)
    if rest:
        raise ValueMisfit(RejectCode.OUT_OF_RANGE, "holds a decimal with more places than its type")
    return -whole if sign else whole


def _parse_integer(figures: Sequence[int]) -> int:
    return int(Decimal((0, tuple(figures), 0)))


def decimal_text_reader(arrow: pa.DataType) -> ValueReader:
    """Reader of decimals in text or JSON numbers. Refuses `NAN`, infinities and other text."""

    def build(values: Sequence[Any]) -> pa.Array:
        return from_text(pa.array([_unquote(v) for v in values], pa.string()), arrow)

    return ValueReader(arrow, msgspec.Raw, build, "raw")


def from_text(texts: pa.Array, arrow: pa.DataType) -> pa.Array:
    """Decimals of `arrow` from text. Raises ValueMisfit for other than finite numbers, and for more digits or places."""
    whole, fraction = arrow.precision - arrow.scale, arrow.scale
    # Of more digits, or an exponent, Arrow makes wrong numbers without an error, or ends the process.
    convertible = rf"\A[+-]?\d{{1,{whole}}}(?:\.\d{{0,{fraction}}})?\z" if whole else rf"\A[+-]?0?\.\d{{1,{fraction}}}\z"
    if pc.all(pc.match_substring_regex(texts, convertible)).as_py() is not False:
        return texts.cast(arrow)
    return from_unscaled([_parse_number(v, arrow.scale) for v in texts.to_pylist()], arrow)


def _unquote(value: msgspec.Raw | None) -> str | None:
    """The text of a raw JSON string or number; None for null."""
    if value is None:
        return None
    raw = bytes(value)
    if raw == b"null":
        return None
    return msgspec.json.decode(raw, type=str) if raw.startswith(b'"') else raw.decode("ascii", "replace")


def variable_decimal_reader() -> ValueReader:
    """Reader of `io.debezium.data.VariableScaleDecimal` as decimal text with all digits."""
    wire = msgspec.defstruct(
        "VariableScaleDecimal", [("scale", make_nullable(int), None), ("value", make_nullable(bytes), None)], gc=False
    )

    def build(values: Sequence[Any]) -> pa.Array:
        if any(v is not None and (v.scale is None or v.value is None) for v in values):
            raise ValueMisfit(RejectCode.MALFORMED, "holds a decimal without its scale or value")
        texts = [None if v is None else to_plain_text(parse_unscaled(v.value), v.scale) for v in values]
        return pa.array(texts, pa.string())

    return ValueReader(pa.string(), wire, build, "variable")


def to_plain_text(number: int, scale: int) -> str:
    """Digits with a point, without an exponent."""
    if abs(scale) > MAX_SCALE:
        raise ValueMisfit(RejectCode.OUT_OF_RANGE, TOO_LONG)
    if scale <= 0:
        number *= 10**-scale
    digits = str(abs(number)) if number.bit_length() < BIG * 3 else format(Decimal(abs(number)), "f")
    if scale > 0:
        digits = digits.rjust(scale + 1, "0")
        digits = f"{digits[:-scale]}.{digits[-scale:]}"
    return f"-{digits}" if number < 0 else digits


def cast_digits(values: Any, to: pa.DataType) -> Any:
    """`values.cast(to)` for an array or chunked array. Decimals as text, also in nested types, have all their digits and
    no exponent. (Arrow writes exponents for decimals with seven or more zeros after the point.)"""
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([cast_digits(part, to) for part in values.chunks], to)
    kind, t = values.type, pa.types
    if t.is_decimal(kind) and t.is_string(to):
        texts = values.cast(to)
        short = pc.fill_null(pc.match_substring(texts, "E"), False)
        if pc.any(short).as_py():
            digits = pa.array([format(value, "f") for value in values.filter(short).to_pylist()], pa.string())
            texts = pc.replace_with_mask(texts, short, digits)
        return texts
    if t.is_list(kind) and t.is_list(to):
        whole = pa.concat_arrays([values])  # Removes the slice, because offsets must not be sliced.
        items = cast_digits(whole.values, to.value_type)
        return pa.ListArray.from_arrays(whole.offsets, items, type=to, mask=whole.is_null())
    if t.is_struct(kind) and t.is_struct(to) and [f.name for f in kind] == [f.name for f in to]:
        parts = [cast_digits(part, field.type) for part, field in zip(values.flatten(), to, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=list(to), mask=values.is_null())
    if t.is_map(kind) and t.is_map(to):
        whole = pa.concat_arrays([values])
        keys, items = cast_digits(whole.keys, to.key_type), cast_digits(whole.items, to.item_type)
        return pa.MapArray.from_arrays(whole.offsets, keys, items, type=to, mask=whole.is_null())
    return values.cast(to)
