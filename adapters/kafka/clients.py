"""Options of every Kafka client and their librdkafka settings, its requests, log and shutdown."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, Self

from confluent_kafka import KafkaError, KafkaException
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
)

from replicator.domain.errors import ConfigProblem, ReplicatorError
from replicator.ports.options import SecretText, Text

from .errors import is_access_denied, translate_error, unwrap_error

SECURITY_PREFIXES = ("security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.")

CONNECTION: Mapping[str, str] = {"reconnect.backoff.max.ms": "1000", "socket.keepalive.enable": "true"}
"""Defaults that `options` may override."""

SHARED = ("client.", "socket.", "broker.", "metadata.", "reconnect.", "log", "debug", "topic.metadata.", "api.")
"""Prefixes of the settings in `options` that every client accepts, not only a consumer."""

OWNED: Mapping[str, str] = {
    "bootstrap.servers": "bootstrap_servers",
    "metadata.broker.list": "bootstrap_servers",
    **dict.fromkeys(("error_cb", "log_cb", "logger"), ""),
}
"""Settings that `options` must not contain, and the key to use instead."""


def _check_security(options: dict[str, SecretStr]) -> dict[str, SecretStr]:
    for name in options:
        if not name.startswith(SECURITY_PREFIXES):
            raise ValueError(f"{name} is no security setting (security.*, sasl.*, ssl.*); write it under 'options'")
    return options


class ClientOptions(BaseModel):
    """Options for connecting to a broker. `whose`: the owner of the options, for messages; `owned`: see `OWNED`."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
    whose: ClassVar[str] = "the source"
    owned: ClassVar[Mapping[str, str]] = OWNED

    bootstrap_servers: str = Field(min_length=1)
    security: Annotated[dict[str, SecretText], AfterValidator(_check_security)] = Field(default_factory=dict)
    options: dict[str, Text] = Field(default_factory=dict)

    @field_validator("options")
    @classmethod
    def _check_options(cls, options: dict[str, str]) -> dict[str, str]:
        for name in options:
            if name.startswith(SECURITY_PREFIXES):
                raise ValueError(f"{name} is a security setting; write it under 'security', where it is kept secret")
            if name in cls.owned:
                hint = (
                    f"write '{cls.owned[name]}' of {cls.whose} instead" if cls.owned[name] else "correctness depends on it"
                )
                raise ValueError(f"{name} is not yours to set: {hint}")
        return options

    @classmethod
    def read(cls, options: Mapping[str, object]) -> Self:
        """The checked options. Raises ConfigProblem that names each wrong key and never shows a value."""
        try:
            return cls.model_validate(dict(options))
        except ValidationError as error:
            found = error.errors(include_input=False, include_url=False, include_context=False)
            said = "; ".join(f"{'.'.join(str(p) for p in e['loc'])}: {e['msg']}" for e in found)
            raise ConfigProblem(f"The Kafka options of {cls.whose} are not valid: {said}.") from None

    def client_settings(self) -> dict[str, str]:
        """The librdkafka settings of every client. They contain secrets: never log them."""
        secrets = {name: value.get_secret_value() for name, value in self.security.items()}
        own = {name: value for name, value in self.options.items() if name.startswith(SHARED)}
        return {**CONNECTION, **own, **secrets, "bootstrap.servers": self.bootstrap_servers}

    def translate_error(self, error: KafkaError, doing: str) -> ReplicatorError:
        found = translate_error(error, doing, self.whose)
        return type(found)(self.hide_secrets(found.sentence), next_step=found.next_step)

    def hide_secrets(self, said: str) -> str:
        """The text with `***` for each secret of more than 3 characters."""
        for value in self.security.values():
            secret = value.get_secret_value()
            said = said.replace(secret, "***") if len(secret) > 3 else said
        return said


# Requests to a broker that fail with the program's own errors.


class Requests:
    """Requests of clients with the same options. Threads may share it."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._denied: KafkaError | None = None
        self._denied_at = 0.0
        self._failing_since: float | None = float("-inf")

    def note_error(self, error: KafkaError) -> None:
        """Store an error that explains a denied access. For a client's `error_cb`, which gets errors outside requests."""
        if is_access_denied(error):
            self._denied, self._denied_at = error, time.monotonic()

    @contextmanager
    def request(self, doing: str, poll: Callable[[], object]) -> Iterator[None]:
        """Raise the errors of a request as the program's own. `doing`: the action, for messages.

        If access is denied, the request times out. The client reports the reason only to `error_cb`, during `poll`, and
        repeats the same reason after 30 seconds at the earliest. So a reason counts if it came after requests began to
        fail, or before the first success. Older reasons belong to an earlier outage.
        """
        poll()  # The client reports errors from before this request here.
        began = time.monotonic()
        try:
            yield
        except (KafkaException, TimeoutError) as error:
            found = unwrap_error(error) if isinstance(error, KafkaException) else KafkaError(KafkaError._TIMED_OUT)
            since = self._failing_since = self._failing_since or began
            poll()
            denied, self._denied = self._denied, None
            if denied is not None and self._denied_at >= since and not is_access_denied(found):
                found = denied
            raise self._options.translate_error(found, doing) from None
        self._denied = self._failing_since = None


# The log of librdkafka.

NAME = f"{__package__}.librdkafka"


def client_log(hide: Callable[[str], str]) -> logging.Logger:
    """A logger for a client's `logger` setting. `hide` removes secrets from a text.

    All records have level DEBUG. While a broker is down, librdkafka logs each connection attempt as an error, several per
    second. The program logs the outage itself.
    """

    def tell(record: logging.LogRecord) -> bool:
        record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        record.msg, record.args = hide(record.getMessage()), ()
        return True

    log = logging.Logger(NAME)
    log.parent = logging.getLogger(NAME)
    log.addFilter(tell)
    return log


# The shutdown, even if the broker does not answer.

PATIENCE = 2.0


def close_consumer(consumer: Any) -> None:
    """Close a consumer; returns after `PATIENCE` seconds at the latest.

    librdkafka waits for the answer to a pending commit. With a broker that hangs, the program would never end. The rest
    of the shutdown ends with the process."""
    closing = threading.Thread(target=consumer.close, name="end of a Kafka consumer", daemon=True)
    closing.start()
    closing.join(PATIENCE)
