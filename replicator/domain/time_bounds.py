"""The times that every engine and target can store: years 1 to 9999."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

FIRST_DAY, LAST_DAY = -719_162, 2_932_896
"""0001-01-01 and 9999-12-31 in days since 1970."""
DAY_MS = 86_400_000
FIRST_MS, LAST_MS = FIRST_DAY * DAY_MS, (LAST_DAY + 1) * DAY_MS - 1
FIRST_US, LAST_US = FIRST_MS * 1_000, LAST_MS * 1_000 + 999
BOUNDS = {"ms": (FIRST_MS, LAST_MS), "us": (FIRST_US, LAST_US)}


def null_out_of_range(stamps: pa.Array) -> pa.Array:
    """`stamps`, in milliseconds or microseconds, with null for times outside the years 1 to 9999."""
    first, last = BOUNDS[stamps.type.unit]
    numbers = stamps.view(pa.int64())
    found = pc.min_max(numbers)
    least, most = found["min"].as_py(), found["max"].as_py()
    if least is None or (least >= first and most <= last):
        return stamps
    inside = pc.and_(pc.greater_equal(numbers, first), pc.less_equal(numbers, last))
    return pc.if_else(inside, stamps, pa.scalar(None, stamps.type))
