"""The items of a list column's own rows: a slice of the column still carries the items of all rows."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def slice_items(column: pa.ListArray) -> tuple[pa.Array, pa.Array]:
    """Offsets that begin at 0, and the items to which they point."""
    offsets = column.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    return rebase_offsets(offsets), column.values.slice(first, last - first)


def rebase_offsets(offsets: pa.Array) -> pa.Array:
    """Offsets shifted so that the first is 0, in a buffer of their own."""
    return pc.subtract(offsets, offsets[0])


# Column names that Arrow might read as paths.


def rename_plainly(table: pa.Table) -> pa.Table:
    """`table` with columns `c0`, `c1` ...: some Arrow functions read a name with dots or brackets as a path."""
    return table.rename_columns([f"c{i}" for i in range(table.num_columns)])
