"""Options of the Kafka source, and their librdkafka settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from replicator.ports.adapter_options import ConnectSettings, DatabaseSettings, RecordOptions, given
from replicator.ports.options import Duration, SecretText, Servers, StartFrom, Text, Topic

from ...kafka import options as client_options
from ...kafka.options import CONNECTION, ClientOptions, check_security, refuse_owned

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
    **client_options.OWNED,
    **dict.fromkeys((*CORRECTNESS, "on_commit"), ""),
    "group.id": "group_id",
    "auto.offset.reset": "start_from",
}


class KafkaSettings(ClientOptions, RecordOptions):
    """Records from Kafka topics."""

    what: ClassVar[str] = "a Kafka source"
    rank: ClassVar[int] = 1
    reads_broker: ClassVar[bool] = True
    assumed: ClassVar[Mapping[str, Any]] = {"transport": "kafka", "format": "", "group_id": "cdc-python-consumer"}

    transport: Literal["kafka"]
    bootstrap_servers: Servers
    """HOST:PORT of one or more brokers, with commas between them."""
    topics: list[Topic] = Field(min_length=1)
    """Topic names, globs, or regular expressions that begin with `^`. New matching topics are found while the daemon
    runs."""
    group_id: str = Field(default_factory=str, min_length=1)  # See `find_defaults`.
    """The consumer group whose offsets show the progress. By default `replicator-PIPELINE`. Positions are stored in
    the sinks."""
    start_from: StartFrom = "earliest"
    """The start of lanes without a position: `earliest`, `latest`, or a time with its zone."""
    security: Annotated[dict[str, SecretText], AfterValidator(check_security)] = Field(default_factory=dict)
    """librdkafka's `security.*`, `sasl.*` and `ssl.*` settings. The values are secrets."""
    options: Annotated[dict[str, Text], AfterValidator(refuse_owned(OWNED, " of the source"))] = Field(default_factory=dict)
    """Any other librdkafka setting."""
    max_records_per_trigger: int = Field(500_000, ge=1)
    """Spark only: the most offsets of one micro-batch."""
    trigger: Duration = "0 seconds"
    """Spark only: the time between two micro-batches. Longer means more rows in each MERGE."""
    database: DatabaseSettings | None = None
    """The PostgreSQL or MariaDB database of the records, for `replicator doctor` and `replicator backfill`."""
    connect: ConnectSettings | None = None
    """The Kafka Connect worker that writes the topics, for `replicator doctor` and for `replicator diff` of MariaDB."""

    batch_records: int = given(50_000, ge=1, le=1_000_000)
    batch_bytes: int = given(64 * 1024 * 1024, ge=1)
    patience_seconds: float = given(30.0, gt=0)
    """The time for which a broker may be unavailable, or a partition fail, before a retryable error. Only tests set it."""

    @classmethod
    def find_defaults(cls, pipeline: str) -> Mapping[str, Any]:
        return {"group_id": f"replicator-{pipeline}"}

    def consumer(self) -> dict[str, str]:
        """The librdkafka settings of a consumer; `CORRECTNESS` takes precedence."""
        return {**DEFAULTS, **self.options, **self.client_settings(), "group.id": self.group_id, **CORRECTNESS}
