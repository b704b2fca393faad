"""Telling readers of a target that is committed to lane by lane up to which transaction its tables are complete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Generic

import structlog

from replicator.application.delivery.bounded_queue import PublishRequest, WriteRequest
from replicator.application.lane_runs import LaneRun, LaneStatus
from replicator.application.runtime_context import RuntimeContext
from replicator.domain.errors import ReplicatorError
from replicator.domain.transactions import CompletenessWatermark
from replicator.ports.frames import F
from replicator.ports.sink import Publishes, Sink

log = structlog.get_logger(__name__)

RETRY_SECONDS = 30.0
"""Seconds after which is tried again what could not be published."""


class WatermarkPublisher(Generic[F]):
    """What one sink is to publish, by its worker's thread only; nothing where the sink does not.

    What was handed over with a bundle is true once all of the bundle, and of those before it, is committed. It is published
    then, or when the last time is `publish_every` seconds ago. As long as writes are under way nothing is: what is published
    belongs to tables as they are.
    """

    def __init__(self, name: str, sink: Sink[F], shared: RuntimeContext[F]) -> None:
        self._name = name
        self._sink: Publishes | None = sink if isinstance(sink, Publishes) else None
        self._lanes = shared.lanes
        self._clock = shared.clock
        self._abandon = shared.abandon
        self._every = shared.options.publish_every
        self._due: dict[str, PublishRequest] = {}
        self._next = 0.0

    @property
    def due_in(self) -> float | None:
        """After so many seconds `end_commit` has something to publish; None while nothing is to be."""
        return max(0.0, self._next - self._clock()) if self._due else None

    def begin_commit(self, items: Iterable[WriteRequest[F]]) -> None:
        """Before items are committed."""
        for source in {item.run.lane.source for item in items}:
            self._due.pop(source, None)

    def end_commit(self, items: Sequence[WriteRequest[F]], publish_requests: Mapping[str, PublishRequest]) -> None:
        """All items are committed, unless `voided` says otherwise or `abandon` is set; then `publish_requests` is so."""
        if self._sink is None or self._abandon.is_set():
            return
        self._due.update({**collect_publish_requests(items), **publish_requests})
        if self._due and self._clock() >= self._next:
            self._publish_due(self._sink)

    def finish(self) -> None:
        """There will be no other call."""
        if self._sink is not None and not self._abandon.is_set():
            self._publish_due(self._sink)

    def _publish_due(self, sink: Publishes) -> None:
        self._next = self._clock() + self._every
        for source, complete in self.list_valid(self._due).items():
            try:
                sink.publish([run.lane for run in self._list_runs(source)], complete)
                del self._due[source]
            except ReplicatorError as error:
                # The tables are as they should be. It is tried again, and what was published is true still.
                log.warning("watermark not published", sink=self._name, source=source, sentence=error.sentence)
                self._next = self._clock() + RETRY_SECONDS

    def list_valid(self, publish_requests: Mapping[str, PublishRequest]) -> dict[str, CompletenessWatermark]:
        """What is complete of what was told. Where writes became void since, some of before may never have been committed:
        then no transaction is known, until the lanes are looked at again."""
        return {source: self._validate(one) for source, one in publish_requests.items()}

    def _validate(self, request: PublishRequest) -> CompletenessWatermark:
        complete = request.complete
        if request.voided == self._lanes.voided:
            return complete
        halted = {run.lane.id for run in self._list_runs(complete.source) if run.status is not LaneStatus.RUNNING}
        return CompletenessWatermark(complete.source, behind=tuple(sorted(halted | set(complete.behind))))

    def _list_runs(self, source: str) -> list[LaneRun]:
        """The lanes of tables that the source has in the sink."""
        runs = self._lanes.list_runs()
        return [run for run in runs if (run.lane.sink, run.lane.source, run.is_event_log) == (self._name, source, False)]


def collect_publish_requests(items: Iterable[WriteRequest[F]]) -> dict[str, PublishRequest]:
    """By source what its last item says is complete with it."""
    return {i.run.lane.source: PublishRequest(i.write.complete, i.voided) for i in items if i.write.complete}
