"""An event log read up to a given position."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
from support.recorded_log import RecordedLog

from adapters.sources.event_log.delta_source import DeltaSource
from replicator.domain.change import RAW
from replicator.domain.position import Position, TopicPartition

TOPIC = "cdc.public.items"
ONE, TWO = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)


def records(partition: int, *offsets: int) -> pa.Table:
    rest = {"timestamp": None, "headers": None, "key": b"k", "value": b"v"}
    return pa.Table.from_pylist(
        [{"topic": TOPIC, "partition": partition, "offset": offset, **rest} for offset in offsets], RAW
    )


def read(source: DeltaSource, start: Position) -> tuple[list[tuple[int, int]], Position]:
    """Places that were handed over, and where the reader stands."""
    found, at = list[tuple[int, int]](), start

    def take(batch) -> None:
        nonlocal at
        found.extend((row["partition"], row["offset"]) for row in batch.frame.to_pylist())
        at = at.advanced_to(batch.span.end)

    source.run(start, take, threading.Event(), once=True)
    return found, at


def test_records_at_or_after_the_end_are_not_read(tmp_path: Path) -> None:
    log = RecordedLog(tmp_path / "log")
    log.append(pa.concat_tables([records(0, 3, 4, 7), records(1, 0, 1)]))
    log.append(pa.concat_tables([records(0, 9), records(1, 2)]))

    def read_bounded(**below: int) -> DeltaSource:
        return DeltaSource({"path": str(log.path), "below": {TOPIC: {name[1:]: at for name, at in below.items()}}})

    assert read(read_bounded(p0=7, p1=2), read_bounded(p0=7, p1=2).start()) == (
        [(0, 3), (0, 4), (1, 0), (1, 1)],
        Position({ONE: 7, TWO: 2}),
    )
    assert read(read_bounded(p0=7), Position({ONE: 4})) == ([(0, 4)], Position({ONE: 7})), "of one partition alone"
    assert read(read_bounded(p0=3, p1=0), read_bounded(p0=3, p1=0).start())[0] == [], "before the first records"
    assert read_bounded(p0=100, p1=1).end() == Position({ONE: 10, TWO: 1}), "never beyond the log's own end"


def test_records_removed_before_the_end_are_reported(tmp_path: Path) -> None:
    """Also if no earlier records are left."""
    log = RecordedLog(tmp_path / "log")
    log.append(records(0, 5, 6))
    source = DeltaSource({"path": str(log.path), "below": {TOPIC: {"0": 3}}})
    assert "Records 1 to 2" in source.losses(Position({ONE: 1}), {})[ONE]
    assert not source.losses(Position({ONE: 3}), {})
