"""Splits a batch into slices without common keys, so that one slice is reconciled while another is read or
written."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

import pyarrow as pa
import pyarrow.compute as pc

from .value_codes import encode_rows


def split_by_key(rows: pa.Table, names: Sequence[str], size: int) -> list[pa.Table]:
    """Slices of about `size` rows; larger if one key has more rows. Rows keep their order within a slice.

    Slices with the fewest keys are first: their target rows are read fast, so reconciling starts early.
    """
    if rows.num_rows < 2 * size:
        return [rows]
    numbers = encode_rows(rows, names)
    # Keys are numbered in the order of their first rows, so the counts belong to 0, 1, 2 ...
    ends = pc.cumulative_sum(pc.value_counts(numbers).field("counts"))
    part_of_key = pc.divide(pc.subtract(ends, 1), size)
    part_of = part_of_key.take(numbers)
    keys_of, rows_of = _count_keys(part_of_key), _count_keys(part_of)
    by_part, start, parts = rows.take(pc.array_sort_indices(part_of)), 0, []
    for part in sorted(rows_of):
        parts.append((keys_of[part], by_part.slice(start, rows_of[part])))
        start += rows_of[part]
    return [part for _, part in sorted(parts, key=itemgetter(0))]


def _count_keys(parts: pa.Array) -> dict[int, int]:
    return {int(found["values"]): int(found["counts"]) for found in pc.value_counts(parts).to_pylist()}
