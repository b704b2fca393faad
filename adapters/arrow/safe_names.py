"""Column names that Arrow might read as paths."""

from __future__ import annotations

import pyarrow as pa


def rename_plainly(table: pa.Table) -> pa.Table:
    """`table` with columns `c0`, `c1` ...: some Arrow functions read a name with dots or brackets as a path."""
    return table.rename_columns([f"c{i}" for i in range(table.num_columns)])
