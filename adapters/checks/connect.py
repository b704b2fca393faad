"""Kafka Connect: the connector that writes the topics, and its tasks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import urlopen

from replicator.ports.diagnosis import Diagnosis

TIMEOUT_SECONDS = 5
NOT_FOUND = 404
ADVICE = (
    (r"wal_level", "ALTER SYSTEM SET wal_level = logical; on the source, and restart that server."),
    (
        r"publication",
        "CREATE PUBLICATION in the source database, as publication.name says.",
    ),
    (r"slot .* is active|already active", "Another connector reads this slot: give this one another slot.name."),
    (r"slot .*(lost|invalid)|can no longer get changes", "Drop the slot; the connector then takes a new snapshot."),
    (r"password authentication|no pg_hba", "Correct database.user and database.password of the connector."),
    (
        r"connection .*refused|unknown ?host|timed out|could not connect",
        "Start the source database, or correct its address.",
    ),
    (r"permission denied|must be superuser|must have replication", "Grant the connector's role REPLICATION and SELECT."),
)
"""What a trace says, and what helps."""
SECRET = re.compile(r"(?i)(password\s*[=:]\s*)\S+")


class ConnectCheck:
    """`ports.diagnosis.Check`; options `url` and `connector`."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._name = name
        self._url = str(options["url"]).rstrip("/")
        self._connector = str(options["connector"])

    def diagnose(self) -> Sequence[Diagnosis]:
        """See `ports.diagnosis.Check.diagnose`."""
        try:
            status = self._ask(f"/connectors/{quote(self._connector, safe='')}/status")
            return list(self._states(status)) if status is not None else [self._unknown()]
        except (URLError, OSError, ValueError) as error:
            why = getattr(error, "reason", None) or type(error).__name__
            step = "Start Kafka Connect (`scripts/start.sh` in development), or correct `connect.url`."
            return [Diagnosis("error", self._name, f"Kafka Connect at {self._url} does not answer: {why}.", step)]

    def _ask(self, path: str) -> Any:
        """The answer; None for what is not there."""
        try:
            with urlopen(self._url + path, timeout=TIMEOUT_SECONDS) as response:  # noqa: S310 - http(s) by the settings
                return json.load(response)
        except HTTPError as refused:
            if refused.code == NOT_FOUND:
                return None
            raise

    def _unknown(self) -> Diagnosis:
        there = ", ".join(sorted(self._ask("/connectors") or ())) or "none"
        sentence = f"Connector {self._connector} is not registered; there is {there}."
        return Diagnosis("error", self._name, sentence, "Register it (`scripts/start.sh` in development).")

    def _states(self, status: Mapping[str, Any]) -> Iterator[Diagnosis]:
        tasks = status.get("tasks", [])
        yield self._state(f"Connector {self._connector}", status["connector"])
        for task in tasks:
            yield self._state(f"Task {task['id']} of connector {self._connector}", task)
        if not tasks and status["connector"]["state"] == "RUNNING":
            step = "Wait a moment; if it stays so, read the worker's log (`replicator stack logs connect`)."
            yield Diagnosis("warning", self._name, f"Connector {self._connector} has no task.", step)

    def _state(self, what: str, part: Mapping[str, Any]) -> Diagnosis:
        state = part["state"]
        if state == "RUNNING":
            return Diagnosis("ok", self._name, f"{what} runs.")
        command = f"{self._url}/connectors/{self._connector}"
        if state == "FAILED":
            cause = cause_of(part.get("trace", ""))
            restart = f"curl -X POST '{command}/restart?includeTasks=true&onlyFailed=true'"
            return Diagnosis("error", self._name, f"{what} has failed: {cause}.", f"{advice(cause)} Then: {restart}".strip())
        step = f"curl -X PUT {command}/resume" if state in ("PAUSED", "STOPPED") else "Wait a moment and look again."
        return Diagnosis("warning", self._name, f"{what} is {state}.", step)


def cause_of(trace: str) -> str:
    """The first line of a Java trace and its innermost cause, without class names, on one line."""
    lines = [line for line in trace.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    said = dict.fromkeys(_plain(line) for line in (*lines[:1], *causes[-1:]))
    return SECRET.sub(r"\1***", ": ".join(said) or "no trace is given")


def advice(cause: str) -> str:
    """What helps against a cause that is known."""
    return next((step for pattern, step in ADVICE if re.search(pattern, cause, re.I)), "")


def _plain(line: str) -> str:
    """`Caused by: a.b.SomeException: what` as `what`."""
    return re.sub(r"^(Caused by: )?([\w$]+\.)+[\w$]+(: |$)", "", line.strip()).rstrip(". ") or line.strip()
