"""The values of a column as elements of a sequence (`domain.elements`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.elements import Element, Form, element_of, plain

EXACT = Context(prec=200)
"""More digits than any decimal has."""

PER_UNIT = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}
"""What one unit of a time is in units of its elements."""


def elements(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Per value its element, null where it is null or has none: a time in seconds or milliseconds beyond 64 bits of
    microseconds. The column's type has elements."""
    said = element_of(column.type)
    if said is None:
        raise TypeError(f"values of type {column.type} have no order")
    return MAKERS[said.form](column.cast(plain(column.type)), said)


def shown(elements: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """The values that these are the elements of, for a type that `domain.elements.shown_as` gives."""
    said = element_of(kind)
    match said.form if said else None:
        case Form.DIGITS:
            return elements.cast(pa.uint64())
        case Form.HEX:
            return _each(elements, bytes.fromhex, kind)
        case Form.UNSCALED:
            return _each(elements, lambda number: Decimal(number).scaleb(-max(kind.scale, 0), EXACT), kind)
        case Form.DAY:
            return elements.cast(pa.int32()).cast(pa.date32()).cast(kind)
    return elements.cast(kind)


def _numbers(values: pa.ChunkedArray, _: Element) -> pa.ChunkedArray:
    return values.cast(pa.int64())


def _texts(values: pa.ChunkedArray, _: Element) -> pa.ChunkedArray:
    return values.cast(pa.string())


def _days(values: pa.ChunkedArray, _: Element) -> pa.ChunkedArray:
    return values.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())


def _digits(values: pa.ChunkedArray, _: Element) -> pa.ChunkedArray:
    return _each(values, lambda value: f"{value:020d}")


def _hex(values: pa.ChunkedArray, _: Element) -> pa.ChunkedArray:
    return _each(values, bytes.hex)


def _unscaled_text(values: pa.ChunkedArray, said: Element) -> pa.ChunkedArray:
    return _each(values, lambda value: f"{int(value.scaleb(said.scale, EXACT)) + 10**said.digits:0{said.digits + 1}d}")


def _each(values: pa.ChunkedArray, made: Callable[..., Any], kind: pa.DataType | None = None) -> pa.ChunkedArray:
    found = [None if value is None else made(value) for value in values.to_pylist()]
    return pa.chunked_array([pa.array(found, kind or pa.string())])


def _times(values: pa.ChunkedArray, _: Element) -> pa.ChunkedArray:
    kind = values.type
    numbers = values.cast(pa.int32()).cast(pa.int64()) if pa.types.is_time32(kind) else values.cast(pa.int64())
    factor = PER_UNIT[kind.unit]
    if factor == 1:
        return numbers
    most = (2**63 - 1) // factor
    fits = pc.and_(pc.greater_equal(numbers, -most), pc.less_equal(numbers, most))
    return pc.multiply(pc.if_else(fits, numbers, pa.scalar(None, pa.int64())), factor)


def _unscaled(values: pa.ChunkedArray, said: Element) -> pa.ChunkedArray:
    """Exact: an integer times a power of ten never needs more digits than the type has."""
    wide = values.cast(pa.decimal128(said.digits, said.scale))
    return pc.multiply(wide, pa.scalar(10**said.scale, pa.decimal128(said.scale + 1, 0))).cast(pa.int64())


MAKERS: Mapping[Form, Callable[[pa.ChunkedArray, Element], pa.ChunkedArray]] = {
    Form.NUMBER: _numbers,
    Form.DIGITS: _digits,
    Form.DAY: _days,
    Form.MICROSECOND: _times,
    Form.NANOSECOND: _times,
    Form.UNSCALED: _unscaled,
    Form.UNSCALED_TEXT: _unscaled_text,
    Form.TEXT: _texts,
    Form.HEX: _hex,
}
