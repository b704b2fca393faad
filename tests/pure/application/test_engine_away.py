"""An engine that fails once, at each of its calls: no record is lost or applied twice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.application_world import ReplicatedTuples, RunningProgram, await_condition, compute_rows
from support.budget import select_every_nth
from support.histories_of_items import make_change, make_key_change
from support.tuple_engine import TupleEngine, TupleFrames

from replicator.application.lane_runs import LaneStatus
from replicator.application.operations.lanes import Control
from replicator.application.stream.source_progress import SourceProgress
from replicator.domain.errors import Retryable
from replicator.domain.position import TopicPartition

DECODING = ("route", "sample", "decode")
"""Before anything has moved; after that some records are read again, as after a restart."""
METHODS = (*DECODING, "concat", "find_open_key_changes", "ends", "segments", "fold", "log", "count")
TABLES = ("public.items", "public.other")
REJECTED = (7, 17)
KEYS = 5


def records(start: int, end: int):
    """Of two tables, turn by turn; key changes that batches cut in two, records of no table, and two that are rejected."""
    out = []
    while (offset := start + len(out)) < end:
        if offset % 10 == 3:
            out += make_key_change(offset, (offset // 10, "a"), (offset // 10, "b"))
        elif offset in REJECTED:
            out.append(replace(make_change(offset, "c", offset), kind="bad_decode"))
        elif offset % 10 == 2:
            out.append(make_change(offset, "c", (offset // 10, "a")))
        elif offset % 10 == 9:
            out.append(make_change(offset, "c", 0, table="private.notes"))
        else:
            out.append(make_change(offset, "c", offset % KEYS, table=TABLES[offset % 2]))
    return out


class FailsOnce:
    """Raises Retryable at the call of that number of a method; `has_failed` says whether there was one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, method: str, number: int) -> None:
        self.left, self.has_failed = number, False
        owner = TupleEngine if hasattr(TupleEngine, method) else TupleFrames
        real = getattr(owner, method)

        def call(engine, *arguments):
            self.left -= 1
            if self.left == 0:
                self.has_failed = True
                raise Retryable("an executor was lost")
            return real(engine, *arguments)

        monkeypatch.setattr(owner, method, call)


def made_world() -> ReplicatedTuples:
    return ReplicatedTuples(records(0, 20), cuts=(4, 5), lanes={table: [("a", "scd1"), ("b", "append")] for table in TABLES})


def assert_right(world: ReplicatedTuples, running: RunningProgram) -> None:
    for table, name in zip(TABLES, ("items", "other"), strict=True):
        assert world.targets[f"a.{name}"].rows == compute_rows(world.log, table)
        of_table = [r for r in world.log if r.table == table and r.kind == "change"]
        assert [r.offset for r in world.targets[f"b.{name}"].log] == [r.offset for r in of_table]
    assert [r.offset for r in world.targets["raw.s"].log] == [r.offset for r in world.log]
    assert running.shared.rejects.total == sum(r.kind == "bad_decode" for r in world.log)
    assert {run.status for run in running.lanes.list_runs()} == {LaneStatus.RUNNING}


def assert_counted_once(world: ReplicatedTuples, flow: SourceProgress) -> None:
    ignored = sum(r.kind == "tombstone" or r.table == "private.notes" for r in world.log)
    assert (flow.records, flow.ignored.total()) == (len(world.log), ignored)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_stream_continues_after_a_failing_call(monkeypatch: pytest.MonkeyPatch, method: str):
    for number in range(1, 1000):
        with monkeypatch.context() as patches:
            world, fails = made_world(), FailsOnce(patches, method, number)
            running = world.start()
            assert running.once() == 0
            assert_right(world, running)
            if method in DECODING:
                assert_counted_once(world, running.pipeline.progress)
            if not fails.has_failed:
                assert number > 1, "it is never called"
                return


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_lane_catches_up_after_a_failing_call(monkeypatch: pytest.MonkeyPatch, method: str):
    for number in select_every_nth(3, range(1, 30)):
        world = made_world()
        running = world.start().in_background()
        control = Control(running.lanes, {"s": running.pipeline})
        await_all(world, 20, "a.items", "raw.s")
        control.pause("a.items")
        control.pause("raw.s")
        running.source.feed(*records(20, 40))
        await_all(world, 40, "b.items", "b.other")
        with monkeypatch.context() as patches:
            fails = FailsOnce(patches, method, number)
            control.resume("a.items").result(5)
            control.resume("raw.s").result(5)
            await_all(world, 40, "a.items", "raw.s")
            await_running(running)
        assert running.stop() == 0
        assert_right(world, running)
        if not fails.has_failed:
            return


def await_running(running: RunningProgram) -> None:
    await_condition(lambda: {run.status for run in running.lanes.list_runs()} == {LaneStatus.RUNNING})


def await_all(world: ReplicatedTuples, offset: int, *lanes: str) -> None:
    at = TopicPartition("t", 0)

    def is_there(lane: str) -> bool:
        target = world.targets.get(lane)
        return target is not None and target.state is not None and target.state.position.get(at, 0) >= offset

    await_condition(lambda: all(map(is_there, lanes)))
