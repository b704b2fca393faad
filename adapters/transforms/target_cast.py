"""Exact casts of values to a target's types."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from ..arrow.conform import cast_column


def cast_exactly(column: pa.ChunkedArray, to: pa.DataType) -> tuple[pa.ChunkedArray, pa.ChunkedArray | None]:
    """`column` cast to `to`, with NULL for values that do not fit, and a mask of these; None if all values fit."""
    if pa.types.is_integer(column.type) and pa.types.is_decimal(to):
        # Arrow compares the precision with the integer type's widest value, not with the values in the array.
        column = pc.cast(column, pa.decimal128(20, 0))
    cast, failing = cast_column(column, to)
    if not failing:
        return cast, None
    places = set(failing)
    bad = pa.chunked_array([pa.array([i in places for i in range(len(column))], pa.bool_())])
    return cast, pc.and_(bad, pc.is_valid(column))
