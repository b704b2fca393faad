"""The port of the HTTP server for other programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from replicator.domain.events import AppendedEvent, NewEvent

from .read_side import ReadSide

Emit = Callable[[Sequence[NewEvent]], Sequence[AppendedEvent]]
"""Stores events, from any thread; raises as `ports.event_store.EventStore.append` and `InvalidEvent`."""


class Server(Protocol):
    """Accepts events and returns rows until it is closed."""

    def start(self, emit: Emit | None, reads: ReadSide) -> str:
        """Serve in the background; returns the address. Without `emit` no events are accepted. ConfigProblem if other
        users could write without a token, or other machines could read without one; `EnvironmentProblem` if the address
        is already in use."""

    def close(self) -> None:
        """Accept no more requests, and return when all accepted requests are answered; may be called twice."""
