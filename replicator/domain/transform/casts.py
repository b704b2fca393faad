"""Possible casts between types, and their losses."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import types as t

from replicator.domain.sequence_elements import to_plain_type


def has_text(kind: pa.DataType) -> bool:
    """True if each value of this type has one text: whole numbers, decimals, booleans, dates, bytes, and text."""
    kind = to_plain_type(kind)
    numbers = t.is_integer(kind) or t.is_decimal(kind) or t.is_boolean(kind)
    return bool(numbers or t.is_date(kind) or is_textual(kind) or t.is_binary(kind) or t.is_large_binary(kind))


def is_hashable(kind: pa.DataType) -> bool:
    """True if values of this type have a text for masking (`erasures.to_key_texts`): all but nested values and
    durations."""
    kind = to_plain_type(kind)
    scalar = t.is_floating(kind) or t.is_time(kind) or t.is_timestamp(kind) or t.is_fixed_size_binary(kind)
    return bool(scalar or has_text(kind) or t.is_binary_view(kind))


def is_textual(kind: pa.DataType) -> bool:
    """True for text types."""
    return bool(t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind))


def is_castable(kind: pa.DataType, into: pa.DataType) -> bool:
    """True if a cast between the two types exists, even if it fails for some values."""
    if t.is_nested(to_plain_type(kind)):
        return False
    try:
        pa.array([], to_plain_type(kind)).cast(into)
    except pa.ArrowNotImplementedError:
        return False
    return True


def is_injective_cast(kind: pa.DataType, into: pa.DataType) -> bool:
    """True if the cast never fails, and different values of `kind` stay different."""
    kind = to_plain_type(kind)
    if kind == into:
        return True
    if t.is_string(into):
        return bool(t.is_integer(kind) or t.is_boolean(kind) or t.is_date(kind) or is_textual(kind))
    if t.is_integer(kind) and t.is_integer(into):
        signs = t.is_signed_integer(kind), t.is_signed_integer(into)
        same_sign = signs[0] == signs[1]
        return bool(kind.bit_width <= into.bit_width if same_sign else signs[1] and kind.bit_width < into.bit_width)
    return False
