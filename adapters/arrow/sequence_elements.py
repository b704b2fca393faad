"""Values of columns as sequence elements (`domain.sequence`)."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.sequence import ElementForm, get_element, to_plain_type

EXACT = Context(prec=200)
"""More digits than any decimal has."""

PER_UNIT = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}
"""Element units per unit of a time."""


def to_elements(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The element of each value. Null for null and for values without an element: times in seconds or milliseconds beyond
    64 bits of microseconds. Raises TypeError for a type without elements."""
    element = get_element(column.type)
    if element is None:
        raise TypeError(f"values of type {column.type} have no order")
    values = column.cast(to_plain_type(column.type))
    match element.form:
        case ElementForm.NUMBER:
            elements = values.cast(pa.int64())
        case ElementForm.DIGITS:
            elements = _map_values(values, lambda value: f"{value:020d}")
        case ElementForm.DAY:
            elements = values.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
        case ElementForm.UNSCALED:
            # Exact: an integer times a power of ten never needs more digits than the type has.
            wide = values.cast(pa.decimal128(element.digits, element.scale))
            power = pa.scalar(10**element.scale, pa.decimal128(element.scale + 1, 0))
            elements = pc.multiply(wide, power).cast(pa.int64())
        case ElementForm.UNSCALED_TEXT:
            scale, digits = element.scale, element.digits
            elements = _map_values(values, lambda value: f"{int(value.scaleb(scale, EXACT)) + 10**digits:0{digits + 1}d}")
        case ElementForm.TEXT:
            elements = values.cast(pa.string())
        case ElementForm.HEX:
            elements = _map_values(values, bytes.hex)
        case _:
            kind, factor = values.type, PER_UNIT[values.type.unit]
            elements = (values.cast(pa.int32()) if pa.types.is_time32(kind) else values).cast(pa.int64())
            if factor != 1:
                most = (2**63 - 1) // factor
                fits = pc.and_(pc.greater_equal(elements, -most), pc.less_equal(elements, most))
                elements = pc.multiply(pc.if_else(fits, elements, pa.scalar(None, pa.int64())), factor)
    return elements


def to_values(elements: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """The values of these elements, for a type from `domain.sequence.get_display_type`."""
    element = get_element(kind)
    match element.form if element else None:
        case ElementForm.DIGITS:
            return elements.cast(pa.uint64())
        case ElementForm.HEX:
            return _map_values(elements, bytes.fromhex, kind)
        case ElementForm.UNSCALED:
            return _map_values(elements, lambda number: Decimal(number).scaleb(-max(kind.scale, 0), EXACT), kind)
        case ElementForm.DAY:
            return elements.cast(pa.int32()).cast(pa.date32()).cast(kind)
    return elements.cast(kind)


def _map_values(values: pa.ChunkedArray, convert: Callable[..., Any], kind: pa.DataType | None = None) -> pa.ChunkedArray:
    mapped = [None if value is None else convert(value) for value in values.to_pylist()]
    return pa.chunked_array([pa.array(mapped, kind or pa.string())])
