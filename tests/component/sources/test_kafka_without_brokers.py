"""A broker whose session with the controller has expired answers without any broker. A client that trusts this answer
never connects again (librdkafka 5301). It must be opened again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from servers.kafka_proxy import KafkaProxy
from support.kafka_fixtures import Broker, FollowingRun

from adapters.kafka import clients
from adapters.sinks.kafka import DeadLetterTopic
from adapters.sources.kafka import reader, source
from adapters.sources.kafka.cluster import Cluster
from adapters.sources.kafka.options import KafkaSettings
from adapters.sources.kafka.source import KafkaSource
from adapters.stores import DeadLetterSettings
from replicator.domain.errors import Retryable

pytestmark = pytest.mark.stack
REFRESH = {"topic.metadata.refresh.interval.ms": "500"}
PATIENCE = 60.0
"""Seconds on a loaded machine until a client counts as dead and the next client has resumed."""


@pytest.fixture(autouse=True)
def reopen_early(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (clients, reader, source):
        monkeypatch.setattr(module, "REOPEN", 1.0)


@pytest.fixture
def proxy(broker: Broker) -> Iterator[KafkaProxy]:
    proxy = KafkaProxy(broker.address)
    yield proxy
    proxy.close()


def test_source_resumes_after_answers_without_brokers(
    proxy: KafkaProxy,
    broker: Broker,
    topic: str,
    follow_source: Callable[..., FollowingRun],
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker.create(topic)
    broker.produce(topic, [b"1"])
    kafka = KafkaSource(
        {
            "bootstrap_servers": proxy.address,
            "topics": [f"{topic}*"],
            "group_id": topic,
            "options": REFRESH,
            "patience_seconds": 120,
        }
    )
    run = follow_source(kafka)
    run.await_condition(lambda: run.seen.values == [b"1"])

    def find_committed() -> list[int]:
        kafka.committed(run.seen.position)
        return broker.committed(topic, topic)

    run.await_condition(lambda: find_committed() == [1])
    proxy.hides_brokers = True
    with caplog.at_level(logging.WARNING):
        run.await_condition(lambda: "It is opened again." in caplog.text, PATIENCE)
    proxy.hides_brokers = False

    broker.create(f"{topic}-new")
    broker.produce(topic, [b"2"])
    broker.produce(f"{topic}-new", [b"3"])
    run.await_condition(lambda: sorted(run.seen.values) == [b"1", b"2", b"3"], PATIENCE)
    assert sum(kafka.end().values()) == 3
    run.await_condition(lambda: find_committed() == [2], PATIENCE)


def test_dead_letter_topic_recovers_after_answers_without_brokers(proxy: KafkaProxy, topic: str) -> None:
    options = DeadLetterSettings.read({"bootstrap_servers": proxy.address, "topic": topic})
    with closing(DeadLetterTopic(options)) as letters:
        letters.create()
        proxy.hides_brokers = True
        with pytest.raises(Retryable):
            while True:
                letters.exists()
        proxy.hides_brokers = False
        assert letters.exists()


def test_late_answer_is_awaited(
    proxy: KafkaProxy,
    broker: Broker,
    topic: str,
    follow_source: Callable[..., FollowingRun],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A large answer over a slow connection would never arrive if the client was opened again meanwhile."""
    broker.create(topic)
    kafka = KafkaSource({"bootstrap_servers": proxy.address, "topics": [topic], "patience_seconds": 120})
    run = follow_source(kafka)
    broker.produce(topic, [b"1"])
    run.await_condition(lambda: run.seen.values == [b"1"])
    proxy.holds_answers = True
    broker.produce(topic, [b"2"])
    time.sleep(5)
    proxy.holds_answers = False
    run.await_condition(lambda: run.seen.values == [b"1", b"2"], PATIENCE)
    assert "It is opened again." not in caplog.text


def test_reopened_client_does_not_end_requests_of_other_threads(proxy: KafkaProxy) -> None:
    proxy.holds_answers = True
    cluster = Cluster(KafkaSettings.read({"bootstrap_servers": proxy.address, "topics": ["t"]}))
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(cluster.describe_topics, ["t"], 4.0)
        for seconds in (1.0, 0.5, 0.5):  # The last ones are requests of the next client.
            with pytest.raises(Retryable):
                cluster.names(seconds)
        assert isinstance(waiting.exception(), Retryable)
    proxy.holds_answers = False
    cluster.names()
