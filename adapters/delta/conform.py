"""Converts rows to the types of a Delta table."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from ..apply.conform import conform_to_schema, out_of_range_reason, to_refused
from .types import mask_impossible, to_storage


def conform_to_table(rows: pa.Table, schema: pa.Schema) -> tuple[pa.Table, pa.Table]:
    """Rows (with `_place`) in the types of `schema`, and the rest as `REJECTED`.

    No value changes silently: it keeps its meaning (see `types`), or its row is rejected as OUT_OF_RANGE.
    """
    rejected = []
    for field in schema:
        mask = mask_impossible(rows[field.name]) if field.name in rows.column_names else None
        if mask is not None:
            rejected.append(
                to_refused(rows.filter(mask), out_of_range_reason(f"the value of column {field.name!r} is no time of day"))
            )
            rows = rows.filter(pc.invert(mask))
    for i, name in enumerate(rows.column_names):
        if name in schema.names:
            rows = rows.set_column(i, name, to_storage(rows[name], schema.field(name).type))
    good, bad = conform_to_schema(rows, schema)
    return good, pa.concat_tables([*rejected, bad])
