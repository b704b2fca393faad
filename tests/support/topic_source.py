"""A topic for contract suites."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from servers.kafka import make_producer

from adapters.sources.kafka.source import KafkaSource
from support.kafka_fixtures import Broker

ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1)}


@dataclass
class Topic:
    """A topic as `source_contract.SourceStream`."""

    broker: Broker
    topic: str
    batch_records: int
    partitions: int = 3

    def publish(self, records: pa.Table) -> None:
        producer = make_producer(self.broker.address)
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
