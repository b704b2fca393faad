"""Texts of JSON values."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ...arrow.value_readers import UNSET

QUOTE = b'"'
CONTROLS = bytes(range(32))
"""Bytes that JSON strings may not contain unescaped. Values with such bytes are converted one by one, and refused."""
MOST = 2**30


def to_text(value: Any) -> str | None:
    """The text of a JSON value: strings without quotes and escapes, other values as written. None for null."""
    if value is None or value is UNSET:
        return None
    raw = bytes(value)
    if not raw.startswith(b'"'):
        return raw.decode()
    found: str = msgspec.json.decode(raw, type=str)
    return found


def to_texts(values: Sequence[Any]) -> pa.Array:
    """`to_text` of all values; None for null. Converts all at once: most texts are simply the bytes between quotes."""
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
    """An array of values whose concatenated bytes are `data`; None is null. `whole`: no value is None."""
    sizes = map(len, values) if whole else [0 if value is None else len(value) for value in values]
    offsets = pa.py_buffer(array("i", accumulate(sizes, initial=0)))
    valid = None if whole else pa.array([value is not None for value in values]).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), len(values), [valid, offsets, pa.py_buffer(data)])


def _to_texts_one_by_one(values: Sequence[Any]) -> pa.Array:
    return pa.array([to_text(value) for value in values], pa.string())


def numbers_to_text(numbers: Sequence[int | None]) -> pa.Array:
    """Integers as decimal digits."""
    try:
        return pa.array(numbers, pa.int64()).cast(pa.string())
    except OverflowError:
        return pa.array([None if number is None else str(number) for number in numbers], pa.string())
