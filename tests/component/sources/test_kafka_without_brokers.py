"""A broker whose session with the controller has expired answers, and names no broker. Clients that take this for the truth
never connect again; why the version of the client is held back."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from servers.kafka_proxy import KafkaProxy
from support.kafka_fixtures import Broker, Running

from adapters.sources.kafka.source import KafkaSource

pytestmark = pytest.mark.stack


@pytest.fixture
def proxy(broker: Broker) -> Iterator[KafkaProxy]:
    proxy = KafkaProxy(broker.address)
    yield proxy
    proxy.close()


def test_a_source_reads_on_after_answers_without_brokers(
    proxy: KafkaProxy, broker: Broker, topic: str, follow_source: Callable[..., Running]
) -> None:
    broker.create(topic)
    broker.produce(topic, [b"1"])
    source = KafkaSource({"bootstrap_servers": proxy.address, "topics": [f"{topic}*"]})
    run = follow_source(source)
    run.until(lambda: run.seen.values == [b"1"])

    proxy.hides_brokers = True
    run.until(lambda: proxy.hidden > 3)
    proxy.hides_brokers = False

    broker.create(f"{topic}-new")
    broker.produce(topic, [b"2"])
    broker.produce(f"{topic}-new", [b"3"])
    run.until(lambda: sorted(run.seen.values) == [b"1", b"2", b"3"])
    assert sum(source.end().values()) == 3
