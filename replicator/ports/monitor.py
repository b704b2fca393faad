"""The port to the daemon's page: health, metrics, status and run-time control."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Status = Mapping[str, Any]
"""A JSON-ready snapshot; its `ready` is true when every lane runs or catches up, otherwise `unready` says why not, a reason
per lane."""


@dataclass(frozen=True, slots=True)
class Views:
    """What a monitor may ask of the running daemon. Each call is safe from any thread, and cheap but for `control`.

    `alive` is false when the pipeline has not turned for a while. `control(action, lane, argument)` has a lane command
    carried out and waits for that, for half a minute at most; `ReplicatorError` says why it was not.
    """

    status: Callable[[], Status]
    alive: Callable[[], bool]
    control: Callable[[str, str, str | None], None]


class Monitor(Protocol):
    """Serves `Views` and metrics until it is closed."""

    def start(self, views: Views) -> str:
        """Begin to serve, in the background; returns the address. `EnvironmentProblem` when the address is taken."""

    def close(self) -> None:
        """Stop serving; may be called twice."""
