"""Kafka Connect's REST interface: connectors registered, watched and removed, on Docker and on the local worker alike."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from replicator.domain.errors import EnvironmentProblem

from .layout import HOST
from .processes import POLL_SECONDS, await_condition

CONFLICT = 409
"""The worker is rebalancing: ask again."""
TRACE_LINES = 12
REQUEST_SECONDS = 90
"""Connect answers PUT only after the connector's own checks, which include connecting to the database."""

STALE_SECONDS = 10
"""How long the state of before a restart may still be read: Connect passes states through a topic."""


class NoAnswer(Exception):
    """The worker's REST port does not answer."""


@dataclass(frozen=True, slots=True)
class ConnectorState:
    """A connector and its tasks, as Connect reports them: RUNNING, PAUSED, FAILED, UNASSIGNED, RESTARTING, STOPPED.

    `trace` is the Java trace of the first failed part, empty otherwise.
    """

    name: str
    connector: str
    tasks: tuple[str, ...]
    trace: str

    @property
    def running(self) -> bool:
        """The connector and at least one task run, and none failed."""
        return self.connector == "RUNNING" and bool(self.tasks) and set(self.tasks) == {"RUNNING"}

    @property
    def failed(self) -> bool:
        """Some part has failed; Connect does not restart it by itself."""
        return "FAILED" in (self.connector, *self.tasks)

    @property
    def paused(self) -> bool:
        """Somebody has paused or stopped it; Connect does not resume it by itself."""
        return self.connector in ("PAUSED", "STOPPED")

    @property
    def trace_head(self) -> str:
        """The first lines of the trace and every line that names a cause."""
        lines = self.trace.splitlines()
        return "\n".join(lines[:TRACE_LINES] + [line for line in lines[TRACE_LINES:] if line.startswith("Caused by")])


class ConnectRest:
    """One worker's REST interface on this machine."""

    def __init__(self, port: int, host: str = HOST) -> None:
        self._host, self._port = host, port

    def answers(self) -> bool:
        """Whether the worker has joined its group and can be asked for connectors."""
        try:
            return self._ask("GET", "/connectors", seconds=2)[0] == 200
        except NoAnswer:
            return False

    def put(self, name: str, config: Mapping[str, str]) -> None:
        """Create the connector, or give it this config. Raises `EnvironmentProblem` with Connect's own reason."""
        self._command("PUT", f"/connectors/{name}/config", config)

    def restart(self, name: str) -> None:
        """Restart the connector and all its tasks."""
        self._command("POST", f"/connectors/{name}/restart?includeTasks=true&onlyFailed=false")

    def resume(self, name: str) -> None:
        """Have a connector run that was paused or stopped."""
        self._command("PUT", f"/connectors/{name}/resume")

    def delete(self, name: str, seconds: float = 30) -> None:
        """Remove the connector and return when it has stopped (its slot, publication and topics stay). A no-op when there is
        none."""
        self._command("DELETE", f"/connectors/{name}", absent_is_fine=True)
        if not await_condition(lambda: self.state(name) is None, seconds, alive=lambda: True):
            raise EnvironmentProblem(f"Connector {name} does not stop.", next_step="See the log of Connect.")

    def names(self) -> list[str]:
        """The connectors there are."""
        return sorted(self._command("GET", "/connectors"))

    def state(self, name: str) -> ConnectorState | None:
        """The connector's state; None when there is no such connector, or Connect does not know its state yet."""
        status, body = self._ask("GET", f"/connectors/{name}/status")
        if status != 200:
            return None
        parts = [body["connector"], *body["tasks"]]
        trace = next((p["trace"] for p in parts if p["state"] == "FAILED" and "trace" in p), "")
        return ConnectorState(name, body["connector"]["state"], tuple(t["state"] for t in body["tasks"]), trace)

    def wait_running(self, name: str, seconds: float, before: ConnectorState | None = None) -> None:
        """Return once the connector and its task run. Raises `EnvironmentProblem` when they fail or are too slow. `before`
        is the failure that a restart is to cure: Connect goes on reporting it for a moment."""
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
        connection = HTTPConnection(self._host, self._port, timeout=seconds)
        try:
            headers = {"Content-Type": "application/json", "Accept": "application/json"}
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            response = connection.getresponse()
            text = response.read()
            return response.status, json.loads(text) if text else {}
        except (OSError, HTTPException, ValueError) as failure:
            raise NoAnswer(f"{self._host}:{self._port} does not answer: {failure}") from failure
        finally:
            connection.close()


def read_connector(file: Path, overrides: Mapping[str, str] | None = None) -> tuple[str, dict[str, str]]:
    """Name and config of a connector file ({"name", "config"}), with `overrides` laid over the config; an override
    `name` renames the connector."""
    document = json.loads(file.read_text(encoding="utf-8"))
    changes = dict(overrides or {})
    name = changes.pop("name", document["name"])
    return name, {**document["config"], **changes}


def not_running(name: str, state: ConnectorState | None) -> EnvironmentProblem:
    """The error for a connector that failed or does not start, with the head of its trace."""
    if state is None:
        return EnvironmentProblem(f"Connector {name} is not registered.", next_step="Run `scripts/start.sh`.")
    shown = f"connector {state.connector}, tasks {', '.join(state.tasks) or 'none yet'}"
    again = "Mend the cause, then run `scripts/start.sh` again: it registers and restarts the connector."
    return EnvironmentProblem(
        f"Connector {name} does not run ({shown}).\n{state.trace_head}".rstrip() + "\n",
        next_step="Run `scripts/start.sh`, which resumes it." if state.paused else again,
    )
