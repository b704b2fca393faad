"""Values in another type, where that holds them exactly."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from ..arrow.conform import cast_column


def cast_exactly(column: pa.ChunkedArray, to: pa.DataType) -> tuple[pa.ChunkedArray, pa.ChunkedArray | None]:
    """`column` cast to `to`, NULL where its value is none of that type, and where that is; None where it is nowhere."""
    if pa.types.is_integer(column.type) and pa.types.is_decimal(to):
        # Arrow compares the widest value of the integer type with the precision, not the values there are.
        column = pc.cast(column, pa.decimal128(20, 0))
    cast, failing = cast_column(column, to)
    if not failing:
        return cast, None
    places = set(failing)
    bad = pa.chunked_array([pa.array([i in places for i in range(len(column))], pa.bool_())])
    return cast, pc.and_(bad, pc.is_valid(column))
