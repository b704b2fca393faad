"""Topics read by an independent consumer, and malformed records."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from uuid import uuid4

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from servers.kafka import make_producer

SECONDS = 30


@dataclass(frozen=True)
class Record:
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    @property
    def event_id(self) -> str:
        return f"{self.topic}-{self.partition}-{self.offset}"

    @property
    def payload(self) -> dict[str, Any] | None:
        """The envelope, or None for a null record."""
        return None if self.value is None else dict(json.loads(self.value)["payload"])


class Topics:
    """Actions on topics of one broker."""

    def __init__(self, servers: str) -> None:
        self._servers = servers

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self._servers, "log_level": 0})

    def names(self, prefix: str) -> list[str]:
        return sorted(t for t in self.admin.list_topics(timeout=SECONDS).topics if t.startswith(prefix))

    def create(self, *topics: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        wanted = [NewTopic(t, partitions, 1, config=dict(config or {})) for t in topics]
        for future in self.admin.create_topics(wanted).values():
            future.result(SECONDS)

    def set_broker(self, name: str, value: str) -> None:
        """Changes a setting of the running broker."""
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
        for future in self.admin.incremental_alter_configs([resource]).values():
            future.result(SECONDS)

    def delete(self, topic: str) -> None:
        for future in self.admin.delete_topics([topic]).values():
            future.result(SECONDS)
        deadline = time.monotonic() + SECONDS
        while topic in self.names(topic):
            assert time.monotonic() < deadline, f"{topic} is still there"
            time.sleep(0.05)

    def delete_below(self, topic: str, offset: int) -> None:
        for future in self.admin.delete_records([TopicPartition(topic, 0, offset)]).values():
            future.result(SECONDS)

    def send_again(self, records: Iterable[Record]) -> None:
        """Writes records again, unchanged, to their topics and partitions."""
        producer = make_producer(self._servers)
        for record in records:
            producer.produce(record.topic, record.value, record.key, record.partition, headers=list(record.headers))
        assert producer.flush(SECONDS) == 0

    def produce(self, topic: str, records: Iterable[tuple[Any, Any]], partition: int = 0) -> None:
        """Writes keys and values: bytes unchanged, None as null, other values as JSON."""
        producer = make_producer(self._servers, **{"linger.ms": 20})
        for key, value in records:
            producer.produce(topic, encode_record(value), encode_record(key), partition)
            producer.poll(0)
        assert producer.flush(SECONDS) == 0

    def ends(self, topics: Sequence[str]) -> dict[tuple[str, int], int]:
        """The end offset of every partition."""
        with closing(self._consumer()) as consumer:
            return {(p.topic, p.partition): self._range(consumer, p)[1] for p in self._partitions(topics)}

    def read(self, topics: Sequence[str]) -> list[Record]:
        """All current records, sorted by partition and offset."""
        with closing(self._consumer()) as consumer:
            ranges = {p: self._range(consumer, p) for p in self._partitions(topics)}
            left = {(p.topic, p.partition): end for p, (first, end) in ranges.items() if end > first}
            consumer.assign([TopicPartition(t, p, 0) for t, p in left])
            found: list[Record] = []
            deadline = time.monotonic() + SECONDS
            while left:
                assert time.monotonic() < deadline, f"these partitions were not read to their ends: {left}"
                for message in consumer.consume(1000, 0.5):
                    assert message.error() is None, message.error()
                    place = (str(message.topic()), int(message.partition() or 0))
                    offset = int(message.offset() or 0)
                    if place in left:
                        found.append(Record(*place, offset, message.key(), message.value(), tuple(message.headers() or ())))
                        if offset + 1 >= left[place]:
                            del left[place]
        return sorted(found, key=lambda r: (r.topic, r.partition, r.offset))

    def _consumer(self) -> Consumer:
        return Consumer(
            {"bootstrap.servers": self._servers, "group.id": uuid4().hex, "auto.offset.reset": "earliest", "log_level": 0}
        )

    def _partitions(self, topics: Sequence[str]) -> list[TopicPartition]:
        known = self.admin.list_topics(timeout=SECONDS).topics
        return [TopicPartition(t, p) for t in topics if t in known for p in known[t].partitions]

    @staticmethod
    def _range(consumer: Consumer, partition: TopicPartition) -> tuple[int, int]:
        low, high = consumer.get_watermark_offsets(partition, SECONDS)
        return low, high


def encode_record(value: Any) -> bytes | None:
    return value if isinstance(value, bytes | None) else json.dumps(value).encode()
