"""Compatibility of types: can one hold all values of another?"""

from __future__ import annotations

import pyarrow as pa

from .table import TableSpec


def can_hold(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """True if every value of `narrow` is also a value of `wide`, unchanged, and different values stay different."""
    if wide == narrow or pa.types.is_null(narrow):
        return True
    if pa.types.is_decimal(wide):
        whole, scale = _count_digits(narrow)
        return whole >= 0 and wide.scale >= scale and wide.precision - wide.scale >= whole
    if pa.types.is_integer(wide) and pa.types.is_integer(narrow):
        return _can_hold_integers(wide, narrow)
    if pa.types.is_floating(wide):
        return _count_mantissa_bits(narrow) <= {16: 11, 32: 24, 64: 53}[wide.bit_width]
    if pa.types.is_timestamp(wide) and pa.types.is_timestamp(narrow):
        units = ("s", "ms", "us", "ns")
        return bool(wide.tz == narrow.tz and units.index(wide.unit) >= units.index(narrow.unit))
    return bool(pa.types.is_large_string(wide) and pa.types.is_string(narrow))


def _can_hold_integers(wide: pa.DataType, narrow: pa.DataType) -> bool:
    signed_wide, signed_narrow = pa.types.is_signed_integer(wide), pa.types.is_signed_integer(narrow)
    if signed_wide == signed_narrow:
        return bool(wide.bit_width >= narrow.bit_width)
    return bool(signed_wide and wide.bit_width > narrow.bit_width)


def _count_digits(narrow: pa.DataType) -> tuple[int, int]:
    """Digits before and after the point; (-1, 0) for types other than exact numbers."""
    if pa.types.is_decimal(narrow):
        return narrow.precision - narrow.scale, narrow.scale
    if pa.types.is_integer(narrow):
        return {8: 3, 16: 5, 32: 10, 64: 20}[narrow.bit_width], 0
    return -1, 0


def _count_mantissa_bits(narrow: pa.DataType) -> int:
    """The bits that a binary float needs to hold every value; too many for any other type."""
    if pa.types.is_floating(narrow):
        return {16: 11, 32: 24, 64: 53}[narrow.bit_width]
    if pa.types.is_integer(narrow):
        return int(narrow.bit_width)
    return 1000


def has_canonical_text(narrow: pa.DataType) -> bool:
    """True for types of which each value has one text, the same on every engine and in every target."""
    t = pa.types
    return bool(t.is_integer(narrow) or t.is_decimal(narrow) or t.is_boolean(narrow) or t.is_date(narrow))


def can_cover(union: TableSpec, table: TableSpec) -> bool:
    """True if frames of `table` can be frames of `union`. Key and order of changes are the same, and every column of
    `union` can hold the values of its column in `table`."""
    types = {c.name: c.type for c in union.columns}
    same = union.keys == table.keys and union.sequence == table.sequence
    return same and all(c.name in types and can_hold(types[c.name], c.type) for c in table.columns)
