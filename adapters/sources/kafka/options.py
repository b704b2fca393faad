"""Options of the Kafka source, and what becomes of them in librdkafka."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from ...kafka import clients
from ...kafka.clients import CONNECTION, ClientOptions

MIB = 1024 * 1024
CORRECTNESS: Mapping[str, str] = {
    "auto.offset.reset": "error",
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
    "isolation.level": "read_committed",
    # A fetch that met a deleted topic is not repeated sooner: time to see, by its id, that it was created again.
    "fetch.error.backoff.ms": "500",
}
"""What nothing may override: offsets that are gone are an error, positions are the sinks', aborted records are no data."""

DEFAULTS: Mapping[str, str] = {
    "queued.max.messages.kbytes": "65536",
    # The default of a second starves the consumer each time it empties a full queue in one go (measured: 4 times slower).
    "fetch.queue.backoff.ms": "5",
    **CONNECTION,
    "max.poll.interval.ms": "86400000",
    "topic.metadata.refresh.interval.ms": "10000",
    "allow.auto.create.topics": "false",
}
"""What `options` may override. Back-pressure is not polling: librdkafka stops fetching when its queue is full."""

OWNED: Mapping[str, str] = {
    **clients.OWNED,
    "group.id": "group_id",
    "on_commit": "",
    **dict.fromkeys(CORRECTNESS, ""),
}


def _check_topics(patterns: list[str]) -> list[str]:
    for pattern in patterns:
        if not pattern:
            raise ValueError("a topic is empty")
        try:
            re.compile(pattern if pattern.startswith("^") else "")
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
    return patterns


def _check_start(value: object) -> object:
    if isinstance(value, datetime):
        value = value.isoformat()
    if not isinstance(value, str) or value in ("earliest", "latest"):
        return value
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("is not earliest, latest or an ISO time such as 2026-01-31T12:00:00+00:00") from None
    if at.tzinfo is None:
        raise ValueError("is a time without a zone; add one, for example +00:00")
    return value


class KafkaOptions(ClientOptions):
    """`sources.<name>` of the configuration with `transport: kafka`.

    `topics` are names or globs (`cdc.public.*`); one that starts with `^` is a regular expression matched from the
    topic's beginning. `batch_records` and `batch_bytes` bound one batch.
    `max_records_per_trigger` and `trigger` are for Spark: offsets in one micro-batch, and the time between two.
    `patience_seconds` is how long a broker may be away, or a partition fail, before the source gives up with a retryable
    error. No key of the configuration sets it, tests do.
    """

    owned = OWNED

    transport: Literal["kafka"] = "kafka"
    format: str = ""
    topics: Annotated[list[str], AfterValidator(_check_topics)] = Field(min_length=1)
    group_id: str = Field("cdc-python-consumer", min_length=1)
    start_from: Annotated[str, BeforeValidator(_check_start)] = "earliest"
    batch_records: int = Field(50_000, ge=1, le=1_000_000)
    batch_bytes: int = Field(64 * MIB, ge=1)
    patience_seconds: float = Field(30.0, gt=0)
    max_records_per_trigger: int = Field(500_000, ge=1)
    trigger: str = "0 seconds"

    def consumer(self) -> dict[str, str]:
        """librdkafka configuration of a reading consumer; `CORRECTNESS` has the last word."""
        return {**DEFAULTS, **self.options, **self.client_settings(), "group.id": self.group_id, **CORRECTNESS}
