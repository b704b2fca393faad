"""Which casts there are, and what they keep."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import types as t

from replicator.domain.sequence_elements import to_plain_type


def has_text(kind: pa.DataType) -> bool:
    """Values of this type have one text: whole numbers, decimals, booleans, dates, bytes, and text itself."""
    kind = to_plain_type(kind)
    numbers = t.is_integer(kind) or t.is_decimal(kind) or t.is_boolean(kind)
    return bool(numbers or t.is_date(kind) or is_textual(kind) or t.is_binary(kind) or t.is_large_binary(kind))


def is_hashable(kind: pa.DataType) -> bool:
    """Values of this type have a text by which they can be masked (`erasures.to_key_texts`): all but those that hold
    others, and spans of time."""
    kind = to_plain_type(kind)
    scalar = t.is_floating(kind) or t.is_time(kind) or t.is_timestamp(kind) or t.is_fixed_size_binary(kind)
    return bool(scalar or has_text(kind) or t.is_binary_view(kind))


def is_textual(kind: pa.DataType) -> bool:
    """Values of this type are text."""
    return bool(t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind))


def is_castable(kind: pa.DataType, into: pa.DataType) -> bool:
    """There is a cast between the two, if not of every value."""
    if t.is_nested(to_plain_type(kind)):
        return False
    try:
        pa.array([], to_plain_type(kind)).cast(into)
    except pa.ArrowNotImplementedError:
        return False
    return True


def is_injective_cast(kind: pa.DataType, into: pa.DataType) -> bool:
    """No two values of `kind` become the same one of `into`, and none is refused."""
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
