"""Outputs for OpenLineage events: a file of JSON lines, or a server."""

from __future__ import annotations

from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import msgspec
from pydantic import BaseModel, ConfigDict

from replicator.domain.errors import EnvironmentProblem, Retryable

SECONDS = 5.0
"""Request timeout, so that a silent server does not block a refresh longer."""


class _LineageOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)
    namespace: str | None = None


class FileOptions(_LineageOptions):
    """`path`: the file."""

    path: str


class HttpOptions(_LineageOptions):
    """`url`: the endpoint for POST requests. `token`: its bearer token."""

    url: str
    token: str | None = None


class FileLineage:
    """`ports.runtime.Lineage` that appends each event as a line of JSON. Several programs may write to one file."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._path = Path(FileOptions.model_validate(dict(options)).path)

    def send_event(self, event: Mapping[str, Any]) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab", buffering=0) as file:
                file.write(msgspec.json.encode(event) + b"\n")
        except OSError as error:
            raise EnvironmentProblem(
                f"{self._path} cannot be written ({error.strerror})", next_step="Correct `path` under `lineage`."
            ) from error


class HttpLineage:
    """`ports.runtime.Lineage` that sends each event in a request."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._said = HttpOptions.model_validate(dict(options))

    def send_event(self, event: Mapping[str, Any]) -> None:
        headers = {"Content-Type": "application/json"}
        if self._said.token:
            headers["Authorization"] = f"Bearer {self._said.token}"
        request = Request(self._said.url, msgspec.json.encode(event), headers, method="POST")  # noqa: S310
        try:
            with urlopen(request, timeout=SECONDS):  # noqa: S310 - settings let http and https pass
                pass
        except HTTPError as refused:
            raise EnvironmentProblem(
                f"the lineage server answered {refused.code}", next_step="Correct `url` or `token` under `lineage`."
            ) from refused
        except (OSError, HTTPException) as away:
            raise Retryable("the lineage server does not answer as it should") from away
        except ValueError:  # Its text may quote the token.
            raise EnvironmentProblem(
                "the `token` of the lineage server has characters that no header can hold", next_step="Correct it."
            ) from None
