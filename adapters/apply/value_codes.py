"""Numbers for values: equal values have the same number, so that DuckDB compares numbers."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc


def encode_values(column: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """A number per value (null for NULL), and the value of each number. Zero equals minus zero, and NaN equals
    NaN."""
    whole = column.combine_chunks()
    if pa.types.is_nested(whole.type):
        return _encode_lists(whole)
    if pa.types.is_floating(whole.type):
        whole = pc.add(whole, pa.scalar(0.0, whole.type))
    found = whole.dictionary_encode()
    return found.indices.cast(pa.int64()), found.dictionary


def _encode_lists(whole: pa.Array) -> tuple[pa.Array, pa.Array]:
    numbers: dict[str, int] = {}
    first: list[int] = []
    codes: list[int | None] = []
    for place, value in enumerate(whole.to_pylist()):
        text = repr(value)
        if value is not None and text not in numbers:
            numbers[text] = len(first)
            first.append(place)
        codes.append(None if value is None else numbers[text])
    return pa.array(codes, pa.int64()), whole.take(pa.array(first, pa.int64()))


def combine_codes(one: pa.Array, other: pa.Array) -> pa.Array:
    """One number for each pair of numbers; NULL counts as a number."""
    filled = pc.add(pc.fill_null(other, -1), 1)
    spread = (pc.max(filled).as_py() or 0) + 1
    return pc.add(pc.multiply(one, spread), filled).dictionary_encode().indices.cast(pa.int64())


def encode_rows(rows: pa.Table, names: Sequence[str]) -> pa.Array:
    """One number per row for the values of several columns. Stops early once every row has its own number."""
    found = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
    for name in names:
        if pc.max(found).as_py() == rows.num_rows - 1:
            return found
        found = combine_codes(found, encode_values(rows[name])[0])
    return found
