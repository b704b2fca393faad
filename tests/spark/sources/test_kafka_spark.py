"""`KafkaSparkSource` fulfils the contract of `ports.source` on a real broker."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from servers.kafka import make_producer
from support.kafka_fixtures import BatchCollector, Broker
from support.small_spark import SMALL
from support.topic_source import ANY_TIME, Topic

from adapters.engines.spark import SparkEngine
from adapters.sources.kafka.spark import KafkaSparkSource
from adapters.spark.frames import to_arrow
from replicator.domain.change import RAW
from replicator.domain.errors import Retryable
from replicator.domain.position import Position
from replicator.ports.frames import Batch
from replicator.testing.source_contract import ODD_TIMES, SourceContract

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", autouse=True)
def spark() -> SparkEngine:
    return SparkEngine({"spark": SMALL})


@dataclass
class SparkTopic(Topic):
    def open(self) -> KafkaSparkSource:
        options = {"bootstrap_servers": self.broker.address, "topics": [self.topic], "group_id": f"group-{self.topic}"}
        bounds = {"max_records_per_trigger": self.batch_records, "batch_records": self.batch_records}
        return KafkaSparkSource({**options, **bounds})


class TestKafkaSparkSource(SourceContract):
    """`KafkaSparkSource`; Spark takes in times up to 2**63 microseconds from 1970."""

    odd_times = tuple(max(-(2**53), min(2**53, at)) for at in ODD_TIMES)

    @pytest.fixture(autouse=True, params=[12, *(pytest.param(count, marks=pytest.mark.long) for count in (6, 1000))])
    def own(self, broker: Broker, request: pytest.FixtureRequest) -> None:
        self.broker, self.batch_records = broker, request.param

    def new_stream(self) -> SparkTopic:
        topic = SparkTopic(self.broker, f"contract-{uuid4()}", self.batch_records)
        self.broker.create(topic.topic, partitions=topic.partitions, config=ANY_TIME)
        return topic

    def to_arrow(self, frame: Any) -> pa.Table:
        """Inside a list Spark has names of its own."""
        return to_arrow(frame).cast(RAW)


def test_partition_is_read_by_several_tasks_in_order(broker: Broker) -> None:
    name = f"wide-{uuid4()}"
    broker.create(name, partitions=1, config=ANY_TIME)
    stream = SparkTopic(broker, name, 1000, partitions=1)
    producer = make_producer(broker.address)
    for number in range(40):
        producer.produce(name, b"%d" % number, partition=0)
    assert producer.flush(60) == 0
    frames: list[Any] = []
    stream.open().run(Position(), lambda batch: frames.append(batch.frame), Event(), once=True)
    (frame,) = [frame for frame in frames if frame.count()]
    assert frame.rdd.getNumPartitions() == frame.sparkSession.sparkContext.defaultParallelism > 1
    assert to_arrow(frame)["offset"].to_pylist() == list(range(40))


def test_pace_of_a_query(broker: Broker, spark: SparkEngine) -> None:
    """The lag after the first batch is reported while the second is applied; without records there is no rate."""
    spark.spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "200")
    name, stop, paces = f"paced-{uuid4()}", Event(), list[Any]()
    broker.create(name)
    broker.produce(name, [b"%d" % i for i in range(40)])
    options = {"bootstrap_servers": broker.address, "topics": [name], "max_records_per_trigger": 30, "trigger": "0 seconds"}
    source = KafkaSparkSource(options)

    def apply(batch: Batch[Any]) -> None:
        if batch.records == 10:
            until(lambda: source.pace() is not None, 20)
            paces.append(source.pace())

    thread = Thread(target=source.run, args=(Position(), apply, stop), kwargs={"once": False})
    thread.start()
    try:
        until(lambda: bool(paces), 60)
        until(lambda: source.pace().lag_records == 0 and source.pace().input_rows_per_second == 0, 30)  # type: ignore[union-attr]
    finally:
        stop.set()
        thread.join(60)
    (first,) = paces
    assert first.lag_records == 10 and first.batch_seconds > 0
    assert first.processed_rows_per_second == pytest.approx(30 / first.batch_seconds, rel=0.1)
    last = source.pace()
    assert last is not None and last.batch_seconds > 0


class Read(BatchCollector):
    """Takes Spark's frames."""

    def __call__(self, batch: Batch[Any]) -> None:
        super().__call__(replace(batch, frame=to_arrow(batch.frame).cast(RAW)))


def read_in_thread(options: dict[str, Any], seen: Read, apply: Callable[[Batch[Any]], None], stop: Event) -> Thread:
    """A thread that reads until `stop`: what is retryable is tried again where it stood, as a pipeline does."""

    def follow() -> None:
        while not stop.is_set():
            with suppress(Retryable):
                KafkaSparkSource(options).run(Position(seen.position), apply, stop, once=False)

    thread = Thread(target=follow)
    thread.start()
    return thread


@pytest.mark.long
def test_broker_outage_of_a_minute(own_broker: Broker) -> None:
    """Longer than the timeout of Kafka clients. Retryable errors are retried at the current position, as a pipeline
    does."""
    broker, seen, stop = own_broker, Read(), Event()
    broker.create("t")
    broker.produce("t", [b"%d" % i for i in range(100)])
    options = {"bootstrap_servers": broker.address, "topics": ["t"], "trigger": "1 second"}

    thread = read_in_thread(options, seen, seen, stop)
    try:
        until(lambda: len(seen.rows) == 100, 60)
        broker.service.kill()
        sleep(65)
        broker.start()
        broker.produce("t", [b"%d" % i for i in range(100, 200)])
        until(lambda: len(seen.rows) >= 200, 120)
    finally:
        stop.set()
        thread.join(90)
    assert not thread.is_alive()
    assert seen.values == [b"%d" % i for i in range(200)]


def test_deleted_checkpoint_is_recovered(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """During a batch, and while no records arrive: the query is retried at the current position, as a pipeline does."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    name, seen, stop, deleted = f"t-{uuid4()}", Read(), Event(), list[int]()
    broker.create(name)
    options = {"bootstrap_servers": broker.address, "topics": [name], "trigger": "0 seconds"}

    def delete() -> None:
        folders = list(tmp_path.glob("replicator-checkpoint-*"))
        deleted.append(len(folders))
        for folder in folders:
            rmtree(folder)

    def apply(batch: Batch[Any]) -> None:
        seen(batch)
        if len(deleted) == 0 and batch.records:
            delete()

    thread = read_in_thread(options, seen, apply, stop)
    try:
        for number in range(4):
            broker.produce(name, [b"%d" % i for i in range(10 * number, 10 * number + 10)])
            until(lambda end=10 * number + 10: len(seen.rows) >= end or not thread.is_alive(), 60)  # type: ignore[misc]
            if number == 1:
                sleep(1)
                delete()
    finally:
        stop.set()
        thread.join(90)
    assert len(deleted) == 2 and all(deleted)
    assert seen.values == [b"%d" % i for i in range(40)]


def until(condition: Callable[[], bool], seconds: float) -> None:
    limit = monotonic() + seconds
    while not condition():
        assert monotonic() < limit
        sleep(0.1)
