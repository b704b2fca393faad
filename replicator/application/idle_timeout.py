"""How long nothing has progressed in a run that is to end by itself."""

from __future__ import annotations

import threading
from typing import Literal

from replicator.domain.errors import EnvironmentProblem

from .lane_runs import Clock, LaneRuns


class IdleTimeout:
    """Raises EnvironmentProblem when sources and sinks have failed or brought nothing for `limit` seconds, and nothing was
    read or committed meanwhile; never without a limit. Safe for use from several threads.

    A call of a sink that has not failed before is work, however long it takes: it is never interrupted.
    """

    def __init__(self, lanes: LaneRuns, clock: Clock) -> None:
        self.limit: float | None = None
        self._lanes = lanes
        self._clock = clock
        self._lock = threading.Lock()
        self._since: float | None = None
        self._failing: set[str] = set()
        """Sinks."""

    def record_progress(self) -> None:
        """Something was read or committed."""
        with self._lock:
            self._since = None
            self._failing.clear()

    def record_failure(self, kind: Literal["Source", "Sink"], name: str, why: str) -> None:
        """A source or a sink has failed once more, or a source has brought nothing once more."""
        with self._lock:
            if kind == "Sink":
                self._failing.add(name)
            now = self._clock()
            if self._since is None or self._lanes.list_called_sinks() - self._failing:
                self._since = now
            seconds = now - self._since
        if self.limit is not None and seconds >= self.limit:
            raise EnvironmentProblem(
                f"{kind} {name} has been silent for {seconds:.0f} s: {why}",
                next_step=f"`replicator doctor` looks at the {kind.lower()}. Wait longer with `--timeout SECONDS`. The next "
                "run goes on from the positions of its lanes.",
            )
