"""The publication of the completeness watermark to sinks."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from support.tuple_engine import TupleEngine
from support.tuple_ports import RecordedTelemetry

from replicator.application.delivery.bounded_queue import PublishRequest
from replicator.application.delivery.delivery import RETRY_SECONDS, WatermarkPublisher
from replicator.application.lane_runs import LaneRuns
from replicator.application.options import RuntimeOptions
from replicator.application.quarantine.rejects import Rejects
from replicator.application.runtime_context import RuntimeContext
from replicator.domain.errors import Retryable
from replicator.domain.position import Position
from replicator.domain.transactions import CompletenessWatermark
from replicator.ports.frames import Lane
from replicator.ports.sink import SinkFeatures
from replicator.testing.fakes import FakeDeadLetters, FakeSink, FakeStore


class Publisher(FakeSink):
    """Remembers what was published; `away`: how many times it cannot."""

    def __init__(self) -> None:
        super().__init__(FakeStore())
        self.published: list[tuple[set[str], CompletenessWatermark]] = []
        self.away = 0

    @property
    def features(self) -> SinkFeatures:
        return replace(super().features, publish=self.publish)

    def publish(self, lanes: Sequence[Lane], complete: CompletenessWatermark) -> None:
        self.away -= 1
        if self.away >= 0:
            raise Retryable("the store is away")
        self.published.append(({lane.into for lane in lanes}, complete))


@dataclass
class World:
    now: float = 100.0
    sink: Publisher = field(default_factory=Publisher)

    def __post_init__(self) -> None:
        engine, stop, gauges, options = (
            TupleEngine(),
            threading.Event(),
            RecordedTelemetry(),
            RuntimeOptions(publish_every=1.0),
        )
        self.lanes = LaneRuns(gauges)
        rejects: Rejects[Any] = Rejects(FakeDeadLetters(), engine.frames, stop, options, gauges)
        self.shared: RuntimeContext[Any] = RuntimeContext(
            engine, self.lanes, rejects, gauges, options, stop, clock=lambda: self.now
        )
        for sink, into in (("lake", "orders"), ("lake", "items"), ("other", "orders")):
            run = self.lanes.add(Lane(f"{sink}.{into}", "p", "s", f"public.{into}", sink, into, "scd1"))
            self.lanes.place_lane(run, Position(), Position())
            self.lanes.join_lane(run)
        self.publishing: WatermarkPublisher[Any] = WatermarkPublisher("lake", self.sink, self.shared)

    def make_requests(self, name: str) -> dict[str, PublishRequest]:
        return {"s": PublishRequest(CompletenessWatermark("s", name, None, True), self.lanes.voided)}

    @property
    def names(self) -> list[str | None]:
        return [complete.transaction for _, complete in self.sink.published]


def test_watermark_is_published_at_intervals_and_at_the_end() -> None:
    world = World()
    for name in ("1", "2", "3"):
        world.publishing.end_commit((), world.make_requests(name))
    assert world.names == ["1"] and world.sink.published[0][0] == {"orders", "items"}
    assert world.publishing.due_in == 1.0
    world.now += 1.0
    world.publishing.end_commit((), {})
    assert world.names == ["1", "3"] and world.publishing.due_in is None
    world.publishing.end_commit((), world.make_requests("4"))
    world.publishing.finish()
    assert world.names == ["1", "3", "4"]


@pytest.mark.parametrize("at", ["before the writes are committed", "before it is due"])
def test_watermark_of_a_stopped_lane_is_not_published(at: str) -> None:
    """A lane that stops drops its writes, so the earlier watermark says too much; the next one is correct."""
    world = World()
    world.publishing.end_commit((), world.make_requests("1"))
    told, orders = world.make_requests("2"), world.lanes.find("lake.orders")
    assert orders is not None
    if at == "before it is due":
        world.publishing.end_commit((), told)
    world.lanes.pause(orders)
    world.now += 1.0
    world.publishing.end_commit((), {} if at == "before it is due" else told)
    assert world.sink.published[-1][1] == CompletenessWatermark("s", behind=("lake.orders",))
    world.now += 1.0
    world.publishing.end_commit((), world.make_requests("3"))
    assert world.names == ["1", None, "3"]


def test_nothing_is_published_for_an_abandoned_run() -> None:
    world = World()
    world.shared.abandon.set()
    world.publishing.end_commit((), world.make_requests("1"))
    world.publishing.finish()
    assert world.names == []


def test_failed_publication_is_retried() -> None:
    world = World()
    world.sink.away = 1
    world.publishing.end_commit((), world.make_requests("1"))
    assert world.names == [] and world.publishing.due_in == RETRY_SECONDS
    world.now += RETRY_SECONDS
    world.publishing.end_commit((), {})
    assert world.names == ["1"]
