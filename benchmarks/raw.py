"""How fast librdkafka alone hands out a topic's records: `python -m benchmarks.raw BOOTSTRAP TOPIC EVENTS own|library OUT`.

The consumer takes as many records per call as the program's own source and has exactly its settings (`own`), or
librdkafka's defaults (`library`), with which it pauses for a second whenever its queue was full.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from adapters.sources.kafka.options import KafkaSettings
from adapters.sources.kafka.reader import MESSAGES_PER_CALL


def settings(bootstrap: str, topic: str, *, own: bool) -> dict[str, str]:
    """The consumer's configuration."""
    if own:
        return {
            "fetch.wait.max.ms": "50",
            **KafkaSettings.read({"bootstrap_servers": bootstrap, "topics": [topic]}).consumer(),
        }
    return {"bootstrap.servers": bootstrap, "group.id": "bench-raw", "enable.auto.commit": "false"}


def consume(bootstrap: str, topic: str, events: int, *, own: bool) -> dict[str, float]:
    """Read the topic once: events/s from the first record to the last, and the process's CPU time in between."""
    consumer = Consumer(settings(bootstrap, topic, own=own))
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    seen, began, cpu = 0, 0.0, 0.0
    while seen < events:
        messages = consumer.consume(MESSAGES_PER_CALL, 0.05)
        if messages and not began:
            began, cpu = time.monotonic(), cpu_now()
        # The end of a partition comes as a message that is an event.
        seen += len(messages) - (1 if messages and messages[-1].error() else 0)
        messages.clear()
    seconds = time.monotonic() - began
    spent = cpu_now() - cpu
    consumer.close()
    return {"events": seen, "seconds": seconds, "rate": seen / seconds, "cpu": spent}


def cpu_now() -> float:
    """CPU seconds of this process so far, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    bootstrap_, topic_, events_, whose, out_ = sys.argv[1:]
    Path(out_).write_text(json.dumps(consume(bootstrap_, topic_, int(events_), own=whose == "own")))
