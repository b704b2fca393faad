"""Refreshes projections while the pipeline runs, on a separate thread, so that no lane waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import structlog

from replicator.application.lane_runs import Clock, monotonic
from replicator.application.options import Backoff
from replicator.application.problem import Problem, to_problem
from replicator.domain.projection import Projection
from replicator.ports.frames import Stop

from .refresh import ProjectionRefresher, RefreshResult

log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.5
"""Seconds between two checks of the lanes' commits."""
FORCED_REFRESH_SECONDS = 60.0
"""Seconds after which a projection is checked even without commits of lanes: other programs may write its inputs."""
LONGEST_DELAY = 60.0
"""Maximum seconds between two attempts."""


@dataclass
class ScheduledProjection:
    """A projection with its schedule. `every`: seconds between refreshes; None: whenever an input changes."""

    projection: Projection
    every: float | None = None
    backoff: Backoff = field(default_factory=lambda: Backoff(first=1.0, longest=LONGEST_DELAY))
    seen_versions: object = None
    """The commits of the lanes at the last check."""
    next_at: float = 0.0
    """The time of the next refresh, independent of the lanes' commits."""
    last: RefreshResult | None = None
    at: str | None = None
    problem: Problem | None = None


CommittedVersions = Callable[[], Mapping[str, object]]
"""By target, a value that changes with every commit of its lane."""


class ProjectionScheduler:
    """Refreshes projections, each after the projections that it reads. A failure is logged, retried later, and
    stops nothing else."""

    def __init__(
        self,
        kept: Sequence[ScheduledProjection],
        opening: Callable[[], AbstractContextManager[ProjectionRefresher]],
        committed: CommittedVersions,
        clock: Clock = monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._kept = kept
        self._opening = opening
        self._committed = committed
        self._clock = clock
        self._now = now
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="projections", daemon=True)

    def start(self) -> None:
        """Start the thread, if there are projections."""
        if self._kept:
            self._thread.start()

    def end(self, seconds: float) -> None:
        """Start no more refreshes, and wait at most `seconds` for the running one. A refresh is one commit or none."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def refresh_all(self, stop: Stop) -> Problem | None:
        """Refresh every projection once, now, until `stop`; return the first problem. Not for use while the thread
        runs."""
        if self._kept and not stop.is_set():
            with self._opening() as refreshing:
                for one in self._kept:
                    if not stop.is_set():
                        self._refresh_projection(one, refreshing)
        return next((one.problem for one in self._kept if one.problem is not None), None)

    def report(self) -> list[dict[str, Any]]:
        """The state of each projection as plain values. Safe from any thread."""
        return [_to_report(one) for one in self._kept]

    def refresh_due(self, refreshing: ProjectionRefresher) -> None:
        """Refresh the projections that are due."""
        for one in self._kept:
            committed = self._get_input_versions(one)
            changed = one.every is None and one.problem is None and committed != one.seen_versions
            if self._ended.is_set() or not (changed or self._clock() >= one.next_at):
                continue
            one.seen_versions = committed
            self._refresh_projection(one, refreshing)

    def _run(self) -> None:
        try:
            with self._opening() as refreshing:
                while not self._ended.wait(LOOK_SECONDS):
                    self.refresh_due(refreshing)
        except Exception as error:
            problem = to_problem(error)
            log.error("projections are not kept current", sentence=problem.sentence, next_step=problem.next_step)
            for one in self._kept:
                one.problem = problem

    def _get_input_versions(self, one: ScheduledProjection) -> object:
        committed = dict(self._committed())
        committed |= {k.projection.label: k.last and k.last.version for k in self._kept}
        return tuple(committed.get(each.label) for each in one.projection.inputs)

    def _refresh_projection(self, one: ScheduledProjection, refreshing: ProjectionRefresher) -> None:
        name = one.projection.name
        try:
            done = refreshing.refresh(one.projection)
        except Exception as error:
            one.problem = to_problem(error)
            one.next_at = self._clock() + one.backoff.next_delay()
            log.warning("projection was not refreshed", name=name, sentence=one.problem.sentence)
            return
        one.problem = None
        one.backoff.reset()
        one.next_at = self._clock() + (FORCED_REFRESH_SECONDS if one.every is None else one.every)
        one.at = self._now().isoformat()
        if done.version is not None or one.last is None:
            one.last = done
            log.info("projection refreshed", name=name, kind=done.kind, rows=done.rows, version=done.version)


def _to_report(one: ScheduledProjection) -> dict[str, Any]:
    last, problem = one.last, one.problem
    return {
        "name": one.projection.name,
        "target": one.projection.label,
        "status": "failed" if problem else "current" if last else "waiting",
        "looked_at": one.at,
        "kind": last.kind if last else None,
        "version": last.version if last else None,
        "reads": dict(last.reads) if last else {},
        "error": problem.sentence if problem else None,
        "next_step": problem.next_step if problem else None,
    }
