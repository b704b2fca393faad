"""Options of every Kafka client, and their librdkafka settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import SecretStr

from replicator.ports.options import make_value_error

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


class ClientOptions:
    """Methods of clients over the keys `bootstrap_servers`, `security` and `options` of a model. `owner`: the owner of the
    options, for messages."""

    owner: ClassVar[str] = "the source"

    if TYPE_CHECKING:  # Keys of the models, which describe them.
        bootstrap_servers: str | None
        security: dict[str, SecretStr] | None
        options: dict[str, str] | None

    def client_settings(self) -> dict[str, str]:
        """The librdkafka settings of every client. They contain secrets: never log them."""
        secrets = {name: value.get_secret_value() for name, value in (self.security or {}).items()}
        own = {name: value for name, value in (self.options or {}).items() if name.startswith(SHARED)}
        return {**CONNECTION, **own, **secrets, "bootstrap.servers": self.bootstrap_servers or ""}

    def hide_secrets(self, text: str) -> str:
        """The text with `***` for each secret of more than 3 characters."""
        for value in (self.security or {}).values():
            secret = value.get_secret_value()
            text = text.replace(secret, "***") if len(secret) > 3 else text
        return text


def check_security(options: dict[str, SecretStr]) -> dict[str, SecretStr]:
    """Refuse all that is not about security."""
    if any(not name.startswith(SECURITY_PREFIXES) for name in options):
        raise make_value_error(
            "option", "takes librdkafka's security.*, sasl.* and ssl.* settings only; others go under 'options'"
        )
    return options


def refuse_owned(owned: Mapping[str, str], owner: str) -> Callable[[dict[str, str]], dict[str, str]]:
    """A check that refuses security settings, and the settings that have keys of their own: see `OWNED`."""

    def check(options: dict[str, str]) -> dict[str, str]:
        for name in options:
            if name.startswith(SECURITY_PREFIXES):
                raise make_value_error(
                    "option",
                    "holds a security setting; write security settings under 'security', where they are kept secret",
                )
            if name in owned:
                hint = f"write '{owned[name]}'{owner} instead" if owned[name] else "correctness depends on it"
                raise make_value_error("option", f"sets {name}, but only replicator may set it: {hint}")
        return options

    return check
