"""Schema registry client."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from replicator.domain.errors import EnvironmentProblem, ReplicatorError, Retryable
from replicator.ports.options import RegistrySettings

SECONDS = 10
"""Timeout of a request; without it the client would wait for ever."""
TRIES_AGAIN = 2
WAIT_MS, LONGEST_WAIT_MS = 100, 1_000
NO_SUCH_SCHEMA = 40_403
"""The registry's error code for an unknown schema id. Any other 404 is not from a registry."""
REFUSED = (401, 403)
AGAIN = (408, 425, 429)
CHECK_URL = "Check `url` of the source's `registry`: it is the address under which `/subjects` answers."


class UnknownSchema(LookupError):
    """The registry has no schema with this id."""


class Registry:
    """One registry. Every call raises Retryable if it does not answer, and EnvironmentProblem if it denies access or is
    not a registry."""

    def __init__(self, options: RegistrySettings) -> None:
        self._options = options

    @cached_property
    def _client(self) -> SchemaRegistryClient:
        """Created at the first request, so that `plan` works without the certificates."""
        options = self._options
        settings: dict[str, Any] = {
            "url": options.url,
            "timeout": SECONDS,
            "max.retries": TRIES_AGAIN,
            "retries.wait.ms": WAIT_MS,
            "retries.max.wait.ms": LONGEST_WAIT_MS,
        }
        if options.user is not None:
            password = options.password.get_secret_value() if options.password else ""
            settings["basic.auth.user.info"] = f"{options.user}:{password}"
        if options.ca:
            settings["ssl.ca.location"] = options.ca
        try:
            return SchemaRegistryClient(settings)
        except OSError as error:
            raise EnvironmentProblem(
                f"the certificates at {options.ca} cannot be read: {type(error).__name__}",
                next_step="Correct `ca` of the source's `registry`.",
            ) from error

    def read_schema(self, number: int) -> Schema:
        """The schema with this id. UnknownSchema if the registry has none."""
        client = self._client
        try:
            schema = client.get_schema(number)
        except Exception as error:
            if isinstance(error, SchemaRegistryError) and error.error_code == NO_SUCH_SCHEMA:
                raise UnknownSchema(number) from None
            raise self._translate_error(error) from error
        if not schema.schema_str:
            raise self._translate_error(ValueError("no schema"))
        return schema

    def count_subjects(self) -> int:
        """The number of subjects in the registry."""
        client = self._client
        try:
            return len(client.get_subjects())
        except Exception as error:
            raise self._translate_error(error) from error

    def _translate_error(self, error: Exception) -> ReplicatorError:
        where = f"the schema registry at {self._options.url}"
        if isinstance(error, SchemaRegistryError):
            status = error.http_status_code
            if status in REFUSED:
                refusal = "refuses these credentials" if self._options.user else "asks for credentials"
                return EnvironmentProblem(
                    f"{where} {refusal} (HTTP {status})",
                    next_step="Correct `user` and `password` of the source's `registry`.",
                )
            if status >= 500 or status in AGAIN:
                return Retryable(f"{where} answers with HTTP {status}", next_step="Its own log says why.")
            return EnvironmentProblem(f"{where} answers with HTTP {status}", next_step=CHECK_URL)
        message = str(error)
        if "CERTIFICATE_VERIFY_FAILED" in message or "certificate verify failed" in message:
            return EnvironmentProblem(
                f"{where} has a certificate that is not trusted", next_step="Name the file of its authority as `ca`."
            )
        if isinstance(error, ValueError | KeyError | TypeError | AttributeError):
            return EnvironmentProblem(f"{where} answers something else than a registry would", next_step=CHECK_URL)
        return Retryable(f"{where} does not answer ({type(error).__name__})", next_step="Start it, or correct its `url`.")
