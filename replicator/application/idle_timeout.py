"""The idle timeout of a run that is to end by itself."""

from __future__ import annotations

import threading
from typing import Literal

from replicator.domain.errors import EnvironmentProblem

from .lane_runs import Clock, LaneRuns


class IdleTimeout:
    """Raises EnvironmentProblem after `limit` seconds in which sources and sinks only failed or were silent. Thread-safe.

    Anything read or committed restarts the time. Without `limit` it never raises. A call of a sink that has not
    failed before counts as work, however long it lasts: it is never interrupted.
    """

    def __init__(self, lanes: LaneRuns, clock: Clock) -> None:
        self.limit: float | None = None
        self._lanes = lanes
        self._clock = clock
        self._lock = threading.Lock()
        self._since: float | None = None
        self._failing: set[str] = set()
        """Names of sinks."""

    def record_progress(self) -> None:
        """Note that something was read or committed."""
        with self._lock:
            self._since = None
            self._failing.clear()

    def record_failure(self, kind: Literal["Source", "Sink"], name: str, why: str) -> None:
        """Note that a source or a sink has failed, or that a source has returned no records."""
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
                next_step=f"`replicator doctor` checks the {kind.lower()}. Wait longer with `--timeout SECONDS`. The next "
                "run resumes at the positions of its lanes.",
            )
