"""A broker that is killed and comes back, in a broker of its own."""

from __future__ import annotations

import threading
import time

import pytest

from adapters.sources.kafka import KafkaSource
from replicator.domain.errors import Retryable
from replicator.domain.position import Position

from .conftest import Broker, Running, Seen

pytestmark = pytest.mark.stack


def test_nothing_is_lost_over_a_kill_and_patience_has_an_end(own_broker: Broker) -> None:
    broker = own_broker
    broker.create("t")
    broker.produce("t", [b"%d" % i for i in range(1000)])
    source = KafkaSource({"bootstrap_servers": broker.address, "topics": ["t"], "patience_seconds": 60})
    run = Running(source, Position())
    run.until(lambda: len(run.seen.rows) == 1000)
    broker.service.kill()
    ticks = len(run.seen.batches)
    run.until(lambda: len(run.seen.batches) > ticks + 1)
    broker.start()
    broker.produce("t", [b"%d" % i for i in range(1000, 2000)])
    run.until(lambda: len(run.seen.rows) >= 2000, 60)
    assert run.end().values == [b"%d" % i for i in range(2000)]

    impatient = KafkaSource({"bootstrap_servers": broker.address, "topics": ["t"], "patience_seconds": 2})
    run = Running(impatient, Position(run.seen.position))
    run.until(lambda: bool(run.seen.batches))
    broker.service.kill()
    began = time.monotonic()
    run.failed(Retryable)
    assert time.monotonic() - began < 15
    with pytest.raises(Retryable):
        impatient.run(Position(), Seen(), threading.Event(), once=True)
