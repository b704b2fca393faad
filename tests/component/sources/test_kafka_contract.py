"""`KafkaSource` fulfils the contract of `ports.source` with a real broker."""

from __future__ import annotations

from uuid import uuid4

import pytest
from support.kafka_fixtures import Broker
from support.topic_source import ANY_TIME, Topic

from replicator.testing.source_contract import SourceContract

pytestmark = pytest.mark.timeout(120)


class TestKafkaSource(SourceContract):
    """`KafkaSource`. Contents of batches are tested in `test_kafka.py`."""

    @pytest.fixture(autouse=True, params=[1, pytest.param(1000, marks=pytest.mark.long)])
    def own(self, broker: Broker, request: pytest.FixtureRequest) -> None:
        self.broker, self.batch_records = broker, request.param

    def new_stream(self) -> Topic:
        topic = Topic(self.broker, f"contract-{uuid4()}", self.batch_records)
        self.broker.create(topic.topic, partitions=topic.partitions, config=ANY_TIME)
        return topic
