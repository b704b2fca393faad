"""Restarts a source connector without loss, as docs/how-to/restart-a-debezium-connector.md describes."""

from __future__ import annotations

import json
from typing import Any
from urllib.request import Request, urlopen

from .daemon import until
from .stack import World


def ask(world: World, method: str, what: str, body: Any = None) -> Any:
    """What Kafka Connect answers to a request about the connector."""
    url = f"{world.environment['CONNECT_URL']}/connectors/{world.connector}/{what}"
    data = json.dumps(body).encode() if body else None
    with urlopen(Request(url, data, {"Content-Type": "application/json"}, method=method), timeout=30) as answer:
        return json.loads(answer.read() or b"null")


def stop(world: World) -> None:
    """As an operator does; the place that it stopped at is stored then."""
    ask(world, "PUT", "stop")
    until(lambda: (state := world.stack.rest.state(world.connector)) and state.paused and not state.tasks, "it stopped")


def resume(world: World) -> None:
    world.stack.rest.resume(world.connector)
    world.stack.rest.wait_running(world.connector, 60)


def restart(world: World) -> None:
    """Where it stands well: where it does not, it is set back before, see `set_back`."""
    stop(world)
    if place(world)["messageType"] == "BEGIN" or place(world).get("lsn_events_processed") == 1:
        set_back(world)
    resume(world)


def place(world: World) -> dict[str, Any]:
    """Where the connector goes on from when it is started again."""
    (stored,) = ask(world, "GET", "offsets")["offsets"]
    return dict(stored["offset"])


def set_back(world: World) -> None:
    """What the docs say to do with a connector that was stopped within a transaction: it goes on behind the last commit."""
    told = ask(world, "GET", "offsets")
    offset = told["offsets"][0]["offset"]
    offset |= {"lsn": offset["lsn_commit"], "lsn_proc": offset["lsn_commit"], "messageType": "COMMIT"}
    offset.pop("lsn_events_processed", None)
    ask(world, "PATCH", "offsets", told)
