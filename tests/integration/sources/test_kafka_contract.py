"""`KafkaSource` keeps the promises of `ports.source`, on a real broker."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from adapters.sources.kafka import KafkaSource
from replicator.testing.source_contract import SourceContract

from .conftest import Broker

ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1)}

pytestmark = pytest.mark.timeout(120)


@dataclass
class Topic:
    """A topic of its own."""

    broker: Broker
    topic: str
    batch_records: int
    partitions: int = 3

    def publish(self, records: pa.Table) -> None:
        producer = Producer({"bootstrap.servers": self.broker.address, "log_level": 0})
        times = records["timestamp"].cast(pa.int64()).to_pylist()
        for row, at in zip(records.drop_columns(["timestamp"]).to_pylist(), times, strict=True):
            headers = [(h["name"], h["value"]) for h in row["headers"] or ()]
            sent = {name: row[name] for name in ("topic", "value", "key", "partition")}
            producer.produce(**sent, timestamp=at, headers=headers)
        assert producer.flush(60) == 0

    def open(self) -> KafkaSource:
        options = {"bootstrap_servers": self.broker.address, "topics": [self.topic], "group_id": f"group-{self.topic}"}
        return KafkaSource({**options, "batch_records": self.batch_records})

    def close(self) -> None:
        self.broker.delete(self.topic)


class TestKafkaSource(SourceContract):
    @pytest.fixture(autouse=True, params=[1, 1000])
    def own(self, broker: Broker, request: pytest.FixtureRequest) -> None:
        self.broker, self.batch_records = broker, request.param

    def new_stream(self) -> Topic:
        topic = Topic(self.broker, f"contract-{uuid4()}", self.batch_records)
        self.broker.create(topic.topic, partitions=topic.partitions, config=ANY_TIME)
        return topic
