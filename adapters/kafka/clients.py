"""Options of every Kafka client, and their librdkafka settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Self

from confluent_kafka import KafkaError
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

from .errors import translate_error

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
