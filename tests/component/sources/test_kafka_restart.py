"""Kill and restart of a broker that only these tests use."""

from __future__ import annotations

import threading
import time

import psutil
import pytest
from support.kafka_fixtures import BatchCollector, Broker, FollowingRun

from adapters.sources.kafka.source import KafkaSource
from replicator.domain.errors import Retryable
from replicator.domain.position import Position, TopicPartition

pytestmark = pytest.mark.stack


def test_killed_broker_loses_nothing_and_patience_is_limited(own_broker: Broker) -> None:
    broker = own_broker
    broker.create("t")
    broker.produce("t", [b"%d" % i for i in range(1000)])
    source = KafkaSource({"bootstrap_servers": broker.address, "topics": ["t"], "patience_seconds": 60})
    run = FollowingRun(source, Position())
    run.await_condition(lambda: len(run.seen.rows) == 1000)
    broker.service.kill()
    ticks = len(run.seen.batches)
    run.await_condition(lambda: len(run.seen.batches) > ticks + 1)
    broker.start()
    broker.produce("t", [b"%d" % i for i in range(1000, 2000)])
    run.await_condition(lambda: len(run.seen.rows) >= 2000, 60)
    assert run.end().values == [b"%d" % i for i in range(2000)]

    impatient = KafkaSource({"bootstrap_servers": broker.address, "topics": ["t"], "patience_seconds": 2})
    run = FollowingRun(impatient, Position(run.seen.position))
    run.await_condition(lambda: bool(run.seen.batches))
    broker.service.kill()
    began = time.monotonic()
    run.get_failure(Retryable)
    assert time.monotonic() - began < 15
    with pytest.raises(Retryable):
        impatient.run(Position(), BatchCollector(), threading.Event(), once=True)


def test_source_closes_while_the_broker_hangs(own_broker: Broker) -> None:
    """librdkafka waits for the answer to a commit as long as the connection is open."""
    own_broker.create("t")
    own_broker.produce("t", [b"x"] * 9)
    source = KafkaSource({"bootstrap_servers": own_broker.address, "topics": ["t"], "patience_seconds": 60})
    run, place = FollowingRun(source, Position()), TopicPartition("t", 0)
    run.await_condition(lambda: len(run.seen.rows) == 9)
    source.committed(Position({place: 5}))
    source._group._serve(10)
    process = psutil.Process(own_broker.service.status().pid)
    process.suspend()
    source.committed(Position({place: 7}))
    with pytest.raises(Retryable):
        source.end()
    run.end()
    closing = threading.Thread(target=source.close, daemon=True)
    closing.start()
    closing.join(60)
    assert not closing.is_alive()
