"""The changes of a batch in parts that share no key: one can be judged while another is read or written."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from .local_numbers import numbers_of_rows


def parts_by_key(rows: pa.Table, keys: Sequence[str], size: int) -> list[pa.Table]:
    """`rows` in parts of about `size`, more where a key has more, the smallest first. Order stays within a part."""
    if rows.num_rows < 2 * size:
        return [rows]
    numbers = numbers_of_rows(rows, keys)
    # Numbers are given in the order of the rows, so the counts are those of 0, 1, 2 ...
    ends = pc.cumulative_sum(pc.value_counts(numbers).field("counts"))
    part_of = pc.divide(pc.subtract(ends, 1), size).take(numbers)
    counts = {int(found["values"]): int(found["counts"]) for found in pc.value_counts(part_of).to_pylist()}
    by_part, start, parts = rows.take(pc.array_sort_indices(part_of)), 0, []
    for part in sorted(counts):
        parts.append(by_part.slice(start, counts[part]))
        start += counts[part]
    return sorted(parts, key=len)
