"""Restarts a source connector without loss, as docs/how-to/restart-a-debezium-connector.md describes."""

from __future__ import annotations

import json
from typing import Any
from urllib.request import Request, urlopen

from .daemon import await_condition
from .stack import World


def request_connector(world: World, method: str, what: str, body: Any = None) -> Any:
    """The answer of Kafka Connect to a request about the connector."""
    url = f"{world.environment['CONNECT_URL']}/connectors/{world.connector}/{what}"
    data = json.dumps(body).encode() if body else None
    with urlopen(Request(url, data, {"Content-Type": "application/json"}, method=method), timeout=30) as answer:
        return json.loads(answer.read() or b"null")


def stop_connector(world: World) -> None:
    """Stops the connector like an operator. Its position is stored then."""
    request_connector(world, "PUT", "stop")
    await_condition(
        lambda: (state := world.stack.rest.state(world.connector)) and state.paused and not state.tasks, "it stopped"
    )


def resume_connector(world: World) -> None:
    world.stack.rest.resume(world.connector)
    world.stack.rest.wait_running(world.connector, 60)


def restart_without_loss(world: World) -> None:
    """Restarts the connector. If it stopped within a transaction, it is reset first, see `reset_to_last_commit`."""
    stop_connector(world)
    if (
        read_connector_offset(world)["messageType"] == "BEGIN"
        or read_connector_offset(world).get("lsn_events_processed") == 1
    ):
        reset_to_last_commit(world)
    resume_connector(world)


def read_connector_offset(world: World) -> dict[str, Any]:
    """The stored offset from which the connector continues."""
    (stored,) = request_connector(world, "GET", "offsets")["offsets"]
    return dict(stored["offset"])


def reset_to_last_commit(world: World) -> None:
    """Follows the docs for a connector that was stopped within a transaction: it continues behind the last commit."""
    told = request_connector(world, "GET", "offsets")
    offset = told["offsets"][0]["offset"]
    offset |= {"lsn": offset["lsn_commit"], "lsn_proc": offset["lsn_commit"], "messageType": "COMMIT"}
    offset.pop("lsn_events_processed", None)
    request_connector(world, "PATCH", "offsets", told)
