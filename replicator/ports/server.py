"""The port of servers: the daemon's page, and the HTTP server for other programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from replicator.domain.events import AppendedEvent, NewEvent

from .read_side import ReadSide

Served_contra = TypeVar("Served_contra", contravariant=True)


class Server(Protocol[Served_contra]):
    """Serves the daemon's page and its metrics (`Views`), or other programs (`Endpoints`), until it is closed."""

    def start(self, served: Served_contra) -> str:
        """Serve in the background; returns the address. `EnvironmentProblem` if the address is already in use. For
        `Endpoints`, ConfigProblem if other users could write without a token, or other machines could read without
        one."""

    def close(self) -> None:
        """Accept no more requests, and return when all accepted requests are answered; may be called twice."""


Status = Mapping[str, Any]
"""A JSON-ready snapshot. Its `ready` is true if every lane runs or catches up; otherwise `unready` has one reason per
lane."""


@dataclass(frozen=True, slots=True)
class Views:
    """The calls of the daemon's page into the running daemon. Each is safe from any thread, and cheap except `control`.

    `alive` is false if the pipeline has made no progress for a while. `control(action, lane, argument)` runs a lane
    command and waits for it, for at most half a minute; `ReplicatorError` if it failed.
    """

    status: Callable[[], Status]
    alive: Callable[[], bool]
    control: Callable[[str, str, str | None], None]


Emit = Callable[[Sequence[NewEvent]], Sequence[AppendedEvent]]
"""Stores events, from any thread; raises as `ports.event_store.EventStore.append` and `InvalidEvent`."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The calls of other programs: `emit` stores their events, None if events are not accepted; `reads` returns rows."""

    emit: Emit | None
    reads: ReadSide
