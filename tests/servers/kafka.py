"""A real broker of the embedded stack, for tests."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec
from paths import PROJECT

from adapters.stack.kafka import JAVA_OPTIONS, KafkaService
from adapters.stack.layout import StackHome, StackPorts

NO_COORDINATOR = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
)


def make_producer(address: str, **settings: Any) -> Producer:
    """A producer that keeps the order of its records. Others may reorder while a partition of a new topic has no
    leader."""
    return Producer({"bootstrap.servers": address, "log_level": 0, "enable.idempotence": True, **settings})


class Broker:
    """A broker, with actions on topics."""

    def __init__(
        self, folder: Path, ports: StackPorts | None = None, java_options: tuple[str, ...] = (), **settings: str
    ) -> None:
        home = StackHome.in_project(PROJECT, folder, ports or StackPorts.find_free())
        said = {name.replace("__", "."): value for name, value in settings.items()}
        self.service = KafkaService(home, java_options=(*JAVA_OPTIONS, *java_options), settings=said)
        self.start()
        self.address = self.service.bootstrap
        self.admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    def start(self) -> None:
        self.service.start()
        self.service.wait()

    def create(self, *topics: str, partitions: int = 1, config: dict[str, str] | None = None) -> None:
        # Retention uses the records' timestamps, which are old in some tests.
        kept = {"retention.ms": "-1", **(config or {})}
        wanted = [NewTopic(t, partitions, 1, config=kept) for t in topics]
        for future in self.admin.create_topics(wanted).values():
            future.result(20)

    def grow(self, topic: str, partitions: int) -> None:
        for future in self.admin.create_partitions([NewPartitions(topic, partitions)]).values():
            future.result(20)
        until = time.monotonic() + 20
        while len(self.admin.list_topics(topic, timeout=5).topics[topic].partitions) < partitions:
            assert time.monotonic() < until
            time.sleep(0.05)

    def delete(self, topic: str) -> None:
        for future in self.admin.delete_topics([topic]).values():
            future.result(20)
        until = time.monotonic() + 20
        while topic in self.admin.list_topics(timeout=5).topics:
            assert time.monotonic() < until
            time.sleep(0.05)

    def recreate(self, topic: str) -> None:
        self.delete(topic)
        self.create(topic)

    def delete_below(self, topic: str, offset: int) -> None:
        for future in self.admin.delete_records([KafkaPartition(topic, 0, offset)]).values():
            future.result(20)

    def committed(self, group: str, topic: str, partitions: int = 1) -> list[int]:
        """The group's offsets, or -1001. Uses a consumer: `list_consumer_group_offsets` of an admin client crashes
        while the coordinator loads (librdkafka 5040)."""
        with closing(Consumer({"bootstrap.servers": self.address, "group.id": group})) as consumer:
            asked = [KafkaPartition(topic, n) for n in range(partitions)]
            end = time.monotonic() + 20
            while True:
                try:
                    return [p.offset for p in consumer.committed(asked, timeout=20)]
                except KafkaException as error:  # A broker becomes the coordinator some time after its start.
                    if error.args[0].code() not in NO_COORDINATOR or time.monotonic() > end:
                        raise
                time.sleep(0.2)

    def topic_id(self, topic: str) -> str:
        return str(self.admin.describe_topics(TopicCollection([topic]))[topic].result(10).topic_id)

    def produce(self, topic: str, values: Any, partition: int = 0, headers: Any = None, **config: Any) -> None:
        producer, errors = make_producer(self.address, **{"message.max.bytes": 20_000_000, **config}), list[KafkaError]()
        told = {"on_delivery": lambda error, _: error and errors.append(error)}
        for value in values:
            producer.produce(topic, value=value, key=b"k", partition=partition, headers=headers, **told)
            producer.poll(0)
        assert producer.flush(60) == 0 and not errors

    def transact(self, topic: str, values: Any, *, commit: bool = True) -> None:
        producer = make_producer(self.address, **{"transactional.id": f"t-{uuid4()}"})
        producer.init_transactions(20)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value=value, partition=0)
        producer.flush(20)
        (producer.commit_transaction if commit else producer.abort_transaction)(20)
        self.await_ends_of_transactions(topic)

    def await_ends_of_transactions(self, topic: str) -> None:
        """Waits for the end of transactions: the broker answers the producer before it ends them in the partitions."""
        until = time.monotonic() + 20
        while self._end(topic, IsolationLevel.READ_COMMITTED) < self._end(topic, IsolationLevel.READ_UNCOMMITTED):
            assert time.monotonic() < until
            time.sleep(0.05)

    def _end(self, topic: str, level: IsolationLevel) -> int:
        place = KafkaPartition(topic, 0)
        return self.admin.list_offsets({place: OffsetSpec.latest()}, isolation_level=level)[place].result(10).offset
