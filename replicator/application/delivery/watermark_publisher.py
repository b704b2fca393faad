"""Publishes the completeness watermark in sinks that commit lane by lane."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic

import structlog

from replicator.application.lane_runs import LaneRun, LaneStatus
from replicator.application.runtime_context import RuntimeContext
from replicator.domain.errors import ReplicatorError
from replicator.domain.transactions import CompletenessWatermark
from replicator.ports.frames import F, Lane
from replicator.ports.sink import Sink

from .bounded_queue import PublishRequest, WriteRequest

log = structlog.get_logger(__name__)

PublishWatermark = Callable[[Sequence[Lane], CompletenessWatermark], None]
RETRY_SECONDS = 30.0
"""Seconds between attempts to publish a watermark."""


class WatermarkPublisher(Generic[F]):
    """Publishes the watermarks of one sink; does nothing if the sink does not support it. Only the sink's worker uses it.

    A watermark is true once its bundle, and all bundles before it, are committed. It is published then, but at
    most every `publish_every` seconds. Nothing is published while writes are in flight: a watermark describes
    committed tables.
    """

    def __init__(self, name: str, sink: Sink[F], shared: RuntimeContext[F]) -> None:
        self._name = name
        self._publish = sink.features.publish
        self._lanes = shared.lanes
        self._clock = shared.clock
        self._abandon = shared.abandon
        self._every = shared.options.publish_every
        self._due: dict[str, PublishRequest] = {}
        self._next = 0.0

    @property
    def due_in(self) -> float | None:
        """Seconds until `end_commit` has a watermark to publish; None if there is none."""
        return max(0.0, self._next - self._clock()) if self._due else None

    def begin_commit(self, items: Iterable[WriteRequest[F]]) -> None:
        """Call before items are committed: they make older watermarks of their sources obsolete."""
        for source in {item.run.lane.source for item in items}:
            self._due.pop(source, None)

    def end_commit(self, items: Sequence[WriteRequest[F]], publish_requests: Mapping[str, PublishRequest]) -> None:
        """Call after all items are committed. From then on their watermarks and the `publish_requests` are true.

        Exceptions are writes that became void (see `list_valid`); nothing is published once `abandon` is set.
        """
        if self._publish is None or self._abandon.is_set():
            return
        self._due.update({**collect_publish_requests(items), **publish_requests})
        if self._due and self._clock() >= self._next:
            self._publish_due(self._publish)

    def finish(self) -> None:
        """Publish the last watermarks. No other call follows."""
        if self._publish is not None and not self._abandon.is_set():
            self._publish_due(self._publish)

    def _publish_due(self, publish: PublishWatermark) -> None:
        self._next = self._clock() + self._every
        for source, complete in self.list_valid(self._due).items():
            try:
                publish([run.lane for run in self._list_runs(source)], complete)
                del self._due[source]
            except ReplicatorError as error:
                # The tables are correct, and the watermark published last is still true: retry later.
                log.warning("watermark not published", sink=self._name, source=source, sentence=error.sentence)
                self._next = self._clock() + RETRY_SECONDS

    def list_valid(self, publish_requests: Mapping[str, PublishRequest]) -> dict[str, CompletenessWatermark]:
        """By source, the watermark of its request.

        If writes became void since the request was made, rows before it may be missing. Its watermark then
        names no transaction, and lists the halted lanes as behind.
        """
        return {source: self._validate(one) for source, one in publish_requests.items()}

    def _validate(self, request: PublishRequest) -> CompletenessWatermark:
        complete = request.complete
        if request.voided == self._lanes.voided:
            return complete
        halted = {run.lane.id for run in self._list_runs(complete.source) if run.status is not LaneStatus.RUNNING}
        return CompletenessWatermark(complete.source, behind=tuple(sorted(halted | set(complete.behind))))

    def _list_runs(self, source: str) -> list[LaneRun]:
        """The table lanes of the source in this sink."""
        runs = self._lanes.list_runs()
        return [run for run in runs if (run.lane.sink, run.lane.source, run.is_event_log) == (self._name, source, False)]


def collect_publish_requests(items: Iterable[WriteRequest[F]]) -> dict[str, PublishRequest]:
    """By source, the watermark of its last item."""
    return {i.run.lane.source: PublishRequest(i.write.complete, i.voided) for i in items if i.write.complete}
