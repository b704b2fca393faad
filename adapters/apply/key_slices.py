"""The changes of a batch in parts that share no key: one can be judged while another is read or written."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

import pyarrow as pa
import pyarrow.compute as pc

from .value_codes import encode_rows


def split_by_key(rows: pa.Table, names: Sequence[str], size: int) -> list[pa.Table]:
    """`rows` in parts of about `size`, more where a key has more, those of the fewest keys first: what is known
    of few keys is soon read, and judging can begin. Order stays within a part."""
    if rows.num_rows < 2 * size:
        return [rows]
    numbers = encode_rows(rows, names)
    # Numbers are given in the order of the rows, so the counts are those of 0, 1, 2 ...
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
