"""The `_unsent` column of a changes frame."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc


def list_names(masks: Mapping[str, pa.Array], count: int) -> pa.Array:
    """For each row the names with a set mask, or null if there are none."""
    some = {name: mask for name, mask in masks.items() if pc.any(mask).as_py()}
    if not some:
        return pa.nulls(count, pa.list_(pa.string()))
    rows = [pc.indices_nonzero(mask) for mask in some.values()]
    which = pa.concat_arrays([pa.repeat(pa.scalar(i, pa.int32()), len(found)) for i, found in enumerate(rows)])
    table = pa.table({"row": pa.concat_arrays(rows), "which": which})
    order = pc.sort_indices(table, sort_keys=[("row", "ascending"), ("which", "ascending")])
    names = pa.array(list(some), pa.string()).take(which.take(order))
    counts = pa.repeat(pa.scalar(0, pa.int32()), count)
    for mask in some.values():
        counts = pc.add(counts, mask.cast(pa.int32()))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(counts)])
    return pa.ListArray.from_arrays(offsets, names, mask=pc.equal(counts, 0))
