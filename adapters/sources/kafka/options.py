"""Options of the Kafka source, and what becomes of them in librdkafka."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError

from replicator.domain.errors import ConfigProblem

MIB = 1024 * 1024
SECURITY_PREFIXES = ("security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.")

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
    "reconnect.backoff.max.ms": "1000",
    "max.poll.interval.ms": "86400000",
    "socket.keepalive.enable": "true",
    "topic.metadata.refresh.interval.ms": "10000",
    "allow.auto.create.topics": "false",
}
"""What `options` may override. Back-pressure is not polling: librdkafka stops fetching when its queue is full."""

SHARED = ("client.", "socket.", "broker.", "metadata.", "reconnect.", "log", "debug", "topic.metadata.", "api.")
"""Passed-through settings that every client takes, not only a consumer."""

OWNED: Mapping[str, str] = {
    "bootstrap.servers": "bootstrap_servers",
    "metadata.broker.list": "bootstrap_servers",
    "group.id": "group_id",
    "error_cb": "",
    "on_commit": "",
    "log_cb": "",
    "logger": "",
    **dict.fromkeys(CORRECTNESS, ""),
}


def _text(value: object) -> object:
    """librdkafka takes text: true becomes "true", 5 becomes "5"."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _passthrough(options: dict[str, str]) -> dict[str, str]:
    for name in options:
        if name.startswith(SECURITY_PREFIXES):
            raise ValueError(f"{name} is a security setting; write it under 'security', where it is kept secret")
        if name in OWNED:
            hint = f"write '{OWNED[name]}' of the source instead" if OWNED[name] else "correctness depends on it"
            raise ValueError(f"{name} is not yours to set: {hint}")
    return options


def _security(options: dict[str, SecretStr]) -> dict[str, SecretStr]:
    for name in options:
        if not name.startswith(SECURITY_PREFIXES):
            raise ValueError(f"{name} is no security setting (security.*, sasl.*, ssl.*); write it under 'options'")
    return options


def _topics(patterns: list[str]) -> list[str]:
    for pattern in patterns:
        if not pattern:
            raise ValueError("a topic is empty")
        try:
            re.compile(pattern if pattern.startswith("^") else "")
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
    return patterns


def _start_from(value: object) -> object:
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


class KafkaOptions(BaseModel):
    """`sources.<name>` of the configuration with `transport: kafka`.

    `topics` are names or globs (`cdc.public.*`); one that starts with `^` is a regular expression matched from the
    topic's beginning. `batch_records` and `batch_bytes` bound one batch. `linger_ms` is how long a batch may wait to be
    fuller while at least a thousand records are known to be behind it; without such a backlog nothing waits.
    `max_records_per_trigger` and `trigger` are for Spark: offsets in one micro-batch, and the time between two.
    `patience_seconds` is how long a broker may be away before the source gives up with a retryable error.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    transport: Literal["kafka"] = "kafka"
    format: str = ""
    bootstrap_servers: str = Field(min_length=1)
    topics: Annotated[list[str], AfterValidator(_topics)] = Field(min_length=1)
    group_id: str = Field("cdc-python-consumer", min_length=1)
    start_from: Annotated[str, BeforeValidator(_start_from)] = "earliest"
    security: Annotated[dict[str, Annotated[SecretStr, BeforeValidator(_text)]], AfterValidator(_security)] = Field(
        default_factory=dict
    )
    options: Annotated[dict[str, Annotated[str, BeforeValidator(_text)]], AfterValidator(_passthrough)] = Field(
        default_factory=dict
    )
    batch_records: int = Field(50_000, ge=1, le=1_000_000)
    batch_bytes: int = Field(64 * MIB, ge=1)
    linger_ms: int = Field(200, ge=0)
    patience_seconds: float = Field(30.0, gt=0)
    max_records_per_trigger: int = Field(500_000, ge=1)
    trigger: str = "0 seconds"

    @classmethod
    def read(cls, options: Mapping[str, object]) -> KafkaOptions:
        """The options checked. Raises ConfigProblem that names each wrong key and never shows a value."""
        try:
            return cls.model_validate(dict(options))
        except ValidationError as error:
            found = error.errors(include_input=False, include_url=False, include_context=False)
            text = "; ".join(f"{'.'.join(str(p) for p in e['loc'])}: {e['msg']}" for e in found)
            raise ConfigProblem(f"The options of a Kafka source are not valid: {text}.") from None

    def client(self) -> dict[str, str]:
        """librdkafka configuration that every client shares. Holds secrets: never log it."""
        secrets = {name: value.get_secret_value() for name, value in self.security.items()}
        return {**self._client_options(), **secrets, "bootstrap.servers": self.bootstrap_servers}

    def _client_options(self) -> dict[str, str]:
        kept = {"reconnect.backoff.max.ms", "socket.keepalive.enable"}
        own = {name: value for name, value in self.options.items() if name.startswith(SHARED)}
        return {**{name: DEFAULTS[name] for name in kept}, **own}

    def consumer(self) -> dict[str, str]:
        """librdkafka configuration of a reading consumer; `CORRECTNESS` has the last word."""
        return {**DEFAULTS, **self.options, **self.client(), "group.id": self.group_id, **CORRECTNESS}

    def hide(self, text: str) -> str:
        """`text` without the value of any secret."""
        for value in self.security.values():
            secret = value.get_secret_value()
            text = text.replace(secret, "***") if len(secret) > 3 else text
        return text
