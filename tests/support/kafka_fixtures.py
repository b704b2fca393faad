from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from servers.kafka import Broker

from adapters.sources.kafka.source import KafkaSource
from replicator.domain.position import Position, TopicPartition
from replicator.ports.frames import Batch


@dataclass
class BatchCollector:
    """Collects batches, and checks the contract of every batch."""

    start: Position = field(default_factory=Position)
    batches: list[Batch[pa.Table]] = field(default_factory=list)
    position: dict[TopicPartition, int] = field(default_factory=dict)
    rows: list[tuple[str, int, int]] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)

    def __call__(self, batch: Batch[pa.Table]) -> None:
        self.batches.append(batch)
        assert batch.records == batch.frame.num_rows
        for p, end in batch.span.end.items():
            assert batch.span.start[p] == self.position.get(p, self.start.get(p, batch.span.start[p]))
            assert batch.span.start[p] <= end
        columns = [batch.frame.column(c).to_pylist() for c in ("topic", "partition", "offset", "value")]
        for topic, partition, offset, value in zip(*columns, strict=True):
            place = TopicPartition(topic, partition)
            assert batch.span.start[place] <= offset < batch.span.end[place]
            self.rows.append((topic, partition, offset))
            self.values.append(value)
        self.position.update(batch.span.end)

    def offsets(self, topic: str, partition: int = 0) -> list[int]:
        return [o for t, p, o in self.rows if (t, p) == (topic, partition)]


class FollowingRun:
    """A `run` that follows its topics in a thread."""

    def __init__(self, source: KafkaSource, start: Position) -> None:
        self.seen, self.stop, self.error = BatchCollector(start), threading.Event(), None
        self._thread = threading.Thread(target=self._run, args=(source, start))
        self._thread.start()

    def _run(self, source: KafkaSource, start: Position) -> None:
        try:
            source.run(start, self.seen, self.stop, once=False)
        except Exception as error:
            self.error = error

    def await_condition(self, condition: Callable[[], bool], seconds: float = 30) -> None:
        limit = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < limit, f"not within {seconds} s; error: {self.error!r}; {self.seen.position}"
            assert self.error is None or condition(), self.error
            time.sleep(0.02)

    def get_failure(self, kind: type[Exception], seconds: float = 30) -> Exception:
        self._thread.join(seconds)
        assert isinstance(self.error, kind), self.error
        return self.error

    def end(self) -> BatchCollector:
        self.stop.set()
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self.seen


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    running = Broker(tmp_path)
    try:
        yield running
    finally:
        running.service.kill()


@pytest.fixture
def topic() -> str:
    return f"cdc.{uuid4().hex[:8]}.t"


@pytest.fixture
def source_of(broker: Broker) -> Iterator[Callable[..., KafkaSource]]:
    made: list[KafkaSource] = []

    def make(*topics: str, **options: Any) -> KafkaSource:
        made.append(KafkaSource({"bootstrap_servers": broker.address, "topics": list(topics), **options}))
        return made[-1]

    yield make
    for source in made:
        source.close()


@pytest.fixture
def follow_source() -> Iterator[Callable[..., FollowingRun]]:
    made: list[FollowingRun] = []

    def follow(source: KafkaSource, start: Position | None = None) -> FollowingRun:
        made.append(FollowingRun(source, start or Position()))
        return made[-1]

    yield follow
    for running in made:
        running.end()
