"""Telling readers of a target that is committed to lane by lane up to which transaction its tables are complete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Generic

import structlog

from replicator.domain.errors import ReplicatorError
from replicator.domain.transactions import Complete
from replicator.ports.frames import F
from replicator.ports.sink import Publishes, Sink

from .handover import Handed, Told
from .lanes import LaneRun, LaneStatus
from .shared import Shared

log = structlog.get_logger(__name__)

AGAIN = 30.0
"""Seconds after which is tried again what could not be published."""


class Publishing(Generic[F]):
    """What one sink is to publish, by its worker's thread only; nothing where the sink does not.

    What was handed over with a bundle is true once all of the bundle, and of those before it, is committed. It is published
    then, or when the last time is `publish_every` seconds ago. As long as writes are under way nothing is: what is published
    belongs to tables as they are.
    """

    def __init__(self, name: str, sink: Sink[F], shared: Shared[F]) -> None:
        self._name = name
        self._sink: Publishes | None = sink if isinstance(sink, Publishes) else None
        self._lanes = shared.lanes
        self._clock = shared.clock
        self._abandon = shared.abandon
        self._every = shared.options.publish_every
        self._due: dict[str, Told] = {}
        self._next = 0.0

    @property
    def due_in(self) -> float | None:
        """After so many seconds `end` has something to publish; None while nothing is to be."""
        return max(0.0, self._next - self._clock()) if self._due else None

    def begin(self, items: Iterable[Handed[F]]) -> None:
        """Before items are committed."""
        for source in {item.run.lane.source for item in items}:
            self._due.pop(source, None)

    def end(self, items: Sequence[Handed[F]], told: Mapping[str, Told]) -> None:
        """All items are committed, unless `voided` says otherwise or `abandon` is set; then `told` is so."""
        if self._sink is None or self._abandon.is_set():
            return
        self._due.update({**told_with(items), **told})
        if self._due and self._clock() >= self._next:
            self._publish(self._sink)

    def finish(self) -> None:
        """There will be no other call."""
        if self._sink is not None and not self._abandon.is_set():
            self._publish(self._sink)

    def _publish(self, sink: Publishes) -> None:
        self._next = self._clock() + self._every
        for source, complete in self.checked(self._due).items():
            try:
                sink.publish([run.lane for run in self._runs(source)], complete)
                del self._due[source]
            except ReplicatorError as error:
                # The tables are as they should be. It is tried again, and what was published is true still.
                log.warning("watermark not published", sink=self._name, source=source, sentence=error.sentence)
                self._next = self._clock() + AGAIN

    def checked(self, told: Mapping[str, Told]) -> dict[str, Complete]:
        """What is complete of what was told. Where writes became void since, some of before may never have been committed:
        then no transaction is known, until the lanes are looked at again."""
        return {source: self._checked(one) for source, one in told.items()}

    def _checked(self, told: Told) -> Complete:
        complete = told.complete
        if told.voided == self._lanes.voided:
            return complete
        halted = {run.lane.id for run in self._runs(complete.source) if run.status is not LaneStatus.RUNNING}
        return Complete(complete.source, behind=tuple(sorted(halted | set(complete.behind))))

    def _runs(self, source: str) -> list[LaneRun]:
        """The lanes of tables that the source has in the sink."""
        runs = self._lanes.all()
        return [run for run in runs if (run.lane.sink, run.lane.source, run.is_event_log) == (self._name, source, False)]


def told_with(items: Iterable[Handed[F]]) -> dict[str, Told]:
    """By source what its last item says is complete with it."""
    return {i.run.lane.source: Told(i.write.complete, i.voided) for i in items if i.write.complete}
