"""Names that Arrow would read as paths."""

from __future__ import annotations

import pyarrow as pa


def rename_plainly(table: pa.Table) -> pa.Table:
    """`table` with columns `c0`, `c1` ...: in some places Arrow takes a name with dots or brackets for a path."""
    return table.rename_columns([f"c{i}" for i in range(table.num_columns)])
