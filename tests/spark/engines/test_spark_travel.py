"""Times of day, which are text in Spark."""

from __future__ import annotations

from datetime import time
from typing import Any

import pyarrow as pa
import pytest

from adapters.spark.types import from_spark, to_spark

DAY = 86_400
TIMES = [(pa.time32("s"), 1), (pa.time32("ms"), 10**3), (pa.time64("us"), 10**6), (pa.time64("ns"), 10**9)]


@pytest.mark.parametrize(("kind", "unit"), TIMES)
@pytest.mark.parametrize("late", [True, False])
def test_times_of_day_are_unchanged(kind: pa.DataType, unit: int, late: bool) -> None:
    counts: list[Any] = [0, None, 1, 52_200 * unit, DAY * unit - 1, *([DAY * unit] if late and unit == 10**6 else [])]
    number = pa.int32() if pa.types.is_time32(kind) else pa.int64()
    table = pa.table({"t": pa.chunked_array([pa.array(counts, number).cast(kind), pa.array([], kind)])})
    back = from_spark(to_spark(table), table.schema)
    assert back["t"].cast(number).to_pylist() == counts
    assert back.schema == table.schema


US = pa.time64("us")
NESTED = [
    (pa.list_(US), [[time(1), None], None, [], [time(2)]]),
    (pa.map_(pa.string(), US), [[("a", time(1)), ("b", None)], None, [], [("c", time(2))]]),
    (
        pa.struct([("t", US), ("l", pa.list_(US))]),
        [{"t": time(1), "l": [None, time(3)]}, None, {"t": None, "l": None}, None],
    ),
]


@pytest.mark.parametrize(("kind", "values"), NESTED, ids=lambda case: str(case) if isinstance(case, pa.DataType) else "")
def test_times_of_day_in_nested_values_are_unchanged(kind: pa.DataType, values: list[Any]) -> None:
    """Also in a slice of an array that does not have its first rows."""
    whole = pa.table({"v": pa.array(values, kind)})
    for table in (whole, whole.slice(1, 2), whole.slice(0, 0)):
        back = from_spark(to_spark(table), table.schema)
        back.validate(full=True)
        assert (back["v"].to_pylist(), back.schema) == (table["v"].to_pylist(), table.schema)
