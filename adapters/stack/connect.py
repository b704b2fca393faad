"""Kafka Connect with Debezium connectors as a local process: one distributed worker."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from replicator.domain.errors import EnvironmentProblem

from ..jvm.jars import fetch_jars, is_linked, link_plugin
from ..jvm.java import classpath, find_java
from .kafka import LOGGING, MAX_MESSAGE_BYTES, write_properties
from .layout import DATABASES, HOST, StackHome
from .processes import POLL_SECONDS, ProcessService, await_condition, require_free, spawn_server

JAVA_OPTIONS = ("-Xms64m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Options for a fast start and little memory. Benchmarks through Connect should not limit the compiler."""
CONNECTORS = ("debezium-postgres",)

WORKER: Mapping[str, str] = {
    "group.id": "cdc-connect",
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "key.converter.schemas.enable": "true",
    "value.converter.schemas.enable": "true",
    "offset.storage.topic": "_connect_offsets",
    "offset.storage.replication.factor": "1",
    "offset.storage.partitions": "1",
    "config.storage.topic": "_connect_configs",
    "config.storage.replication.factor": "1",
    "status.storage.topic": "_connect_status",
    "status.storage.replication.factor": "1",
    "status.storage.partitions": "1",
    "offset.flush.interval.ms": "1000",
    "scheduled.rebalance.max.delay.ms": "0",
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "2000",
    "connector.client.config.override.policy": "All",
    "producer.max.request.size": str(MAX_MESSAGE_BYTES),
    "plugin.discovery": "service_load",
    "config.providers": "env",
    "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
    "config.providers.env.param.allowlist.pattern": "SOURCE_.*",
}
"""Settings of a worker on any host, the same as in docker-compose.yml. With the short session timeout, the replacement of
a killed worker gets its connectors in seconds. The `env` provider fills `${env:SOURCE_...}` in connector files, so one
file works on every host, and Connect stores no passwords."""


def connect_services(home: StackHome) -> list[ConnectService]:
    """The Connect worker of a stack."""
    return [ConnectService(home)]


class ConnectService(ProcessService):
    """One Connect worker, named as in docker-compose.yml. It answers if its REST interface lists connectors. `settings`:
    more settings of the worker, which override the stack's."""

    log_file = "worker.log"

    def __init__(
        self,
        home: StackHome,
        *,
        java_options: Sequence[str] = JAVA_OPTIONS,
        connectors: Sequence[str] = CONNECTORS,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(home, "debezium", {"rest": home.ports.connect})
        self._more = dict(settings or {})
        self._java_options = java_options
        self._connectors = connectors

    @property
    def rest(self) -> ConnectRest:
        """The worker's REST interface."""
        return ConnectRest(self._home.ports.connect)

    def start(self) -> None:
        """Start the worker. It waits for the broker by itself. A worker with connectors of an older lock is restarted with
        the current ones, since old connectors may lose more data."""
        folder = self._home.make_subfolder("debezium")
        if self._find_processes():
            if all(is_linked(connector, folder / "plugins" / connector) for connector in self._connectors):
                return
            self.stop()
        require_free(self.name, self.ports, self._home.ports)
        jars = fetch_jars("connect")
        for connector in self._connectors:
            link_plugin(connector, folder / "plugins" / connector)
        settings = {
            "bootstrap.servers": f"{HOST}:{self._home.ports.kafka}",
            "listeners": f"http://{HOST}:{self._home.ports.connect}",
            "rest.advertised.host.name": HOST,
            "plugin.path": str(folder / "plugins"),
        }
        config = write_properties(folder / "worker.properties", {**WORKER, **settings, **self._more})
        options = (self._mark, *self._java_options, *LOGGING)
        main = ("org.apache.kafka.connect.cli.ConnectDistributed", str(config))
        command = [str(find_java()), *options, "-cp", classpath(jars), *main]
        spawn_server(command, self.log, cwd=folder, env={**os.environ, **self.environment()})

    def _answers(self) -> bool:
        return self.rest.answers()

    def environment(self) -> Mapping[str, str]:
        """The values of `${env:...}` in connector files."""
        source = DATABASES["source"]
        return {
            "SOURCE_DB_HOST": HOST,
            "SOURCE_DB_PORT": str(self._home.ports.source),
            "SOURCE_DB_NAME": source.database,
            "SOURCE_DB_USER": source.user,
            "SOURCE_DB_PASSWORD": source.password,
            # By this name in connectors that `replicator init` writes. Another source's password may be in the environment.
            "SOURCE_PASSWORD": os.environ.get("SOURCE_PASSWORD", source.password),
        }


# The client of the REST interface, in Docker or local: registers, watches and deletes connectors.

CONFLICT = 409
"""Status while the worker is rebalancing: retry."""
TRACE_LINES = 12
REQUEST_SECONDS = 90
"""Connect answers PUT after the connector's own checks, which connect to the database."""

STALE_SECONDS = 10
"""Time for which Connect may still return the state before a restart: states go through a topic."""


class NoAnswer(Exception):
    """The worker's REST port does not answer."""


@dataclass(frozen=True, slots=True)
class ConnectorState:
    """States of a connector and its tasks in Connect: RUNNING, PAUSED, FAILED, UNASSIGNED, RESTARTING, STOPPED.

    `trace` is the Java trace of the first failed part, empty otherwise.
    """

    name: str
    connector: str
    tasks: tuple[str, ...]
    trace: str

    @property
    def running(self) -> bool:
        """True if the connector and all its tasks run, at least one."""
        return self.connector == "RUNNING" and bool(self.tasks) and set(self.tasks) == {"RUNNING"}

    @property
    def failed(self) -> bool:
        """True if the connector or a task has failed. Connect does not restart it by itself."""
        return "FAILED" in (self.connector, *self.tasks)

    @property
    def paused(self) -> bool:
        """True if a user has paused or stopped it. Connect does not resume it by itself."""
        return self.connector in ("PAUSED", "STOPPED")

    @property
    def trace_head(self) -> str:
        """The first lines of the trace, and all lines with causes."""
        lines = self.trace.splitlines()
        return "\n".join(lines[:TRACE_LINES] + [line for line in lines[TRACE_LINES:] if line.startswith("Caused by")])


class ConnectRest:
    """The REST interface of one worker."""

    def __init__(self, port: int) -> None:
        self._port = port

    def answers(self) -> bool:
        """True if the worker has joined its group and can list connectors."""
        try:
            return self._ask("GET", "/connectors", seconds=2)[0] == 200
        except NoAnswer:
            return False

    def put(self, name: str, config: Mapping[str, str]) -> None:
        """Create the connector, or replace its config. Raises `EnvironmentProblem` with Connect's own reason."""
        self._command("PUT", f"/connectors/{name}/config", config)

    def restart(self, name: str) -> None:
        """Restart the connector and all its tasks."""
        self._command("POST", f"/connectors/{name}/restart?includeTasks=true&onlyFailed=false")

    def resume(self, name: str) -> None:
        """Resume a paused or stopped connector."""
        self._command("PUT", f"/connectors/{name}/resume")

    def delete(self, name: str, seconds: float = 30) -> None:
        """Delete the connector, and return when it has stopped. Its slot, publication and topics stay. Does nothing if
        there is no such connector."""
        self._command("DELETE", f"/connectors/{name}", absent_is_fine=True)
        if not await_condition(lambda: self.state(name) is None, seconds, alive=lambda: True):
            raise EnvironmentProblem(f"Connector {name} does not stop.", next_step="See the log of Connect.")

    def names(self) -> list[str]:
        """The names of all connectors."""
        return sorted(self._command("GET", "/connectors"))

    def state(self, name: str) -> ConnectorState | None:
        """The connector's state; None if there is no such connector, or no state of it yet."""
        status, body = self._ask("GET", f"/connectors/{name}/status")
        if status != 200:
            return None
        parts = [body["connector"], *body["tasks"]]
        trace = next((p["trace"] for p in parts if p["state"] == "FAILED" and "trace" in p), "")
        return ConnectorState(name, body["connector"]["state"], tuple(t["state"] for t in body["tasks"]), trace)

    def wait_running(self, name: str, seconds: float, before: ConnectorState | None = None) -> None:
        """Return when the connector and its tasks run. Raises `EnvironmentProblem` if they fail or are too slow. `before`:
        the state before a restart. Connect may still report it for some seconds."""
        began = time.monotonic()
        deadline = began + seconds
        state = None
        while time.monotonic() < deadline:
            try:
                state = self.state(name)
            except NoAnswer:
                state = None
            if state is not None and state.running:
                return
            if state is not None and state.failed and (state != before or time.monotonic() > began + STALE_SECONDS):
                break
            time.sleep(POLL_SECONDS)
        raise not_running(name, state)

    def _command(
        self, method: str, path: str, body: Mapping[str, str] | None = None, *, absent_is_fine: bool = False
    ) -> Any:
        deadline = time.monotonic() + REQUEST_SECONDS
        while True:
            status, answer = self._ask(method, path, body)
            if status < 300 or (absent_is_fine and status == 404):
                return answer
            if status != CONFLICT or time.monotonic() > deadline:
                reason = answer.get("message", answer) if isinstance(answer, dict) else answer
                raise EnvironmentProblem(
                    f"Kafka Connect refused {method} {path} ({status}): {reason}", next_step="See the log of Connect."
                )
            time.sleep(POLL_SECONDS * 4)

    def _ask(
        self, method: str, path: str, body: Mapping[str, str] | None = None, seconds: float = REQUEST_SECONDS
    ) -> tuple[int, Any]:
        connection = HTTPConnection(HOST, self._port, timeout=seconds)
        try:
            headers = {"Content-Type": "application/json", "Accept": "application/json"}
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            response = connection.getresponse()
            text = response.read()
            return response.status, json.loads(text) if text else {}
        except (OSError, HTTPException, ValueError) as failure:
            raise NoAnswer(f"{HOST}:{self._port} does not answer: {failure}") from failure
        finally:
            connection.close()


def read_connector(file: Path, overrides: Mapping[str, str] | None = None) -> tuple[str, dict[str, str]]:
    """Name and config of a connector file ({"name", "config"}). `overrides` replace settings; the override `name` renames
    the connector."""
    document = json.loads(file.read_text(encoding="utf-8"))
    changes = dict(overrides or {})
    name = changes.pop("name", document["name"])
    return name, {**document["config"], **changes}


def not_running(name: str, state: ConnectorState | None) -> EnvironmentProblem:
    """The error for a failed or missing connector, with the head of its trace."""
    if state is None:
        return EnvironmentProblem(f"Connector {name} is not registered.", next_step="Run `replicator stack up`.")
    summary = f"connector {state.connector}, tasks {', '.join(state.tasks) or 'none yet'}"
    again = "Fix the cause, then run `replicator stack up` again: it registers and restarts the connector."
    return EnvironmentProblem(
        f"Connector {name} does not run ({summary}).\n{state.trace_head}".rstrip() + "\n",
        next_step="Run `replicator stack up`, which resumes it." if state.paused else again,
    )
