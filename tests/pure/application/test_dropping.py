"""Drops of lanes while the program does not run: what the register keeps, and where a new lane starts."""

from __future__ import annotations

import pytest
from support.application_world import ReplicatedTuples, compute_rows
from support.histories_of_items import make_change
from support.tuple_ports import Crash, Machine
from test_source_beginnings import latest

from replicator.application.operations.drop import list_artifacts, remove_lane
from replicator.domain.errors import ExitCode, Fatal
from replicator.domain.position import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
MANY = [make_change(i, "c" if i < 4 else "u", i % 4) for i in range(40)]


def drop_after_stop(world, lane_id, machine=None):
    """The program is stopped, and a lane dropped; what was kept of it."""
    running = world.start(machine)
    sink, register = running.sinks[lane_id.partition(".")[0]], running.pipeline.context.register
    lane = next(lane for table in world.lanes for lane in world.rules(table).lanes if lane.id == lane_id)
    kept = list_artifacts(sink, register, ["s", "other"], lane)
    remove_lane(sink, register, ["s", "other"], lane)
    return kept


def test_dropped_lane_is_loaded_from_the_start():
    world = ReplicatedTuples(list(MANY))
    world.start().once()
    assert [one.what for one in drop_after_stop(world, "a.items")] == ["table", "register entry"]
    assert "a.items" not in world.targets and "a.items" not in world.register["s"].beginnings
    assert drop_after_stop(world, "a.items") == []
    others = world.register["s"].beginnings
    assert world.start().once() is ExitCode.OK
    assert world.targets["a.items"].rows == compute_rows(MANY)
    assert len(world.targets["b.items"].log) == 40 and others.items() <= world.register["s"].beginnings.items()


def test_dropped_table_is_complete_when_configured_again():
    world = ReplicatedTuples(list(MANY))
    world.start().once()
    drop_after_stop(world, "a.items")
    both, world.lanes = world.lanes, {"public.items": [("b", "append")]}
    world.start().once()
    assert "a.items" not in world.targets
    world.lanes = both
    world.start().once()
    assert world.targets["a.items"].rows == compute_rows(MANY)


def half_applied():
    """A lane that has applied something of one partition and nothing of the other, which the others have passed; what the
    source's `start_from` says lies beyond that."""
    world = ReplicatedTuples([make_change(0, "c", 1)], lanes={"public.items": [("b", "append")]})
    latest(world)
    world.log += [make_change(1, "c", 2)]
    latest(world)
    world.log += [make_change(0, "c", 3, partition=1)]
    running = world.start()

    def refuse(writes):
        raise Fatal("no")

    running.sinks["b"].before_apply = refuse
    running.once()
    assert [r.key for r in world.targets["b.items"].log] == [2] and 3 in [r.key for r in world.targets["raw.s"].log]
    return world


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("call", range(1, 10))
def test_killed_drop_skips_no_record(call, after):
    """The lane has everything, or it is new and starts at `start_from`."""
    world, machine = half_applied(), Machine(crash_at=call, after=after)
    try:
        drop_after_stop(world, "b.items", machine)
    except Crash:
        pass
    else:
        assert call == 9
    latest(world)
    kept = world.targets["b.items"].log if "b.items" in world.targets else []
    assert [r.key for r in kept] in ([2, 3], []), machine.calls
