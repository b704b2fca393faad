"""Every Arrow type in its Delta form, without loss, through a real table."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from adapters.apply.conform import cast_column, number_rows
from adapters.delta.folders import LocalFolder
from adapters.delta.tables import create_table, read_schema
from adapters.delta.types import can_accept, conform_to_table, has_exact_statistics, restore_type, storage_type
from replicator.domain.errors import Fatal
from replicator.domain.table import Column

MIDNIGHT = pa.array([86_400_000_000, 0, None], pa.int64()).cast(pa.time64("us"))
BIG = Decimal("12345678901234567890123456789012345678901234.5")
NANOS = pa.array([1_709_210_096_123_456_789, -1], pa.int64())

CASES: list[tuple[pa.Array, pa.DataType, list[Any]]] = [
    (pa.array([255, None], pa.uint8()), pa.int16(), [255, None]),
    (pa.array([2**16 - 1], pa.uint16()), pa.int32(), [2**16 - 1]),
    (pa.array([2**32 - 1], pa.uint32()), pa.int64(), [2**32 - 1]),
    (pa.array([2**64 - 1], pa.uint64()), pa.decimal128(20, 0), [Decimal(2**64 - 1)]),
    (pa.array([1.5], pa.float16()), pa.float32(), [1.5]),
    (pa.array([time(23, 59, 59, 999999)], pa.time64("us")), pa.string(), ["23:59:59.999999"]),
    (MIDNIGHT, pa.string(), ["24:00:00.000000", "00:00:00.000000", None]),
    (pa.array([time(1, 2, 3)], pa.time32("s")), pa.string(), ["01:02:03"]),
    (pa.array([timedelta(days=-1)], pa.duration("us")), pa.int64(), [-86_400_000_000]),
    (NANOS.cast(pa.timestamp("ns")), pa.string(), ["2024-02-29 12:34:56.123456789", "1969-12-31 23:59:59.999999999"]),
    (NANOS.cast(pa.timestamp("ns", "Europe/Paris")), pa.string(), None),
    (pa.array([datetime(9999, 12, 31, 23, 59, 59, 999999)], pa.timestamp("us")), pa.timestamp("us"), None),
    (pa.array([datetime(1, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")), pa.timestamp("us", "UTC"), None),
    (pa.array([5, -5], pa.int64()).cast(pa.timestamp("ms")), pa.timestamp("us"), None),
    (pa.array([date(1, 1, 1), date(9999, 12, 31)], pa.date64()), pa.date32(), [date(1, 1, 1), date(9999, 12, 31)]),
    (pa.array([Decimal(1200)], pa.decimal128(5, -2)), pa.decimal128(7, 0), [Decimal(1200)]),
    (
        pa.array([Decimal("0.0012345")], pa.decimal128(7, 7)).cast(pa.decimal128(5, 7)),
        pa.decimal128(7, 7),
        [Decimal("0.0012345")],
    ),
    (pa.array([BIG], pa.decimal256(60, 1)), pa.string(), [str(BIG)]),
    (pa.array([Decimal(5)], pa.decimal256(38, 0)), pa.decimal128(38, 0), [Decimal(5)]),
    (pa.array([b"\0" * 16], pa.binary(16)), pa.binary(), [b"\0" * 16]),
    (pa.array(["é"], pa.large_string()), pa.string(), ["é"]),
    (pa.array(["a", "b", "a"]).dictionary_encode(), pa.string(), ["a", "b", "a"]),
    (pa.array([[time(1)]], pa.list_(pa.time64("us"))), pa.list_(pa.string()), [["01:00:00.000000"]]),
    (pa.array([[("k", 2**64 - 1)]], pa.map_(pa.string(), pa.uint64())), pa.map_(pa.string(), pa.decimal128(20, 0)), None),
    (pa.array([{"a": 1}], pa.struct([("a", pa.uint8())])), pa.struct([("a", pa.int16())]), [{"a": 1}]),
    (pa.nulls(1), pa.string(), [None]),
]


@pytest.mark.parametrize(("values", "kept", "expected"), CASES, ids=[str(c[0].type) for c in CASES])
def test_values_survive_a_delta_table(values: pa.Array, kept: pa.DataType, expected: Any, tmp_path: Path) -> None:
    assert storage_type(values.type) == kept
    create_table(LocalFolder(tmp_path) / "t", "t", (Column("v", values.type),), settings={}, partition_by=[])
    table = DeltaTable(str(tmp_path / "t"))
    rows, rejected = conform_to_table(number_rows(pa.table({"v": values})), read_schema(table))
    assert rejected.num_rows == 0
    write_deltalake(table, rows.select(["v"]), mode="append")
    back = pa.RecordBatchReader.from_stream(table.scan()).read_all().cast(read_schema(table))
    assert back["v"].type == kept
    assert back["v"].to_pylist() == (values.cast(kept).to_pylist() if expected is None else expected)
    again, failing = cast_column(restore_type(back["v"], values.type), values.type)
    if values.type == pa.list_(pa.time64("us")):
        assert failing == [0], "of what is nested there is no way back"
    else:
        assert not failing and again.type == values.type and again.combine_chunks().equals(values)


def test_impossible_time_is_rejected_not_changed() -> None:
    times = pa.array([86_400_000_001, -1, 5], pa.int64()).cast(pa.time64("us"))
    rows, rejected = conform_to_table(number_rows(pa.table({"t": times})), pa.schema([("t", pa.string())]))
    assert rows["t"].to_pylist() == ["00:00:00.000005"]
    assert rejected["_place"].to_pylist() == [0, 1]
    assert rejected["_error"].to_pylist()[0].startswith("OUT_OF_RANGE: ")


def test_whole_numbers_convert_to_decimals_by_value() -> None:
    rows, rejected = conform_to_table(
        number_rows(pa.table({"n": pa.array([99, 100], pa.int64())})), pa.schema([("n", pa.decimal128(4, 2))])
    )
    assert rows["n"].to_pylist() == [Decimal("99.00")]
    assert rejected["_place"].to_pylist() == [1]


def test_type_without_a_form_is_refused() -> None:
    with pytest.raises(Fatal, match="month_day_nano"):
        storage_type(pa.month_day_nano_interval())


@pytest.mark.parametrize(
    ("kept", "arrow", "fits"),
    [
        (pa.int32(), pa.int64(), True),
        (pa.decimal128(10, 2), pa.int64(), True),
        (pa.int64(), pa.decimal128(10, 2), True),
        (pa.string(), pa.int64(), True),
        (pa.string(), pa.date32(), True),
        (pa.float64(), pa.int32(), True),
        (pa.float64(), pa.decimal128(10, 2), False),
        (pa.float32(), pa.float64(), False),
        (pa.int64(), pa.string(), False),
        (pa.date32(), pa.timestamp("us"), False),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), False),
        (pa.bool_(), pa.int8(), False),
        (pa.string(), pa.binary(), False),
    ],
)
def test_existing_column_takes_only_what_it_can_keep(kept: pa.DataType, arrow: pa.DataType, fits: bool) -> None:
    assert can_accept(kept, arrow) is fits


def test_columns_with_inexact_statistics_have_none() -> None:
    types = [
        pa.decimal128(15, 2),
        pa.decimal128(16, 2),
        pa.float64(),
        pa.binary(),
        pa.list_(pa.int64()),
        pa.int64(),
        pa.string(),
    ]
    assert [has_exact_statistics(t) for t in types] == [True, False, False, False, False, True, True]
