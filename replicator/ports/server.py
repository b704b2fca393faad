"""The port to what answers programs elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from replicator.domain.events import AppendedEvent, NewEvent

from .read_side import ReadSide

Emit = Callable[[Sequence[NewEvent]], Sequence[AppendedEvent]]
"""Stores events, from any thread; raises as `ports.event_store.EventStore.append` and `InvalidEvent`."""


class Server(Protocol):
    """Takes events and shows rows until it is closed."""

    def start(self, emit: Emit | None, reads: ReadSide) -> str:
        """Begin to answer, in the background; returns the address. Without `emit` no events are taken. ConfigProblem where
        others could write, or read from another machine, without a token; `EnvironmentProblem` when the address is taken."""

    def close(self) -> None:
        """Take no more requests, and return when those that were taken have their answer; may be called twice."""
