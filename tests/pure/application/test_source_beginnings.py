"""The start position of a source: records that arrive while the program is stopped are not skipped."""

from __future__ import annotations

import pytest
from support.application_world import ReplicatedTuples
from support.histories_of_items import make_change
from support.tuple_engine import TupleRecord

from replicator.application.operations.lanes import resync_stopped
from replicator.domain.errors import ExitCode
from replicator.domain.position import TopicPartition

T0 = TopicPartition("t", 0)
LANES = {table: [("b", "append")] for table in ("public.items", "public.q")}


def latest(world):
    """One start of a source with `start_from: latest`, up to the end of the log."""
    running = world.start()
    running.source.first = {at: max(r.offset for r in world.log if r.at == at) + 1 for at in {r.at for r in world.log}}
    assert running.once() is ExitCode.OK


def offsets(world, lane, topic):
    return [r.offset for r in world.targets[lane].log if r.topic == topic] if lane in world.targets else []


@pytest.mark.parametrize("logs", [(), ("raw",)], ids=["tables", "with_event_log"])
def test_topic_without_records_at_first(logs):
    world = ReplicatedTuples(
        [make_change(0, "c", 1), make_change(0, "c", 0, topic="q", table="public.q")], lanes=LANES, logs=logs
    )
    latest(world)
    world.log += [make_change(1, "c", 2)]
    latest(world)
    world.log += [make_change(1, "c", 1, topic="q", table="public.q")]
    latest(world)
    world.log += [make_change(2, "c", 2, topic="q", table="public.q")]
    latest(world)
    assert offsets(world, "b.items", "t") == [1]
    assert offsets(world, "b.q", "q") == [1, 2]


@pytest.mark.parametrize("logs", [(), ("raw",)], ids=["tables", "with_event_log"])
def test_topic_created_while_the_program_is_stopped(logs):
    world = ReplicatedTuples([make_change(0, "c", 1)], lanes=LANES, logs=logs)
    latest(world)
    world.log += [make_change(1, "c", 2)]
    latest(world)
    world.log += [make_change(0, "c", 0, topic="q", table="public.q"), make_change(1, "c", 1, topic="q", table="public.q")]
    latest(world)
    latest(world)
    assert offsets(world, "b.q", "q") == [0, 1]
    if logs:
        assert offsets(world, "raw.s", "q") == [0, 1]
    assert dict(world.register["s"].began) == {TopicPartition("t", 0): 1, TopicPartition("q", 0): 0}


def test_source_without_topics_at_first():
    world = ReplicatedTuples([], lanes=LANES)
    latest(world)
    world.log += [make_change(0, "c", 1), make_change(1, "c", 2)]
    latest(world)
    assert offsets(world, "b.items", "t") == [0, 1]
    assert offsets(world, "raw.s", "t") == [0, 1]


@pytest.mark.parametrize("logs", [(), ("raw",)], ids=["tables", "with_event_log"])
def test_partition_that_ends_below_its_start(logs):
    """At first it had only rejects, of no known table, and then other files."""
    world = ReplicatedTuples([TupleRecord("t", 0, i, kind="bad_route", key=i) for i in (18, 19)], lanes=LANES, logs=logs)
    assert world.start().once() is ExitCode.OK
    assert dict(world.register["s"].began) == {T0: 18}
    world.log[:] = [make_change(i, "c", i) for i in range(14)]

    def other_files():
        running = world.start()
        running.source.lost = lambda at: {T0: "lies above the end"} if at.get(T0, 0) > len(world.log) else {}
        return running

    running = other_files()
    assert running.once() is (ExitCode.DATA_LOSS if logs else ExitCode.OK)
    assert offsets(world, "b.items", "t") == list(range(14))
    if logs:
        lane = running.lanes.find("raw.s").lane
        resync_stopped(running.sinks["raw"], running.source, running.pipeline.context.register, lane)
        assert other_files().once() is ExitCode.OK
        assert offsets(world, "raw.s", "t") == list(range(14))
