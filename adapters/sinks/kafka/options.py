"""Options of dead letters in a topic, and their settings of librdkafka."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from ...kafka import clients
from ...kafka.clients import ClientOptions

DURABLE: Mapping[str, str] = {"acks": "all", "enable.idempotence": "true", "message.timeout.ms": "20000"}
"""Settings that cannot be overridden. Writes are on every replica in sync and in order, or fail while the caller waits."""

WHOLE: Mapping[str, str] = {
    "auto.offset.reset": "error",
    "enable.auto.commit": "false",
    "enable.partition.eof": "true",
    "isolation.level": "read_uncommitted",
    "group.id": "replicator-dead-letters",
}
"""The same for reading. No group is joined, and no offsets are committed."""

LARGEST = 96 * 1024 * 1024
"""The maximum bytes of a record in a topic that is created here: slightly less than the default limit of a request."""

OWNED: Mapping[str, str] = {
    **clients.OWNED,
    **dict.fromkeys((*DURABLE, *WHOLE, "delivery.timeout.ms", "request.required.acks", "transactional.id"), ""),
}


class TopicOptions(ClientOptions):
    """`dead_letters` of the configuration with `topic`.

    - `pipeline`: its dead letters are read and written; several pipelines may share a topic.
    - `copies`: replicas of a topic that is created here; -1 is the broker's default.
    """

    whose = "dead_letters"
    owned = OWNED

    topic: str = Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")
    pipeline: str = ""
    copies: int = Field(-1, ge=-1)

    def producer(self) -> dict[str, str]:
        """librdkafka's configuration of the producer. Contains secrets: never log it."""
        return {"message.max.bytes": str(LARGEST), **self.options, **self.client_settings(), **DURABLE}

    def consumer(self) -> dict[str, str]:
        """librdkafka's configuration of the consumer. Contains secrets: never log it."""
        return {"receive.message.max.bytes": str(4 * LARGEST), **self.options, **self.client_settings(), **WHOLE}
