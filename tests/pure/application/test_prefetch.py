"""Prefetched batches: all of them are applied, in their order."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from replicator.application.stream.batch_decoder import prefetch_batches
from replicator.domain.errors import Retryable
from replicator.domain.position import Position, Span
from replicator.ports.engine import Prefetch
from replicator.ports.frames import Batch

NOWHERE = Span(Position(), Position())


class Engine:
    def __init__(self, ahead: int) -> None:
        self.stops, self.begun = 0, []
        self.prefetch = Prefetch(ahead, self.begin, self.stop_workers) if ahead else None

    def begin(self, raw: Any, decoder: Any) -> None:
        self.begun.append(raw)

    def stop_workers(self) -> None:
        self.stops += 1


class World:
    def __init__(self, ahead: int) -> None:
        self.engine, self.stop, self.did = Engine(ahead), threading.Event(), []
        self.fails_at: Any = None
        features = SimpleNamespace(prefetch=self.engine.prefetch)
        self.shared: Any = SimpleNamespace(engine=SimpleNamespace(features=features), stop=self.stop)

    def looking(self, *, once: bool = True) -> Any:
        packing: Any = SimpleNamespace(begin=lambda batch: self.did.append(("begin", batch.frame)))
        decoder: Any = object()
        return prefetch_batches(self.shared, decoder, packing, self.apply, once=once)

    def apply(self, batch: Batch[Any]) -> None:
        if batch.frame == self.fails_at:
            raise RuntimeError
        self.did.append(("apply", batch.frame))

    def list_frames(self, kind: str) -> list[Any]:
        return [frame for what, frame in self.did if what == kind]


def batch(frame: Any, records: int = 1) -> Batch[Any]:
    return Batch(frame, NOWHERE, records, 0)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_each_batch_is_started_the_given_number_before_its_turn(depth: int) -> None:
    world = World(depth)
    with world.looking() as take:
        for number in range(9):
            take(batch(number))
            assert world.list_frames("apply") == list(range(number + 1 - depth))
    assert world.list_frames("begin") == world.list_frames("apply") == world.engine.begun == list(range(9))
    assert world.did.index(("begin", depth)) < world.did.index(("apply", 0))
    assert world.engine.stops == 1


def test_batch_without_records_has_its_turn_at_once() -> None:
    world = World(3)
    with world.looking() as take:
        take(batch("a"))
        take(batch("idle", records=0))
        assert world.list_frames("apply") == ["a", "idle"] and world.list_frames("begin") == ["a"]


@pytest.mark.parametrize("ahead", [2, 5])
def test_batches_before_an_error_of_the_source_are_applied(ahead: int) -> None:
    """Otherwise a source that fails after every second batch would never advance."""
    world = World(ahead)
    with pytest.raises(Retryable), world.looking() as take:
        take_batches(take, 3)
        raise Retryable("away")
    assert world.list_frames("apply") == [0, 1, 2] and world.engine.stops == 1


def test_batches_after_an_error_of_the_pipeline_are_not_applied() -> None:
    world = World(2)
    world.fails_at = 1
    with pytest.raises(RuntimeError), world.looking() as take:
        take_batches(take, 9)
    assert world.list_frames("apply") == [0] and world.list_frames("begin") == [0, 1, 2, 3] and world.engine.stops == 1


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_prefetched_batches_are_not_applied_if_the_run_ends_early(how: str) -> None:
    world = World(2)
    with pytest.raises(KeyboardInterrupt) if how == "kill" else nullcontext(), world.looking() as take:
        take_batches(take, 4)
        if how == "kill":
            raise KeyboardInterrupt
        world.stop.set()
    assert world.list_frames("apply") == [0, 1] and world.engine.stops == 1


def take_batches(take: Any, count: int) -> None:
    for number in range(count):
        take(batch(number))


@pytest.mark.parametrize(("ahead", "once"), [(0, True), (2, False)])
def test_no_batch_is_delayed_by_prefetching(ahead: int, once: bool) -> None:
    world = World(ahead)
    with world.looking(once=once) as take:
        take(batch("a"))
        assert world.did == [("apply", "a")]
    assert world.engine.stops == 0
