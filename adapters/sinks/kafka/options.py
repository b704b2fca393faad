"""Options of dead letters in a topic, and what becomes of them in librdkafka."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from ...kafka import clients
from ...kafka.clients import ClientOptions

DURABLE: Mapping[str, str] = {"acks": "all", "enable.idempotence": "true", "message.timeout.ms": "20000"}
"""What nothing may override: on every replica in sync, in the order of writing, or refused while somebody waits."""

WHOLE: Mapping[str, str] = {
    "auto.offset.reset": "error",
    "enable.auto.commit": "false",
    "enable.partition.eof": "true",
    "isolation.level": "read_uncommitted",
    "group.id": "replicator-dead-letters",
}
"""As above, for reading. No group is joined, and nothing committed for it."""

LARGEST = 96 * 1024 * 1024
"""Bytes of a record in a topic that is made here: what brokers take in one request by default, and some room."""

OWNED: Mapping[str, str] = {
    **clients.OWNED,
    **dict.fromkeys((*DURABLE, *WHOLE, "delivery.timeout.ms", "request.required.acks", "transactional.id"), ""),
}


class TopicOptions(ClientOptions):
    """`dead_letters` of the configuration with `topic`. `pipeline`: whose letters are read and written; several may share
    a topic. `copies`: replicas of the topic where it is made here; -1 is the broker's default."""

    whose = "dead_letters"
    owned = OWNED

    topic: str = Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")
    pipeline: str = ""
    copies: int = Field(-1, ge=-1)

    def producer(self) -> dict[str, str]:
        """librdkafka configuration of who writes. Holds secrets: never log it."""
        return {"message.max.bytes": str(LARGEST), **self.options, **self.client_settings(), **DURABLE}

    def consumer(self) -> dict[str, str]:
        """librdkafka configuration of who reads. Holds secrets: never log it."""
        return {"receive.message.max.bytes": str(4 * LARGEST), **self.options, **self.client_settings(), **WHOLE}
