"""The order of changes: tuples compared left to right, never the time of arrival."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa
from pyarrow import types as t

SequenceValue = int | str | bytes
Sequence = tuple[SequenceValue, ...]
"""One to four non-null comparable elements, of fixed types per table. Equal sequence and key mean the same change."""

EPOCH_BITS = 7
"""The top bits of the first element (below the sign) hold the epoch that an operator declares after a fail-over."""

EPOCH_SHIFT = 63 - EPOCH_BITS
"""Decoders add `epoch << EPOCH_SHIFT` to the first element, so that it is above all elements of earlier epochs. They
reject elements that do not leave room: negative ones, and those from 2**56 on."""
MAX_EPOCH = (1 << EPOCH_BITS) - 1


# Conversion of column values to elements of a sequence: whole numbers or text in the order of the values.
#
# | Column | Element |
# | --- | --- |
# | boolean, integers up to 64 bits with a sign | the number |
# | unsigned integers of 64 bits | text of 20 digits |
# | date | days since 1970 |
# | timestamp up to microseconds, in nanoseconds | the number of microseconds, of nanoseconds, since 1970 |
# | time of day up to microseconds, in nanoseconds | the number of microseconds, of nanoseconds, since midnight |
# | decimal of up to 18 digits | the number without its point |
# | decimal of more digits | text: 10**digits more than the number without its point, in as many digits plus one |
# | text | itself, compared as bytes |
# | bytes | text of two hexadecimal digits each |
#
# Floats have no order that all engines share (NaN), and nested values none at all.

MAX_DIGITS = 18
"""Every whole number of this many digits fits into 64 bits."""


class ElementForm(StrEnum):
    """The forms of a column's elements."""

    NUMBER = "number"
    DIGITS = "digits"
    DAY = "day"
    MICROSECOND = "microsecond"
    NANOSECOND = "nanosecond"
    UNSCALED = "unscaled"
    UNSCALED_TEXT = "unscaled text"
    TEXT = "text"
    HEX = "hex"


TEXTS = frozenset({ElementForm.DIGITS, ElementForm.UNSCALED_TEXT, ElementForm.TEXT, ElementForm.HEX})


@dataclass(frozen=True, slots=True)
class SequenceElement:
    """The elements of one column. `digits` and `scale` belong to a decimal. Its text distinguishes columns whose
    elements cannot be compared with each other."""

    form: ElementForm
    digits: int = 0
    scale: int = 0

    def __str__(self) -> str:
        match self.form:
            case ElementForm.UNSCALED:
                return f"number of {self.scale} decimals"
            case ElementForm.UNSCALED_TEXT:
                return f"number of {self.digits} digits, {self.scale} of them decimals"
        return str(self.form)

    @property
    def is_textual(self) -> bool:
        """True if the elements are text; otherwise they are int64."""
        return self.form in TEXTS


def get_element(kind: pa.DataType) -> SequenceElement | None:
    """The elements of a column of this type; None for a type without an order."""
    kind = to_plain_type(kind)
    if t.is_decimal(kind):
        scale = max(kind.scale, 0)
        digits = max(kind.precision - min(kind.scale, 0), scale)
        return SequenceElement(ElementForm.UNSCALED if digits <= MAX_DIGITS else ElementForm.UNSCALED_TEXT, digits, scale)
    if t.is_timestamp(kind) or t.is_time(kind):
        return SequenceElement(ElementForm.NANOSECOND if kind.unit == "ns" else ElementForm.MICROSECOND)
    return next((SequenceElement(form) for holds, form in _FORMS if holds(kind)), None)


def get_display_type(kind: pa.DataType) -> pa.DataType | None:
    """The type in which `__START_AT` and `__END_AT` show values of a column of this type, computed from its elements.
    None for times of day, for nanoseconds and for decimals of more than 18 digits."""
    kind, element = to_plain_type(kind), get_element(kind)
    if element is None or element.form in (ElementForm.NANOSECOND, ElementForm.UNSCALED_TEXT) or t.is_time(kind):
        return None
    return pa.timestamp("us", kind.tz) if t.is_timestamp(kind) else kind


def to_plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values, without extension types and dictionaries."""
    if isinstance(kind, pa.BaseExtensionType):
        return to_plain_type(kind.storage_type)
    return to_plain_type(kind.value_type) if t.is_dictionary(kind) else kind


def is_text(kind: pa.DataType) -> bool:
    """True for every type of text."""
    return bool(t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """True for every type of bytes."""
    return bool(t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind) or t.is_binary_view(kind))


_FORMS = (
    (t.is_boolean, ElementForm.NUMBER),
    (t.is_uint64, ElementForm.DIGITS),
    (t.is_integer, ElementForm.NUMBER),
    (t.is_date, ElementForm.DAY),
    (is_text, ElementForm.TEXT),
    (is_bytes, ElementForm.HEX),
)
