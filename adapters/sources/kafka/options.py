"""Options of the Kafka source, and their librdkafka settings."""

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
    # Delays the next fetch after one from a deleted topic: time to detect by its id that it was created
    # again.
    "fetch.error.backoff.ms": "500",
}
"""Settings that nothing may override: missing offsets are errors, sinks store positions, aborted records are skipped."""

DEFAULTS: Mapping[str, str] = {
    "queued.max.messages.kbytes": "65536",
    # The default of one second starves the consumer after it empties a full queue (measured: 4 times slower).
    "fetch.queue.backoff.ms": "5",
    **CONNECTION,
    "max.poll.interval.ms": "86400000",
    "topic.metadata.refresh.interval.ms": "10000",
    "allow.auto.create.topics": "false",
}
"""Settings that `options` may override. Back-pressure needs no polling: librdkafka stops when its queue is full."""

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
            raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
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
    """`sources.<name>` in the configuration with `transport: kafka`.

    - `topics`: names or globs (`cdc.public.*`). A text that starts with `^` is a regular expression, matched from the
      start of the topic name.
    - `batch_records`, `batch_bytes`: limits of one batch.
    - `max_records_per_trigger`, `trigger`: for Spark, the offsets in one micro-batch and the time between two.
    - `patience_seconds`: the time for which a broker may be unavailable, or a partition fail, before a retryable error.
      Only tests set it.
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
        """The librdkafka settings of a consumer; `CORRECTNESS` takes precedence."""
        return {**DEFAULTS, **self.options, **self.client_settings(), "group.id": self.group_id, **CORRECTNESS}
