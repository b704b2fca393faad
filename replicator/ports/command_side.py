"""The port to what takes events from programs elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from replicator.domain.events import Appended, NewEvent

Emit = Callable[[Sequence[NewEvent]], Sequence[Appended]]
"""Stores events, from any thread; raises as `ports.event_store.EventStore.append` and `InvalidEvent`."""


class CommandSide(Protocol):
    """Takes events until it is closed."""

    def start(self, emit: Emit) -> str:
        """Begin to take events, in the background; returns the address. `EnvironmentProblem` when the address is taken."""

    def close(self) -> None:
        """Take no more events, and return when those that were taken have their answer; may be called twice."""
