"""Where a source began: what comes while nobody looks is not before the start."""

from __future__ import annotations

import pytest
from application_world import World
from histories_of_items import change

from replicator.domain.errors import ExitCode
from replicator.domain.position import TopicPartition

LANES = {table: [("b", "append")] for table in ("public.items", "public.q")}


def latest(world):
    """One start of a source with `start_from: latest`, up to the end of the log."""
    running = world.start()
    running.source.first = {at: max(r.offset for r in world.log if r.at == at) + 1 for at in {r.at for r in world.log}}
    assert running.once() is ExitCode.OK


def offsets(world, lane, topic):
    return [r.offset for r in world.targets[lane].log if r.topic == topic] if lane in world.targets else []


@pytest.mark.parametrize("logs", [(), ("raw",)], ids=["tables", "with_event_log"])
def test_a_topic_that_was_quiet_at_first(logs):
    world = World([change(0, "c", 1), change(0, "c", 0, topic="q", table="public.q")], lanes=LANES, logs=logs)
    latest(world)
    world.log += [change(1, "c", 2)]
    latest(world)
    world.log += [change(1, "c", 1, topic="q", table="public.q")]
    latest(world)
    world.log += [change(2, "c", 2, topic="q", table="public.q")]
    latest(world)
    assert offsets(world, "b.items", "t") == [1]
    assert offsets(world, "b.q", "q") == [1, 2]


@pytest.mark.parametrize("logs", [(), ("raw",)], ids=["tables", "with_event_log"])
def test_a_topic_that_appears_while_nobody_looks(logs):
    world = World([change(0, "c", 1)], lanes=LANES, logs=logs)
    latest(world)
    world.log += [change(1, "c", 2)]
    latest(world)
    world.log += [change(0, "c", 0, topic="q", table="public.q"), change(1, "c", 1, topic="q", table="public.q")]
    latest(world)
    latest(world)
    assert offsets(world, "b.q", "q") == [0, 1]
    if logs:
        assert offsets(world, "raw.s", "q") == [0, 1]
    assert dict(world.register["s"].began) == {TopicPartition("t", 0): 1, TopicPartition("q", 0): 0}


def test_a_source_without_topics_at_first():
    world = World([], lanes=LANES)
    latest(world)
    world.log += [change(0, "c", 1), change(1, "c", 2)]
    latest(world)
    assert offsets(world, "b.items", "t") == [0, 1]
    assert offsets(world, "raw.s", "t") == [0, 1]
