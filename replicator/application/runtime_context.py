"""The objects that all components of one running pipeline share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Generic, Literal

from replicator.application.quarantine.rejects import Rejects
from replicator.domain.errors import EnvironmentProblem
from replicator.ports.engine import Engine
from replicator.ports.frames import F
from replicator.ports.runtime import Telemetry

from .lane_runs import Clock, LaneRuns, monotonic
from .options import RuntimeOptions

# The idle timeout of a run that is to end by itself.


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


@dataclass(frozen=True)
class RuntimeContext(Generic[F]):
    """The objects that all components of one running pipeline share.

    - `stop`: the run is to end. Sources return; workers apply their queued writes.
    - `abandon`: workers give up their queued writes too.
    - `failures`: errors that concern the whole program. The first one sets the exit code.
    - `decoding`: after a crash, locked by the source that decodes, so that only one does.
    """

    engine: Engine[F]
    lanes: LaneRuns
    rejects: Rejects[F]
    telemetry: Telemetry
    options: RuntimeOptions
    stop: threading.Event = field(default_factory=threading.Event)
    abandon: threading.Event = field(default_factory=threading.Event)
    clock: Clock = monotonic
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    failures: list[BaseException] = field(default_factory=list)
    decoding: threading.Lock = field(default_factory=threading.Lock)
    idle_timeout: IdleTimeout = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "idle_timeout", IdleTimeout(self.lanes, self.clock))  # The class is frozen.

    def wait_for_sinks(self) -> None:
        """Wait until all queued writes are applied, at most `state_patience` seconds."""
        deadline = self.clock() + self.options.state_patience
        while self.clock() < deadline and any(
            run.is_active and run.retrying is None and run.has_writes_in_flight for run in self.lanes.list_runs()
        ):
            if self.stop.wait(0.01):
                return

    def fail(self, error: BaseException) -> None:
        """End the program because of `error`. If it is no `Exception` (a kill), workers give up at once."""
        self.failures.append(error)
        self.stop.set()
        if not isinstance(error, Exception):
            self.abandon.set()
