"""Refreshes projections, on request or while the pipeline runs, and sends lineage events."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

import structlog

from replicator.application.lane_runs import Clock, monotonic
from replicator.application.options import BackgroundThread, Backoff
from replicator.application.problem import Problem, to_problem
from replicator.domain.errors import Fatal, ReplicatorError, Retryable
from replicator.domain.projection import InputVersions, Projection, RefreshRecord, RefreshWork, plan_refresh
from replicator.ports.frames import Stop
from replicator.ports.projector import Projector, RefreshStart, ReplaceResult
from replicator.ports.runtime import Lineage

# One refresh: computes what changed, and writes one commit.

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RefreshResult:
    """The result of a refresh. `rows`, `groups`: number written. `kind`:

    - `full`: all rows were computed. `groups`: only the affected groups.
    - `none`: the input rows are the same; only their versions were stored.
    - `current`: nothing has changed, and nothing was committed.
    """

    name: str
    target: str
    kind: str
    reason: str
    groups: int | None
    rows: int
    version: int | None
    reads: Mapping[str, int]
    seconds: float
    run: str | None


@dataclass
class ProjectionRefresher:
    """Refreshes projections with one projector. Not thread-safe."""

    projector: Projector
    namespace: str
    lineage: Lineage | None = None
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def refresh(self, projection: Projection, *, full: bool = False) -> RefreshResult:
        """Update a projection to the newest versions of its inputs. `full`: compute all rows, also without changes.

        After an error the table is as before, or as this refresh makes it. The next refresh continues from there.
        """
        began = time.monotonic()
        with self.projector.open_refresh(projection) as start:
            return self._refresh_projection(projection, start, full, began)

    def _refresh_projection(self, projection: Projection, start: RefreshStart, full: bool, began: float) -> RefreshResult:
        reads = start.reads
        find_groups = partial(self.projector.find_affected_groups, projection)
        todo = RefreshWork(reason="it was asked for") if full else plan_refresh(projection, start.last, reads, find_groups)
        if todo is None:
            return _make_result(projection, RefreshWork(frozenset()), reads, began)
        record = RefreshRecord(str(uuid.uuid4()), projection.fingerprint, reads, todo.kind, self.now().isoformat())
        datasets = {label: to_dataset(location) for label, location in start.places.items()}
        run = LineageRun(record.run, self.namespace, projection, reads, datasets)
        self._send_lineage(run, "START")
        try:
            result = self.projector.replace(projection, todo, record)
        except Exception as problem:
            why = problem.sentence if isinstance(problem, ReplicatorError) else type(problem).__name__
            self._send_lineage(run, "FAIL", RunOutcome(problem=why))
            raise
        self._send_lineage(run, "COMPLETE", RunOutcome(result.version, result.rows))
        return _make_result(projection, todo, reads, began, (record, result))

    def _send_lineage(self, run: LineageRun, happened: RunState, outcome: RunOutcome | None = None) -> None:
        """A lineage error is only logged: it never stops a refresh."""
        if self.lineage is None:
            return
        try:
            self.lineage.send_event(run.make_event(happened, self.now().isoformat(), outcome))
        except (Fatal, Retryable) as problem:
            log.warning("lineage was not reported", projection=run.projection.name, error=problem.sentence)


def _make_result(
    projection: Projection,
    todo: RefreshWork,
    reads: InputVersions,
    began: float,
    outcome: tuple[RefreshRecord, ReplaceResult] | None = None,
) -> RefreshResult:
    return RefreshResult(
        name=projection.name,
        target=projection.label,
        kind="current" if outcome is None else todo.kind,
        reason=todo.reason,
        groups=None if todo.groups is None else len(todo.groups),
        rows=0 if outcome is None else outcome[1].rows,
        version=None if outcome is None else outcome[1].version,
        reads={name: read.version for name, read in reads.items()},
        seconds=round(time.monotonic() - began, 3),
        run=None if outcome is None else outcome[0].run,
    )


# Refreshes projections while the pipeline runs, on a separate thread, so that no lane waits.

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


class ProjectionScheduler(BackgroundThread):
    """Refreshes projections, each after the projections that it reads. A failure is logged, retried later, and
    stops nothing else. A refresh is one commit or none."""

    def __init__(
        self,
        scheduled: Sequence[ScheduledProjection],
        opening: Callable[[], AbstractContextManager[ProjectionRefresher]],
        committed: CommittedVersions,
        clock: Clock = monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        super().__init__("projections", self._run, wanted=bool(scheduled))
        self._kept = scheduled
        self._opening = opening
        self._committed = committed
        self._clock = clock
        self._now = now

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
        reports: list[dict[str, Any]] = []
        for one in self._kept:
            last, problem = one.last, one.problem
            report = {
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
            reports.append(report)
        return reports

    def refresh_due(self, refreshing: ProjectionRefresher) -> None:
        """Refresh the projections that are due."""
        for one in self._kept:
            versions = dict(self._committed())
            versions |= {k.projection.label: k.last and k.last.version for k in self._kept}
            committed = tuple(versions.get(each.label) for each in one.projection.inputs)
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

    def _refresh_projection(self, one: ScheduledProjection, refreshing: ProjectionRefresher) -> None:
        name = one.projection.name
        try:
            result = refreshing.refresh(one.projection)
        except Exception as error:
            one.problem = to_problem(error)
            one.next_at = self._clock() + one.backoff.next_delay()
            log.warning("projection was not refreshed", name=name, sentence=one.problem.sentence)
            return
        one.problem = None
        one.backoff.reset()
        one.next_at = self._clock() + (FORCED_REFRESH_SECONDS if one.every is None else one.every)
        one.at = self._now().isoformat()
        if result.version is not None or one.last is None:
            one.last = result
            log.info("projection refreshed", name=name, kind=result.kind, rows=result.rows, version=result.version)


# OpenLineage run events of refreshes (specification 2-0-2), as plain values.

SPEC = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
FACETS = "https://openlineage.io/spec/facets"
PRODUCER = "https://pypi.org/project/replicator"

RunState = Literal["START", "COMPLETE", "FAIL"]
Datasets = Mapping[str, tuple[str, str]]
"""Per table label its OpenLineage namespace and name."""


def to_dataset(location: str) -> tuple[str, str]:
    """The OpenLineage namespace and name of a table at this location."""
    scheme, is_url, rest = location.partition("://")
    if not is_url:
        return "file", location
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}", key or "/"


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The end of a refresh: the new version and its number of rows, or the reason of its failure."""

    version: int | None = None
    rows: int | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class LineageRun:
    """A refresh as an OpenLineage run."""

    id: str
    namespace: str
    projection: Projection
    reads: InputVersions
    datasets: Datasets

    def make_event(self, happened: RunState, at: str, outcome: RunOutcome | None = None) -> dict[str, Any]:
        """One event of the run; `at` is a time with its zone."""
        done = outcome or RunOutcome()
        error = {}
        if done.problem is not None:
            values = {"message": done.problem, "programmingLanguage": "SQL"}
            error = {"errorMessage": _make_facet("1-0-1/ErrorMessageRunFacet", values)}
        inputs = []
        for one in self.projection.inputs:
            read = self.reads.get(one.name)
            inputs.append(
                {**self._dataset_to_json(one.label), "facets": {} if read is None else _version_facet(read.version)}
            )
        counted = {"outputStatistics": _make_facet("1-0-2/OutputStatisticsOutputDatasetFacet", {"rowCount": done.rows})}
        output = {
            **self._dataset_to_json(self.projection.label),
            "facets": {} if done.version is None else _version_facet(done.version),
            "outputFacets": {} if done.rows is None else counted,
        }
        return {
            "eventType": happened,
            "eventTime": at,
            "producer": PRODUCER,
            "schemaURL": SPEC,
            "run": {"runId": self.id, "facets": error},
            "job": {
                "namespace": self.namespace,
                "name": self.projection.name,
                "facets": {"sql": _make_facet("1-0-1/SQLJobFacet", {"query": self.projection.query})},
            },
            "inputs": inputs,
            "outputs": [output],
        }

    def _dataset_to_json(self, label: str) -> dict[str, str]:
        namespace, name = self.datasets[label]
        return {"namespace": namespace, "name": name}


def _version_facet(version: int) -> dict[str, Any]:
    return {"version": _make_facet("1-0-1/DatasetVersionDatasetFacet", {"datasetVersion": str(version)})}


def _make_facet(schema: str, values: Mapping[str, Any]) -> dict[str, Any]:
    version, name = schema.split("/")
    return {"_producer": PRODUCER, "_schemaURL": f"{FACETS}/{version}/{name}.json#/$defs/{name}", **values}
