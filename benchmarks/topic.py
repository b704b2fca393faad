"""Fills a topic with generated events."""

from __future__ import annotations

import time
from dataclasses import dataclass

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from .events import HEADERS, Stream

TOPIC = "bench.public.rows"
SETTINGS = {
    "enable.idempotence": True,  # A retry of a busy broker may change the order otherwise, which no peer forgives.
    "compression.type": "lz4",
    "linger.ms": 20,
    "batch.size": 1_000_000,
    "queue.buffering.max.kbytes": 262_144,
}
PER_POLL = 1000


@dataclass(frozen=True)
class Filled:
    """What is in the topic: `mean_bytes` of a value, and what every target must hold once all of it is applied."""

    events: int
    mean_bytes: float
    rows: int
    checksum: int


def fill(bootstrap: str, count: int, topic: str = TOPIC) -> Filled:
    """Create `topic` with one partition and write `count` events to it; returns when the broker has all of them."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1, config={"retention.ms": "-1"})])[topic].result(30)
    producer, stream, size, began = (
        Producer({**SETTINGS, "bootstrap.servers": bootstrap}),
        Stream(count),
        0,
        time.monotonic(),
    )
    for number, (key, value, at) in enumerate(stream.events()):
        _send(producer, topic, key, value, at)
        size += len(value)
        if number % PER_POLL == 0:
            producer.poll(0)
    left = producer.flush(120)
    if left:
        raise RuntimeError(f"{left} of {count} events did not reach the broker.")
    print(f"{count:,} events of {size / count:,.0f} bytes written in {time.monotonic() - began:.1f} s", flush=True)
    return Filled(count, size / count, stream.rows, stream.checksum)


def _send(producer: Producer, topic: str, key: bytes, value: bytes, at: int) -> None:
    while True:
        try:
            producer.produce(topic, value, key, partition=0, timestamp=at, headers=HEADERS)
            return
        except BufferError:
            producer.poll(0.1)
