"""The port of the daemon's page: health, metrics, status and run-time control."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Status = Mapping[str, Any]
"""A JSON-ready snapshot. Its `ready` is true if every lane runs or catches up; otherwise `unready` has one reason per
lane."""


@dataclass(frozen=True, slots=True)
class Views:
    """The calls of a monitor into the running daemon. Each is safe from any thread, and cheap except `control`.

    `alive` is false if the pipeline has made no progress for a while. `control(action, lane, argument)` runs a lane
    command and waits for it, for at most half a minute; `ReplicatorError` if it failed.
    """

    status: Callable[[], Status]
    alive: Callable[[], bool]
    control: Callable[[str, str, str | None], None]


class Monitor(Protocol):
    """Serves `Views` and metrics until it is closed."""

    def start(self, views: Views) -> str:
        """Serve in the background; returns the address. `EnvironmentProblem` if the address is already in use."""

    def close(self) -> None:
        """Stop serving; may be called twice."""
