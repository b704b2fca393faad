"""Kafka Connect: the connector that writes the topics, its tasks, and what its settings lose."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import urlopen

import psycopg

from replicator.domain.connectors import Connector, row_loss
from replicator.ports.diagnosis import Diagnosis

from .connector_settings import Loss, family, losses

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
COMMIT = "COMMIT"
"""The kind of message that PostgreSQL's connector stands at between transactions."""
SET_BACK = "docs/debezium.md, Connectors that lose rows"
SECRET = re.compile(r"(?i)(password\s*[=:]\s*)\S+")


class ConnectCheck:
    """`ports.diagnosis.Check`; options `url`, None where no worker is known, and `connector`, None for each that writes
    `topics` of the source; `files`: descriptions of connectors as they are registered, of which the same ones count; and
    `wanted`: what `connector_settings.losses` asks for; `dsn`: the database that it reads, where that is a known
    PostgreSQL server."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._name = name
        self._url = str(options.get("url") or "").rstrip("/")
        self._connector = str(options.get("connector") or "")
        self._topics = tuple(options.get("topics", ()))
        self._files = tuple(map(Path, options.get("files", ())))
        self._wanted = frozenset(options.get("wanted", ()))
        self._dsn = str(options.get("dsn") or "")

    def diagnose(self) -> Sequence[Diagnosis]:
        """See `ports.diagnosis.Check.diagnose`."""
        found = list(self._filed())
        try:
            names = list(self._running()) if self._url else []
            if self._url and not names:
                sentence = f"No connector at {self._url} writes topics of this source."
                step = "Name it with `connect: {url: ..., connector: ...}` of the source, or correct `topics`."
                found.append(Diagnosis("warning", self._name, sentence, step))
            for name in names:
                status = self._ask(f"/connectors/{quote(name, safe='')}/status")
                found += self._states(name, status) if status is not None else [self._unknown(name)]
                config = self._ask(f"/connectors/{quote(name, safe='')}/config") if status is not None else None
                found += self._judged(f"connector {name} as it runs", config) if config is not None else ()
                found += self._row_losses(name, status, config) if config is not None else ()
                found += self._place(name, status, config) if config is not None else ()
        except (URLError, OSError, ValueError) as error:
            why = getattr(error, "reason", None) or type(error).__name__
            step = "Start Kafka Connect (`scripts/start.sh` in development), or correct `connect.url`."
            found.append(Diagnosis("error", self._name, f"Kafka Connect at {self._url} does not answer: {why}.", step))
        return found

    def _row_losses(self, name: str, status: Mapping[str, Any], config: Mapping[str, str]) -> Iterator[Diagnosis]:
        """Rows that this version of the connector loses with this database."""
        plugin = config.get("connector.class", "")
        version = status["connector"].get("version") or next(
            (one["version"] for one in self._ask("/connector-plugins") or () if one.get("class") == plugin), ""
        )
        connector = Connector(family(config), str(version), _has_metadata(config))
        if row_loss(connector) and (loss := row_loss(connector, server=self._server())):
            yield Diagnosis("warning", self._name, f"{loss.sentence[:-1]} (connector {name}).", loss.next_step)

    def _place(self, name: str, status: Mapping[str, Any], config: Mapping[str, str]) -> Iterator[Diagnosis]:
        """A connector that does not run and stands within a transaction, of which it may skip rows when it goes on."""
        runs = {part["state"] for part in (status["connector"], *status.get("tasks", ()))} == {"RUNNING"}
        if runs or family(config) != "postgresql" or not _has_metadata(config):
            return
        path = f"/connectors/{quote(name, safe='')}/offsets"
        for stored in (self._ask(path) or {}).get("offsets", ()):
            if (stored["offset"] or {}).get("messageType", COMMIT) != COMMIT:
                sentence = f"Connector {name} stands within a transaction: it may skip rows of it when it goes on."
                step = f"Set it back to the last commit before ({self._url}{path}): {SET_BACK}."
                yield Diagnosis("warning", self._name, sentence, step)

    def _server(self) -> int | None:
        """The major version of the database; None where it does not say, which its own check tells."""
        try:
            if not self._dsn:
                return None
            with psycopg.connect(self._dsn, connect_timeout=TIMEOUT_SECONDS) as connection:
                return connection.info.server_version // 10_000
        except psycopg.Error:
            return None

    def _running(self) -> Iterator[str]:
        """The connectors of the worker that write for the source."""
        if self._connector:
            yield self._connector
            return
        for name in sorted(self._ask("/connectors") or ()):
            if self._is_mine(name, self._ask(f"/connectors/{quote(name, safe='')}/config") or {}):
                yield name

    def _is_mine(self, name: str, config: Mapping[str, str]) -> bool:
        """The connector writes topics of the source: it has the name, or the prefix of its topics is theirs."""
        prefix = config.get("topic.prefix") or config.get("database.server.name") or ""
        if name == self._connector or not prefix or "${" in prefix:
            return name == self._connector
        return any(_begins(pattern, prefix) for pattern in self._topics)

    def _filed(self) -> Iterator[Diagnosis]:
        for file in self._files:
            where = f"{file.parent.name}/{file.name}"
            try:
                said = json.loads(file.read_text())
                config = said.get("config", said)
                name = str(said.get("name", config.get("name", "")))
                if self._is_mine(name, config):
                    yield from self._judged(where, config)
            except (OSError, ValueError, AttributeError) as error:
                sentence = f"{where} cannot be read as a connector: {type(error).__name__}."
                yield Diagnosis("warning", self._name, sentence, "Write it as JSON with `name` and `config`.")

    def _judged(self, where: str, config: Mapping[str, str]) -> Iterator[Diagnosis]:
        found = list(losses(config, self._wanted))
        for loss in found:
            yield Diagnosis("warning", self._name, _told(loss, config, where), loss.step)
        if not found and family(config):
            yield Diagnosis("ok", self._name, f"No setting of {where} is known to lose values or order.")

    def _ask(self, path: str) -> Any:
        """The answer; None for what is not there."""
        try:
            with urlopen(self._url + path, timeout=TIMEOUT_SECONDS) as response:  # noqa: S310 - http(s) by the settings
                return json.load(response)
        except HTTPError as refused:
            if refused.code == NOT_FOUND:
                return None
            raise

    def _unknown(self, name: str) -> Diagnosis:
        there = ", ".join(sorted(self._ask("/connectors") or ())) or "none"
        sentence = f"Connector {name} is not registered; there is {there}."
        return Diagnosis(
            "error",
            self._name,
            sentence,
            "Correct `connect.connector` of the source, or register it (`scripts/start.sh` in development).",
        )

    def _states(self, name: str, status: Mapping[str, Any]) -> Iterator[Diagnosis]:
        tasks = status.get("tasks", [])
        yield self._state(name, f"Connector {name}", status["connector"])
        for task in tasks:
            yield self._state(name, f"Task {task['id']} of connector {name}", task)
        if not tasks and status["connector"]["state"] == "RUNNING":
            step = "Wait a moment; if it stays so, read the worker's log (`replicator stack logs connect`)."
            yield Diagnosis("warning", self._name, f"Connector {name} has no task.", step)

    def _state(self, name: str, what: str, part: Mapping[str, Any]) -> Diagnosis:
        state = part["state"]
        if state == "RUNNING":
            return Diagnosis("ok", self._name, f"{what} runs.")
        command = f"{self._url}/connectors/{name}"
        if state == "FAILED":
            cause = cause_of(part.get("trace", ""))
            restart = f"curl -X POST '{command}/restart?includeTasks=true&onlyFailed=true'"
            return Diagnosis("error", self._name, f"{what} has failed: {cause}.", f"{advice(cause)} Then: {restart}".strip())
        step = f"curl -X PUT {command}/resume" if state in ("PAUSED", "STOPPED") else "Wait a moment and look again."
        return Diagnosis("warning", self._name, f"{what} is {state}.", step)


def _has_metadata(config: Mapping[str, str]) -> bool:
    return str(config.get("provide.transaction.metadata", "false")).lower() == "true"


def _told(loss: Loss, config: Mapping[str, str], where: str) -> str:
    by_default = "" if loss.setting in config else " (the default)"
    return f"{loss.setting} is {loss.value}{by_default} in {where}: {loss.lost}."


def _begins(pattern: str, prefix: str) -> bool:
    """Whether a wanted topic, glob or regular expression is of topics with the prefix."""
    if pattern.startswith("^"):
        return pattern[1:].replace("\\", "").startswith(f"{prefix}.")
    return pattern.startswith(f"{prefix}.") or fnmatchcase(f"{prefix}.", pattern.partition(".")[0] + ".")


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
