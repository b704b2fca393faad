"""The REST interface of a Kafka Connect worker. Nothing here changes a connector."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import urlopen

from replicator.domain.errors import EnvironmentProblem

TIMEOUT_SECONDS = 5
NOT_FOUND, CONFLICT = 404, 409
FAILURES = (OSError, ValueError, LookupError, TypeError, AttributeError)
"""Errors of requests, and of reading the answers of another server."""


@dataclass(frozen=True, slots=True)
class ConnectWorker:
    """A worker at `url`, which has no slash at its end."""

    url: str

    def get(self, path: str) -> Any:
        """The JSON answer; None for status 404. Raises OSError and ValueError."""
        try:
            with urlopen(self.url + path, timeout=TIMEOUT_SECONDS) as response:  # noqa: S310 - http(s) by the settings
                return json.load(response)
        except HTTPError as refused:
            if refused.code == NOT_FOUND:
                return None
            raise
        except HTTPException as broken:  # The answer is not HTTP, or it is cut short.
            raise URLError(type(broken).__name__) from broken

    def get_of(self, connector: str, part: str) -> Any:
        """`get` of one part of a connector: status, config or offsets."""
        return self.get(f"/connectors/{quote(connector, safe='')}/{part}")


def read_offsets(url: str, connector: str) -> Sequence[Mapping[str, Any]]:
    """The offsets that a connector has stored. Connect stores the offset of a record once the broker has this record and
    all before it. Empty while the worker is rebalancing. EnvironmentProblem if the worker does not know them."""
    worker = ConnectWorker(url.rstrip("/"))
    try:
        answer = worker.get_of(connector, "offsets")
        offsets = None if answer is None else [entry["offset"] or {} for entry in answer["offsets"]]
    except FAILURES as error:
        if isinstance(error, HTTPError) and error.code == CONFLICT:
            return ()
        why = getattr(error, "reason", None) or type(error).__name__
        raise EnvironmentProblem(
            f"Kafka Connect at {worker.url} does not answer as it should: {why}.",
            next_step="Start it, or correct `connect.url` of the source.",
        ) from error
    if offsets is None:
        raise EnvironmentProblem(
            f"Kafka Connect at {worker.url} has no offsets of a connector {connector}.",
            next_step="Correct `connect.connector` of the source. Upgrade a Kafka Connect that is older than 3.5.",
        )
    return offsets
