"""Refreshing a projection: what has to be computed, one commit, and who is told of it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from replicator.domain.errors import Fatal, ReplicatorError, Retryable
from replicator.domain.lineage import Datasets, Happened, Outcome, Run, dataset
from replicator.domain.projections import Projection, Reads, Record, Work, work
from replicator.ports.lineage import Lineage
from replicator.ports.projector import Projector, Replaced

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What a refresh did. `kind`: `full`, `groups`, `none` (rows of the inputs are the same, and only their versions
    were noted) or `current` (nothing has changed, and nothing was committed). `rows`, `groups`: written."""

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
class Refreshing:
    """Refreshes projections with one projector. Not for several threads at once."""

    projector: Projector
    namespace: str
    lineage: Lineage | None = None
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def refresh(self, projection: Projection, *, full: bool = False) -> Refreshed:
        """Bring a projection up to its inputs' newest versions; `full`: computed whole, whatever has changed. After an error
        the table is as it was before, or as this refresh makes it, and the next one goes on from there."""
        try:
            return self._refreshed(projection, full)
        finally:
            self.projector.let_go()

    def _refreshed(self, projection: Projection, full: bool) -> Refreshed:
        began = time.monotonic()
        reads = self.projector.reads(projection)
        last = self.projector.last(projection)
        todo = Work(reason="it was asked for") if full else self._work(projection, last, reads)
        if todo is None:
            return _told(projection, Work(frozenset()), reads, began)
        record = Record(str(uuid.uuid4()), projection.fingerprint, reads, todo.kind, self.now().isoformat())
        run = Run(record.run, self.namespace, projection, reads, self._datasets(projection))
        self._tell(run, "START")
        try:
            done = self.projector.replace(projection, todo, record)
        except Exception as problem:
            why = problem.sentence if isinstance(problem, ReplicatorError) else type(problem).__name__
            self._tell(run, "FAIL", Outcome(problem=why))
            raise
        self._tell(run, "COMPLETE", Outcome(done.version, done.rows))
        return _told(projection, todo, reads, began, (record, done))

    def _work(self, projection: Projection, last: Record | None, reads: Reads) -> Work | None:
        return work(projection, last, reads, lambda one, *versions: self.projector.touched(projection, one, *versions))

    def _datasets(self, projection: Projection) -> Datasets:
        tables = {one.label: (one.sink, one.table) for one in projection.inputs}
        tables[projection.label] = (projection.sink, projection.into)
        return {label: dataset(self.projector.place(*table)) for label, table in tables.items()}

    def _tell(self, run: Run, happened: Happened, outcome: Outcome | None = None) -> None:
        """Lineage is told of what is done; it does not decide about it."""
        if self.lineage is None:
            return
        try:
            self.lineage.tell(run.event(happened, self.now().isoformat(), outcome))
        except (Fatal, Retryable) as problem:
            log.warning("lineage was not told", projection=run.projection.name, error=problem.sentence)


def _told(
    projection: Projection, todo: Work, reads: Reads, began: float, done: tuple[Record, Replaced] | None = None
) -> Refreshed:
    return Refreshed(
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
