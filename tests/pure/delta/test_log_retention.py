"""Retention of an event log while its lanes continue."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from support.recorded_log import LANE, RecordedLog

from adapters.sinks.delta.event_log import DeltaEventLog
from adapters.sources.event_log.delta_source import DeltaSource
from replicator.domain.change import RAW
from replicator.domain.position import Position, TopicPartition

TOPIC = "cdc.public.items"
FIRST, OTHER = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)


def records(partition: int, start: int, end: int) -> pa.Table:
    empty = {"timestamp": None, "headers": None, "key": b"k", "value": b"v"}
    return pa.Table.from_pylist(
        [{"topic": TOPIC, "partition": partition, "offset": offset, **empty} for offset in range(start, end)], RAW
    )


def offsets(log: RecordedLog) -> dict[int, list[int]]:
    rows = DeltaTable(str(log.path)).to_pyarrow_table(columns=["partition", "offset"]).to_pylist()
    return {p: sorted(row["offset"] for row in rows if row["partition"] == p) for p in (0, 1)}


def removed(log: RecordedLog) -> dict[TopicPartition, int]:
    return dict(DeltaSource({"path": str(log.path)}).removed())


def truncate_log(log: RecordedLog, below: dict[TopicPartition, int], before: datetime) -> dict[TopicPartition, int]:
    sink = DeltaEventLog({"path": str(log.path)})
    try:
        return dict(sink.truncate_log(LANE, Position(below), before))
    finally:
        sink.close()


def test_only_old_and_unneeded_records_are_removed(tmp_path: Path) -> None:
    log = RecordedLog(tmp_path / "log")
    log.append(pa.concat_tables([records(0, 0, 10), records(1, 5, 8)]))
    time.sleep(0.01)
    moment = datetime.now(UTC)
    log.append(pa.concat_tables([records(0, 10, 20), records(1, 8, 9)]))
    later = datetime.now(UTC) + timedelta(seconds=1)
    assert truncate_log(log, {FIRST: 15}, moment - timedelta(days=1)) == {} == removed(log), "nothing is so old"
    assert truncate_log(log, {FIRST: 4}, later) == {FIRST: 4}, "the rest is needed"
    assert truncate_log(log, {FIRST: 15, OTHER: 0}, moment) == {FIRST: 10}, "the rest is too young"
    assert offsets(log) == {0: list(range(10, 20)), 1: [5, 6, 7, 8]} and removed(log) == {FIRST: 10}
    assert truncate_log(log, {FIRST: 20, OTHER: 9}, later) == {FIRST: 19, OTHER: 8}, "the last one stays"
    assert offsets(log) == {0: [19], 1: [8]} and removed(log) == {FIRST: 19, OTHER: 8}
    assert DeltaTable(str(log.path)).metadata().configuration["delta.appendOnly"] == "true"
    log.append(records(0, 20, 22))
    table = DeltaTable(str(log.path))
    table.create_checkpoint()
    assert offsets(log)[0] == [19, 20, 21] and removed(log) == {FIRST: 19, OTHER: 8}, "also from a checkpoint"


def test_reloaded_log_misses_nothing(tmp_path: Path) -> None:
    log = RecordedLog(tmp_path / "log")
    log.append(records(0, 0, 10))
    assert truncate_log(log, {FIRST: 5}, datetime.now(UTC) + timedelta(seconds=1)) == {FIRST: 5}
    log.clear()
    log.append(records(0, 0, 10))
    assert removed(log) == {}
