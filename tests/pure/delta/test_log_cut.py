"""The cut of an event log at a time or position, and lanes whose position is at it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from adapters.sinks.delta.event_log import cut_at_positions, cut_at_time
from replicator.domain.event_log import LogCut
from replicator.domain.position import Position, TopicPartition

TOPIC = "cdc.items"
ONE, TWO, THREE = (TopicPartition(TOPIC, number) for number in range(3))
NOON = datetime(2026, 5, 15, 12, tzinfo=UTC)
SCHEMA = pa.schema(
    [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("ts", pa.timestamp("us", "UTC"))]
)
Record = tuple[int, int, float | None]
"""Partition, offset, and the minutes after noon."""
NOTHING = Position()


def minutes(number: float) -> datetime:
    return NOON + timedelta(minutes=number)


def log(folder: Path, *records: Record) -> DeltaTable:
    """The records one by one in files of their own, the last one first, beside those of another topic."""
    for partition, offset, at in reversed(records):
        rows = [
            {"topic": topic, "partition": partition, "offset": offset + more, "ts": None if at is None else minutes(at)}
            for topic, more in ((TOPIC, 0), ("other", 1000))
        ]
        write_deltalake(str(folder), pa.Table.from_pylist(rows, SCHEMA), mode="append", partition_by=["topic"])
    return DeltaTable(str(folder))


STREAM: tuple[Record, ...] = (
    (0, 3, 1), (0, 4, 2), (0, 5, None), (0, 9, 4), (0, 10, 5),
    (1, 0, 3), (1, 1, 6),
)  # fmt: skip


@pytest.mark.parametrize(
    ("at", "below", "end"),
    [
        (0.5, {}, {ONE: 3, TWO: 0}),
        (1, {ONE: 4}, {ONE: 4, TWO: 0}),
        (2, {ONE: 6}, {ONE: 9, TWO: 0}),
        (3, {ONE: 6, TWO: 1}, {ONE: 9, TWO: 1}),
        (4.5, {ONE: 10, TWO: 1}, {ONE: 10, TWO: 1}),
        (60, {ONE: 11, TWO: 2}, {ONE: 15, TWO: 2}),
    ],
)
def test_cut_by_time(tmp_path: Path, at: float, below: dict[TopicPartition, int], end: dict[TopicPartition, int]) -> None:
    """A record without a time has the time of the record before it. The log had read one partition further."""
    found = cut_at_time(log(tmp_path, *STREAM), [TOPIC], minutes(at), Position({ONE: 15}))
    assert found == LogCut(Position({ONE: 3, TWO: 0}), Position(below), Position(end), minutes(at))


def test_times_out_of_order_have_no_cut(tmp_path: Path) -> None:
    table = log(tmp_path, (0, 0, 2), (0, 1, 1), (0, 2, 3))
    assert cut_at_time(table, [TOPIC], minutes(1.5), NOTHING) is None
    assert cut_at_time(table, [TOPIC], minutes(2), NOTHING) is not None


def test_cut_by_position(tmp_path: Path) -> None:
    found = cut_at_positions(log(tmp_path, *STREAM), [TOPIC], {ONE: 6}, NOTHING)
    assert (found.below, found.end) == (Position({ONE: 6, TWO: 2}), Position({ONE: 9, TWO: 2}))
    before = cut_at_positions(log(tmp_path / "again", *STREAM), [TOPIC], {ONE: 1, TWO: 1}, NOTHING)
    assert (before.below, before.end) == (Position({TWO: 1}), Position({ONE: 1, TWO: 1}))


BORDER = LogCut(Position({ONE: 3, TWO: 0}), Position({ONE: 6}), Position({ONE: 9, TWO: 0}), NOON)
BEGUN = Position({ONE: 0, TWO: 0})


@pytest.mark.parametrize(
    ("position", "begun", "is_at"),
    [
        ({ONE: 6}, BEGUN, True),
        ({ONE: 9, TWO: 0}, BEGUN, True),
        ({ONE: 5}, BEGUN, False),
        ({ONE: 10}, BEGUN, False),
        ({ONE: 7, TWO: 1}, BEGUN, False),
        ({}, BEGUN, False),
        ({ONE: 7}, {ONE: 3}, True),
        ({ONE: 7}, {ONE: 4}, False),
        ({ONE: 6, THREE: 1}, BEGUN, False),
        ({ONE: 6, THREE: 5}, {ONE: 0, THREE: 5}, True),
    ],
)
def test_positions_at_the_cut(position: dict[TopicPartition, int], begun: dict[TopicPartition, int], *, is_at: bool) -> None:
    """Between the last record before it and the first one after it."""
    assert BORDER.is_at(Position(position), Position(begun)) is is_at


def test_no_position_is_at_the_cut_of_an_empty_log() -> None:
    """A log that was added later, or has other topics, shows nothing about a lane."""
    assert not LogCut().is_at(Position({ONE: 6}), Position())
    assert LogCut().is_at(Position({ONE: 6}), Position({ONE: 6}))


def test_position_before_a_truncated_log_is_not_at_the_cut() -> None:
    """Its first record is after the cut, and the lane has applied the deleted records."""
    shortened = LogCut(Position({ONE: 20}), Position(), Position({ONE: 20}), NOON)
    assert not shortened.is_at(Position({ONE: 15}), Position({ONE: 0}))
    assert not shortened.is_at(Position({ONE: 20}), Position({ONE: 0}))
    assert shortened.is_beyond(Position({ONE: 20}), minutes(1)) and not shortened.is_beyond(Position({ONE: 20}), NOON)
    assert shortened.is_beyond(Position({ONE: 21}), NOON)
