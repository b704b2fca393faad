"""An event log written by its sink, to be read back as a stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from adapters.dispatch import event_log_sink
from adapters.event_log import build_rows
from adapters.sources.event_log.delta_source import DeltaSource
from adapters.sources.event_log.postgres import PostgresLogSource
from replicator.domain.event_log import make_event_log_plan
from replicator.domain.policy.plan import Counts, Facts
from replicator.domain.position import Position, Span, TopicPartition
from replicator.ports.frames import FoldedChanges, Lane, Write
from replicator.testing.sink_base import refuse_rejects
from replicator.testing.source_contract import ODD_TIMES

LANE = Lane("raw.shop", "shop", "shop", "", "raw", "shop", "event_log")

TIMES = tuple(at for at in ODD_TIMES if abs(at) < 2**48)
"""A log stores times in microseconds, and has a folder for each day."""


@dataclass
class RecordedLog:
    """An event log with one lane. Every `append` is a commit."""

    path: Path | str
    storage: Mapping[str, object] | None = None
    position: dict[TopicPartition, int] = field(default_factory=dict)
    dsn: str = ""
    """The database of the log, if it is not in a lake."""

    @property
    def options(self) -> dict[str, object]:
        """The location, as options of a sink and a source."""
        if self.dsn:
            return {"dsn": self.dsn}
        return {"path": str(self.path), **({"storage": self.storage} if self.storage else {})}

    @contextmanager
    def sink(self) -> Iterator[Any]:
        sink: Any = event_log_sink(self.options)
        try:
            sink.prepare(LANE, make_event_log_plan())
            yield sink
        finally:
            sink.close()

    def create(self) -> None:
        with self.sink():
            pass

    def append(self, records: pa.Table, end: Position | None = None) -> None:
        """Appends the records. `end` is the lane's position after them, if it is not just behind the last record."""
        last = records.group_by(["topic", "partition"]).aggregate([("offset", "min"), ("offset", "max")]).to_pylist()
        ends = {TopicPartition(r["topic"], r["partition"]): r["offset_max"] + 1 for r in last} | dict(end or {})
        starts = {TopicPartition(r["topic"], r["partition"]): r["offset_min"] for r in last}
        starts = {place: self.position.get(place, starts.get(place, at)) for place, at in ends.items()}
        frame = build_rows(records, DebeziumJsonDecoder({}), datetime.now(UTC))
        folded = FoldedChanges(frame, Facts(), Counts(), frame.num_rows, frame.nbytes)
        with self.sink() as sink:
            write = Write(LANE, make_event_log_plan(), folded, Span(Position(starts), Position(ends)), {})
            counts = sink.apply([write], refuse_rejects)[LANE.id].counts
        assert counts.applied == records.num_rows, counts
        self.position.update(ends)

    def clear(self) -> None:
        with self.sink() as sink:
            sink.reset(LANE)
        self.position.clear()


@dataclass
class LogStream:
    path: Path | str
    batch_records: int
    storage: Mapping[str, object] | None = None
    topic: str = "cdc.public.items"
    partitions: int = 3
    dsn: str = ""

    def __post_init__(self):
        self.log = RecordedLog(self.path, self.storage, dsn=self.dsn)
        self.log.create()

    def publish(self, records):
        """Makes a commit for every four records."""
        for at in range(0, records.num_rows, 4):
            self.log.append(records.slice(at, 4))

    def open(self):
        source = PostgresLogSource if self.dsn else DeltaSource
        return source({**self.log.options, "batch_records": self.batch_records})

    def close(self):
        pass
