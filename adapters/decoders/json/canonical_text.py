"""The texts that values of JSON are written in."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ...arrow.json_objects import UNSET

QUOTE = b'"'
CONTROLS = bytes(range(32))
"""What JSON text may not hold as it is: such a value is looked at alone, and refused."""
MOST = 2**30


def to_text(value: Any) -> str | None:
    """The text that a value is written in."""
    if value is None or value is UNSET:
        return None
    raw = bytes(value)
    if not raw.startswith(b'"'):
        return raw.decode()
    found: str = msgspec.json.decode(raw, type=str)
    return found


def to_texts(values: Sequence[Any]) -> pa.Array:
    """`to_text` of every value, which is None for null: together, for most texts are what stands between their quotes."""
    known = [value for value in values if value is not None]
    data = b"".join(known)
    if not known or len(data) > MOST or len(data.translate(None, CONTROLS)) < len(data):
        return _to_texts_one_by_one(values)
    written = build_binary_array(data, values, whole=len(known) == len(values))
    quoted = pc.starts_with(written, pattern=QUOTE)
    try:
        found = pc.if_else(quoted, pc.binary_slice(written, 1, -1), written).cast(pa.string())
    except pa.ArrowInvalid:
        return _to_texts_one_by_one(values)
    if b"\\" not in data:
        return found
    escaped = pc.fill_null(pc.match_substring(written, b"\\"), False)
    texts = [to_text(values[place]) for place in pc.indices_nonzero(escaped).to_pylist()]
    return pc.replace_with_mask(found, escaped, pa.array(texts, pa.string()))


def build_binary_array(data: bytes, values: Sequence[Any], *, whole: bool) -> pa.Array:
    """Values, None for null, whose bytes are `data` one after the other, as an array. `whole`: none is None."""
    sizes = map(len, values) if whole else [0 if value is None else len(value) for value in values]
    offsets = pa.py_buffer(array("i", accumulate(sizes, initial=0)))
    valid = None if whole else pa.array([value is not None for value in values]).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), len(values), [valid, offsets, pa.py_buffer(data)])


def _to_texts_one_by_one(values: Sequence[Any]) -> pa.Array:
    return pa.array([to_text(value) for value in values], pa.string())


def numbers_to_text(numbers: Sequence[int | None]) -> pa.Array:
    """Whole numbers in decimal digits."""
    try:
        return pa.array(numbers, pa.int64()).cast(pa.string())
    except OverflowError:
        return pa.array([None if number is None else str(number) for number in numbers], pa.string())
