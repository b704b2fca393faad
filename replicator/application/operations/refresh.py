"""Refreshes a projection: computes what changed, writes one commit, and sends lineage events."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import structlog

from replicator.domain.errors import Fatal, ReplicatorError, Retryable
from replicator.domain.lineage import LineageRun, RunOutcome, RunState, to_dataset
from replicator.domain.projection import InputVersions, Projection, RefreshRecord, RefreshWork, plan_refresh
from replicator.ports.projector import Projector, RefreshStart, ReplaceResult
from replicator.ports.runtime import Lineage

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
        datasets = {label: to_dataset(place) for label, place in start.places.items()}
        run = LineageRun(record.run, self.namespace, projection, reads, datasets)
        self._send_lineage(run, "START")
        try:
            done = self.projector.replace(projection, todo, record)
        except Exception as problem:
            why = problem.sentence if isinstance(problem, ReplicatorError) else type(problem).__name__
            self._send_lineage(run, "FAIL", RunOutcome(problem=why))
            raise
        self._send_lineage(run, "COMPLETE", RunOutcome(done.version, done.rows))
        return _make_result(projection, todo, reads, began, (record, done))

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
    done: tuple[RefreshRecord, ReplaceResult] | None = None,
) -> RefreshResult:
    return RefreshResult(
        name=projection.name,
        target=projection.label,
        kind="current" if done is None else todo.kind,
        reason=todo.reason,
        groups=None if todo.groups is None else len(todo.groups),
        rows=0 if done is None else done[1].rows,
        version=None if done is None else done[1].version,
        reads={name: read.version for name, read in reads.items()},
        seconds=round(time.monotonic() - began, 3),
        run=None if done is None else done[0].run,
    )
