"""Lanes: they do not affect each other, and resume without a gap."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from itertools import pairwise

import pyarrow as pa
import pytest
from support.application_world import BOTH, QUICK, ReplicatedTuples, await_condition, compute_rows
from support.histories_of_items import make_change, make_key_change, make_tombstone
from support.tuple_engine import TupleDecoder
from support.tuple_ports import Crash, Machine

from replicator.application.lane_runs import LaneStatus, monotonic
from replicator.application.operations.lanes import (
    Control,
    LanePosition,
    SkipMove,
    apply_skip,
    check_skip,
    describe_missing_when_stopped,
    resync_stopped,
)
from replicator.application.operations.status import StatusReporter
from replicator.domain.errors import ConfigProblem, DataLoss, ExitCode, Fatal, Retryable
from replicator.domain.position import Position, TopicPartition

T0 = TopicPartition("t", 0)
MANY = [make_change(i, "c" if i < 4 else "u", i % 4) for i in range(40)]


def control(running) -> Control:
    return Control(running.lanes, {"s": running.pipeline})


def has_applied(world, lane, offset):
    target = world.targets.get(lane)
    return target is not None and target.state is not None and target.state.position.get(T0, 0) >= offset


def test_slow_sink_does_not_delay_a_fast_one():
    world = ReplicatedTuples(list(MANY), cuts=(1,))
    running = world.start()
    entered, release = threading.Event(), threading.Event()

    def slow(writes):
        entered.set()
        assert release.wait(5)

    running.sinks["a"].before_apply = slow
    running.in_background()
    await_condition(lambda: entered.is_set() and has_applied(world, "b.items", 40))
    assert world.targets["a.items"].state is None
    release.set()
    await_condition(lambda: has_applied(world, "a.items", 40))
    assert len(running.sinks["a"].applies) <= 4  # What gathered was applied as one.
    assert running.stop() is ExitCode.OK
    assert world.targets["a.items"].rows == compute_rows(MANY)


def test_unreachable_sink_with_a_full_queue_does_not_delay_others():
    world = ReplicatedTuples(list(MANY), cuts=(1,))
    world.options = replace(world.options, handover_bytes=500)
    running = world.start()
    away = threading.Event()
    away.set()

    def refuse(writes):
        if away.is_set():
            raise Retryable("the server is away")

    running.sinks["a"].before_apply = refuse
    running.in_background()
    await_condition(lambda: has_applied(world, "b.items", 40))
    assert not running.workers["a"].queue.has_room() and running.lanes.find("a.items").shown_status is LaneStatus.RETRYING
    away.clear()
    await_condition(lambda: has_applied(world, "a.items", 40))
    assert running.stop() is ExitCode.OK
    assert world.targets["a.items"].rows == compute_rows(MANY)
    assert [r.offset for r in world.targets["raw.s"].log] == [r.offset for r in MANY]


@pytest.mark.parametrize("is_away", [False, True], ids=["busy", "source away"])
def test_key_change_stays_whole_while_its_second_half_cannot_arrive(is_away):
    """A pipeline that was busy, or whose source was away, has not waited for the half."""
    deleted, _, created = make_key_change(1, 0, 9)
    world = ReplicatedTuples([make_change(0, "c", 0), deleted])
    passed = [0.0]
    world.clock = lambda: monotonic() + passed[0]
    world.options = replace(world.options, hold_idle=50.0)
    running = world.start()
    end = running.source.end

    def refuse():
        raise Retryable("the brokers are away")

    def pass_time():
        passed[0] += 100.0

    def let_time_pass(number):
        if number == 2 and not is_away:
            running.pipeline.post(pass_time)
        if number == 2 and is_away:
            running.source.end = refuse
            passed[0] += 1.0  # The pipeline reports its positions, and sees that the source is away.
        if number == 3 and is_away:
            pass_time()
            running.source.end = end
        if number == 4:
            running.source.feed(created)

    running.source.on_batch = let_time_pass
    running.in_background()
    await_condition(lambda: has_applied(world, "a.items", created.offset + 1))
    assert running.stop() is ExitCode.OK
    assert world.letters == {} and world.targets["a.items"].rows == compute_rows(world.log)


def test_event_log_catches_up_over_offsets_without_records():
    history = [make_change(i, "c", i) for i in (*range(4), *range(100, 104))]
    world = ReplicatedTuples(history, options=replace(QUICK, catch_up_offsets=10))
    assert world.start().once() is ExitCode.OK
    del world.targets["raw.s"]
    assert world.start().once() is ExitCode.OK
    assert [r.offset for r in world.targets["raw.s"].log] == [r.offset for r in history]


def test_catch_up_into_an_unreachable_sink_does_not_block_others():
    """One batch makes several writes, and the queue holds one of them."""
    log = [make_change(0, "c", 0)]
    for i in range(8):  # The new key was touched just before it moves on: each of these moves is a segment.
        log += make_key_change(len(log), i, i + 1)
    world = ReplicatedTuples(list(log))
    world.options = replace(world.options, handover_bytes=1)
    running = world.start()
    failure: list[Exception] = [Fatal("no")]

    def refuse(writes):
        if failure:
            raise failure[0]

    running.sinks["a"].before_apply = refuse
    running.in_background()
    await_condition(lambda: has_applied(world, "b.items", len(log)))
    await_condition(lambda: running.lanes.find("a.items").status is LaneStatus.SUSPENDED)
    failure[0] = Retryable("the server is away")
    running.source.piece = len(log)
    control(running).resume("a.items").result(5)
    await_condition(lambda: running.lanes.find("a.items").shown_status is LaneStatus.RETRYING)
    running.source.feed(make_change(len(log), "c", 100))
    await_condition(lambda: has_applied(world, "b.items", len(log) + 1), 5)
    failure.clear()
    await_condition(lambda: has_applied(world, "a.items", len(log) + 1))
    assert running.stop() is ExitCode.OK
    assert world.targets["a.items"].rows == compute_rows(world.log)


def test_outage_of_a_sink_does_not_stop_lanes_of_another_that_catch_up():
    """The only running lanes are those of the sink that is away."""
    world = ReplicatedTuples(MANY[:5], cuts=(1,), lanes={"public.items": [("a", "scd1"), ("b", "scd1")]})
    world.options = replace(world.options, handover_bytes=100)
    running, away = world.start(), {"a"}
    for name in "ab":

        def refuse(writes, name=name):
            if name in away:
                raise Retryable(f"{name} is away")

        running.sinks[name].before_apply = refuse
    running.in_background()
    await_condition(lambda: has_applied(world, "b.items", 5), 5)
    assert running.lanes.find("a.items").shown_status is LaneStatus.RETRYING
    away.add("b")
    running.source.feed(*MANY[5:10])
    await_condition(lambda: not running.workers["b"].queue.has_room(), 5)
    away.remove("a")
    await_condition(lambda: has_applied(world, "a.items", 10), 5)
    assert not has_applied(world, "b.items", 10)
    away.clear()
    await_condition(lambda: has_applied(world, "b.items", 10), 5)
    assert running.stop() is ExitCode.OK
    assert world.targets["a.items"].rows == world.targets["b.items"].rows == compute_rows(MANY[:10])


def test_write_is_counted_once_while_another_lane_of_its_sink_is_retried():
    """The sink commits lane by lane, and its disk is full for one of them."""
    log = [make_change(i, "c", i) for i in range(5)]
    log += [make_change(5 + i, "c", i, table="public.other") for i in range(5)]
    world = ReplicatedTuples(log, lanes={"public.items": [("a", "scd1")], "public.other": [("a", "scd1")]}, logs=())
    running, left = world.start(), [6]
    commit_one = running.sinks["a"]._one

    def fail(write, reject):
        if write.lane.id == "a.other" and left[0]:
            left[0] -= 1
            raise Retryable("the disk is full")
        return commit_one(write, reject)

    running.sinks["a"]._one = fail
    assert running.once() is ExitCode.OK and not left[0]
    assert {run.lane.id: run.counts.applied for run in running.lanes.list_runs()} == {"a.items": 5, "a.other": 5}


def test_full_queue_stops_the_source():
    world = ReplicatedTuples(list(MANY), cuts=(1,))
    world.options = replace(world.options, handover_bytes=500)
    running = world.start()
    release = threading.Event()
    running.sinks["a"].before_apply = lambda writes: release.wait(5)
    running.in_background()
    await_condition(lambda: not running.workers["a"].queue.has_room())
    seen = len(running.machine.calls)
    await_condition(lambda: has_applied(world, "b.items", 5))
    threading.Event().wait(0.05)
    assert not has_applied(world, "b.items", 20), "the source went on although a slot is full"
    assert seen
    release.set()
    await_condition(lambda: has_applied(world, "a.items", 40) and has_applied(world, "b.items", 40))
    assert running.stop() is ExitCode.OK
    assert world.targets["a.items"].rows == compute_rows(MANY)


def test_pause_releases_a_source_that_waits_for_the_lane():
    world = ReplicatedTuples(list(MANY), cuts=(1,))
    world.options = replace(world.options, handover_bytes=300)
    running = world.start()
    away = [True]

    def refuse(writes):
        if away[0]:
            raise Retryable("away")

    running.sinks["a"].before_apply = refuse
    running.in_background()
    await_condition(lambda: not running.workers["a"].queue.has_room())
    control(running).pause("a.items")
    await_condition(lambda: has_applied(world, "b.items", 40))
    away[0] = False
    control(running).resume("a.items").result(5)
    await_condition(lambda: has_applied(world, "a.items", 40))
    assert running.stop() is ExitCode.OK
    assert world.targets["a.items"].rows == compute_rows(MANY)


@pytest.mark.parametrize("size", [1, 3, 7])
def test_suspended_lane_catches_up_after_resume_without_a_gap(size):
    log = [
        *MANY[:10],
        *[replace(r, offset=r.offset + 10, seq=r.seq + 10) for r in make_key_change(0, 3, 7)],
        make_change(13, "u", 7),
    ]
    world = ReplicatedTuples(list(log), cuts=(size,), options=replace(ReplicatedTuples([]).options, catch_up_offsets=3))
    running = world.start()
    broken = [True]

    def refuse(writes):
        if broken[0]:
            raise Fatal("no")

    running.sinks["a"].before_apply = refuse
    running.in_background()
    await_condition(lambda: has_applied(world, "b.items", 14))
    await_condition(lambda: running.lanes.find("a.items").status is LaneStatus.SUSPENDED)
    broken[0] = False
    control(running).resume("a.items").result(5)
    running.source.feed(make_change(14, "u", 1), make_change(15, "d", 2), make_tombstone(16, 2))
    await_condition(lambda: has_applied(world, "a.items", 17))
    await_condition(lambda: running.lanes.find("a.items").status is LaneStatus.RUNNING)
    running.source.feed(make_change(17, "u", 1))
    await_condition(lambda: has_applied(world, "a.items", 18))
    assert running.stop() is ExitCode.OK
    assert world.targets["a.items"].rows == compute_rows(world.log)
    assert [r.offset for r in world.targets["b.items"].log] == [r.offset for r in world.log if r.kind == "change"]


def test_resync_loads_a_lane_from_the_start():
    world = ReplicatedTuples(list(MANY))
    world.start().once()
    world.targets["a.items"].rows.clear()
    running = world.start().in_background()
    await_condition(lambda: running.lanes.find("a.items") and running.lanes.find("a.items").status is LaneStatus.RUNNING)
    control(running).resync("a.items").result(5)
    await_condition(lambda: has_applied(world, "a.items", 40) and world.targets["a.items"].rows == compute_rows(MANY))
    assert running.stop() is ExitCode.OK
    assert len(world.targets["b.items"].log) == 40


def test_resync_while_the_program_does_not_run():
    world = ReplicatedTuples(list(MANY))
    first = world.start()
    first.once()
    world.targets["a.items"].rows.clear()
    second = world.start()
    lane = world.rules("public.items").lanes[0]
    resync_stopped(second.sinks["a"], second.source, second.pipeline.context.register, lane)
    assert world.start().once() is ExitCode.OK
    assert world.targets["a.items"].rows == compute_rows(MANY)


def trim_log(running):
    """The records below 5 are gone."""
    running.source.lost = lambda position: {T0: "begins at 5"} if position.get(T0, 99) < 5 else {}
    running.source.first = {T0: 5}


def recreate_topic(running):
    """The topic was created again, and nothing was written to it."""
    running.world.log.clear()
    running.source.first = {T0: 0}


def read_from_now_on(running):
    """`start_from: latest`."""
    running.source.first = {T0: 40}


@pytest.mark.parametrize("change", [trim_log, recreate_topic, read_from_now_on])
@pytest.mark.parametrize("lane", ["a.items", "raw.s"])
def test_resync_is_refused_if_rows_would_be_missing(change, lane):
    world = ReplicatedTuples(list(MANY), has_backfills=True)
    world.start().once()
    before = {name: dict(target.rows) or list(target.log) for name, target in world.targets.items()}
    running = world.start().in_background()
    await_condition(lambda: running.lanes.find(lane) and running.lanes.find(lane).status is LaneStatus.RUNNING)
    change(running)
    with pytest.raises(DataLoss, match=rf"resync {lane} --accept-missing") as refused:
        control(running).resync(lane).result(5)
    assert ("`replicator backfill public.items`" in str(refused.value)) == (lane == "a.items")
    assert running.lanes.find(lane).status is LaneStatus.RUNNING and running.stop() is ExitCode.OK
    place, of_lane = running.pipeline.context, running.lanes.find(lane).lane
    assert describe_missing_when_stopped(running.source, place.register, of_lane)
    assert {name: dict(target.rows) or list(target.log) for name, target in world.targets.items()} == before


def test_lane_with_deleted_records_is_suspended_until_a_skip():
    world = ReplicatedTuples(list(MANY[:10]), has_backfills=True)
    world.start().once()
    world.log = world.log[:0] + MANY[:30]
    behind = world.targets["a.items"]
    behind.state = replace(behind.state, position=Position({T0: 5}))

    def lose(running):
        running.source.lost = lambda position: {T0: "begins at 8"} if position.get(T0, 99) < 8 else {}
        running.source.first = {T0: 8}

    running = world.start()
    lose(running)
    assert running.once() is ExitCode.DATA_LOSS
    problem = running.lanes.find("a.items").problem
    assert "replicator lanes resync a.items" in problem.next_step
    assert "replicator lanes skip a.items --until t:0:8`" in problem.next_step
    assert "replicator backfill public.items`" in problem.next_step
    assert has_applied(world, "b.items", 30) and not has_applied(world, "a.items", 8)

    running = world.start()
    lose(running)
    running.in_background()
    await_condition(lambda: has_applied(world, "b.items", 30) and running.lanes.find("a.items") is not None)
    await_condition(lambda: running.lanes.find("a.items").status is LaneStatus.SUSPENDED)
    control(running).skip("a.items", None).result(5)
    await_condition(lambda: has_applied(world, "a.items", 30))
    assert running.stop() is ExitCode.OK


def test_unknown_lane_is_refused_with_the_list_of_lanes():
    running = ReplicatedTuples(MANY).start()
    running.once()
    with pytest.raises(ConfigProblem, match=r"a\.items, b\.items"):
        control(running).pause("nope")


def test_new_lane_is_loaded_from_the_start():
    world = ReplicatedTuples(list(MANY), cuts=(7,))
    world.start().once()
    world.lanes["public.items"] = [*world.lanes["public.items"], ("c", "append")]
    running = world.start()
    assert running.once() is ExitCode.OK
    assert [r.offset for r in world.targets["c.items"].log] == list(range(40))
    assert len(world.targets["b.items"].log) == 40


def test_table_configured_later_is_loaded_from_the_start():
    log = [make_change(0, "c", 1), make_change(0, "c", 1, topic="u", table="public.late")]
    world = ReplicatedTuples(log)
    running = world.start()
    assert running.once() is ExitCode.OK
    assert running.telemetry.totals["ignored.unconfigured"] == 1
    world.lanes["public.late"] = [("b", "append")]
    assert world.start().once() is ExitCode.OK
    assert len(world.targets["b.late"].log) == 1


def test_lane_without_a_position_in_a_partition_starts_like_the_others():
    world = ReplicatedTuples(list(MANY[:5]))
    world.start().once()
    world.log.extend(make_change(i, "c", 10 + i, partition=1, seq=100 + i) for i in range(3))
    running = world.start()

    def refuse(writes):
        raise Fatal("no")

    running.sinks["a"].before_apply = refuse
    assert running.once() is ExitCode.RUNTIME
    assert world.start().once() is ExitCode.OK
    assert world.targets["a.items"].rows == compute_rows(world.log)


def test_lost_register_loses_and_doubles_nothing():
    world = ReplicatedTuples(list(MANY), cuts=(7,))
    world.start().once()
    world.register.clear()
    world.log.append(make_change(40, "u", 1))
    assert world.start().once() is ExitCode.OK
    assert [r.offset for r in world.targets["b.items"].log] == list(range(41))
    assert [r.offset for r in world.targets["raw.s"].log] == list(range(41))


def test_sink_unreachable_at_the_start_does_not_delay_others():
    world = ReplicatedTuples(list(MANY), cuts=(7,))
    world.start(Machine()).once()
    world.log.extend(make_change(i, "u", 1) for i in range(40, 50))
    world.options = replace(world.options, state_patience=0.01)
    running = world.start()
    away, ask = [True], running.sinks["a"].state

    def state(lane):
        if away[0]:
            raise Retryable("away")
        return ask(lane)

    running.sinks["a"].state = state
    running.in_background()
    await_condition(lambda: has_applied(world, "b.items", 50))
    assert running.lanes.find("a.items").shown_status is LaneStatus.RETRYING
    away[0] = False
    await_condition(lambda: has_applied(world, "a.items", 50))
    assert running.stop() is ExitCode.OK
    assert world.targets["a.items"].rows == compute_rows(world.log)


def test_event_log_skips_topics_of_tables_without_it():
    log = [make_change(0, "c", 1), make_change(0, "c", 1, topic="u", table="public.quiet"), make_change(1, "u", 1)]
    world = ReplicatedTuples(log, lanes={"public.items": [("b", "append")], "public.quiet": [("b", "append")]})
    world.event_logs = {"public.quiet": frozenset()}
    assert world.start().once() is ExitCode.OK
    assert [(r.topic, r.offset) for r in world.targets["raw.s"].log] == [("t", 0), ("t", 1)]
    assert len(world.targets["b.quiet"].log) == 1
    assert world.start().once() is ExitCode.OK


def test_event_log_added_to_a_topic_gets_all_of_it():
    quiet = {"topic": "u", "table": "public.quiet"}
    lanes = {"public.items": [("b", "append")], "public.quiet": [("b", "append")]}
    world = ReplicatedTuples(
        [make_change(i, "c", i, **quiet) for i in range(2)], lanes=lanes, event_logs={"public.quiet": frozenset()}
    )
    assert world.start().once() is ExitCode.OK
    assert "raw.s" not in world.targets
    world.log.append(make_change(2, "c", 1, topic="u"))
    assert world.start().once() is ExitCode.OK
    assert [(r.topic, r.offset) for r in world.targets["raw.s"].log] == [("u", 0), ("u", 1), ("u", 2)]


def test_two_tables_with_one_target_keep_the_first():
    log = [make_change(0, "c", 1), make_change(0, "c", 1, topic="u", table="audit.items")]
    world = ReplicatedTuples(log, lanes={"public.items": [("b", "append")], "audit.items": [("b", "append")]})
    running = world.start()
    assert running.once() is ExitCode.CONFIG
    assert len(world.targets["b.items"].log) == 1
    assert "into" in next(r for r in running.lanes.list_runs() if r.status is LaneStatus.SUSPENDED).problem.next_step


def test_first_of_two_tables_keeps_its_target_after_a_restart():
    entries = [("b", "append")]
    first = {"table": "public.items"}
    other = {"topic": "u", "table": "audit.items"}
    world = ReplicatedTuples([make_change(0, "c", 1, **first)], lanes={"public.items": entries, "audit.items": entries})
    world.start().once()
    for n in range(2):
        world.log += [make_change(n, "c", 7, **other), make_change(n + 1, "c", n + 2, **first)]
        seen = world.register["s"]
        world.register["s"] = replace(seen, topics=dict(sorted(seen.topics.items())))
        running = world.start()
        assert running.once() is ExitCode.CONFIG
        assert {r.topic for r in world.targets["b.items"].log} == {"t"}
        assert running.lanes.find("b.items").lane.table == "public.items"
    assert [r.offset for r in world.targets["b.items"].log] == [0, 1, 2]


def test_report_has_the_position_of_every_lane():
    world = ReplicatedTuples(list(MANY))
    running = world.start()
    running.once()
    report = StatusReporter([running.pipeline], running.shared).report().to_dict()
    lane = next(entry for entry in report["lanes"] if entry["id"] == "a.items")
    assert lane["status"] == "running" and lane["lag_records"] == 0 and lane["lag_seconds"] == 0.0
    assert sum(lane["counts"].values()) == 40 and lane["position"] == {"t": {"0": 40}}
    assert report["sources"][0]["records"] == 40 and report["sources"][0]["lag_records"] == 0


@pytest.mark.parametrize("at", range(1, 30))
def test_kill_during_a_catch_up(at):
    world = ReplicatedTuples(list(MANY[:9]), cuts=(4,), options=replace(ReplicatedTuples([]).options, catch_up_offsets=2))
    world.start().once()
    world.lanes["public.items"] = [*world.lanes["public.items"], ("c", "append")]
    for after in (False, True):
        with contextlib.suppress(Crash):
            world.start(Machine(at, after=after)).once()
    assert world.start().once() is ExitCode.OK
    assert [r.offset for r in world.targets["c.items"].log] == list(range(9))


def test_catch_up_over_sparse_offsets():
    """Reads become longer and longer, and have the usual length again when records are dense."""
    far = [replace(make_change(i, "c", i), offset=i << 34) for i in range(6)]
    near = [replace(make_change(6 + i, "u", i % 6), offset=(6 << 34) + i) for i in range(60)]
    world = ReplicatedTuples([*far, *near], cuts=(5,), options=replace(ReplicatedTuples([]).options, catch_up_offsets=10))
    world.start().once()
    world.lanes["public.items"] = [*world.lanes["public.items"], ("c", "append")]
    running = world.start()
    assert running.once() is ExitCode.OK
    assert [r.offset for r in world.targets["c.items"].log] == [r.offset for r in world.log]
    reads = [start[T0] for start, _ in running.source.reads]
    assert len(reads) < 120
    many = [(start, later) for start, later in pairwise(reads) if start >= 6 << 34]
    assert many and all(later - start <= 15 for start, later in many)


def test_changed_type_is_learnt_again_when_lanes_are_reloaded():
    """Without a restart; all records of the topic have the new schema by then."""
    old, new = make_change(0, "c", 1), [make_change(i, "c", i, version=1) for i in (1, 2)]
    world = ReplicatedTuples([old], cuts=(1,), decoder=TupleDecoder(types={(1, "name"): pa.binary()}))
    running = world.start().in_background()
    await_condition(lambda: has_applied(world, "a.items", 1))
    running.source.feed(*new)
    await_condition(lambda: all(running.lanes.find(lane).status is LaneStatus.SUSPENDED for lane in ("a.items", "b.items")))
    running.source.first = {T0: 1}  # What had the old schema is gone.
    for lane in ("a.items", "b.items"):
        control(running).resync(lane, accept_missing=True).result(5)
    await_condition(lambda: has_applied(world, "a.items", 3) and has_applied(world, "b.items", 3))
    assert set(world.targets["a.items"].rows) == {1, 2}
    assert running.stop() is ExitCode.OK


OTHER = {"topic": "u", "table": "public.other"}


@pytest.mark.parametrize(
    ("to", "words"),
    [
        ({TopicPartition("typo", 0): 7}, r"reads no partition typo\[0\]. Its partitions are: t:0\."),
        ({TopicPartition("t", 7): 7}, r"reads no partition t\[7\]"),
        ({TopicPartition("u", 0): 1}, r"reads no partition u\[0\]"),
        ({T0: -1}, "-1 is below 40"),
        ({T0: 39}, r"39 is below 40.*lanes resync a\.items"),
        ({T0: 99_999}, r"99999 is above the end of t\[0\].*t:0:40"),
        ({T0: 2**63}, "above the end"),
        (None, "it has lost no records that could be skipped"),
    ],
)
def test_invalid_skip_changes_nothing(to, words):
    world = ReplicatedTuples(
        [*MANY, make_change(0, "c", 1, **OTHER)], lanes={"public.items": [*BOTH], "public.other": [("b", "append")]}
    )
    running = world.start().in_background()
    await_condition(lambda: has_applied(world, "a.items", 40) and running.lanes.find("a.items").status is LaneStatus.RUNNING)
    before, generation = world.targets["a.items"].state, running.lanes.find("a.items").generation
    with pytest.raises(ConfigProblem, match=words):
        control(running).skip("a.items", None if to is None else Position(to)).result(5)
    assert world.targets["a.items"].state == before
    assert running.lanes.find("a.items").status is LaneStatus.RUNNING
    assert running.lanes.find("a.items").generation == generation
    assert running.stop() is ExitCode.OK


def test_skip_to_a_position_that_the_source_cannot_read_changes_nothing():
    world = ReplicatedTuples(list(MANY))
    world.start().once()
    running = world.start()
    running.source.lost = lambda position: {T0: "begins at 50."} if position.get(T0, 99) < 50 else {}
    state, lane = world.targets["a.items"].state, world.rules("public.items").lanes[0]
    at = LanePosition.from_state(lane, state, Position(), lambda p: True)
    with pytest.raises(ConfigProblem, match=r"could not continue there\. begins at 50\."):
        check_skip(running.source, at, Position({T0: 30}))


def test_changes_applied_since_the_check_of_a_skip_stay():
    world = ReplicatedTuples(list(MANY))
    world.start().once()
    running, lane = world.start(), world.rules("public.items").lanes[0]
    assert apply_skip(running.sinks["a"], lane, SkipMove(Position({T0: 30}), frozenset())).position == Position({T0: 40})
    assert apply_skip(running.sinks["a"], lane, SkipMove(Position({T0: 30}), frozenset({T0}))).position == Position({T0: 30})


def test_skip_clears_event_times_of_a_deleted_log():
    world, t1 = ReplicatedTuples(list(MANY)), TopicPartition("t", 1)
    world.start().once()
    running, lane = world.start(), world.rules("public.items").lanes[0]
    target = world.targets["a.items"]
    target.state = replace(target.state, max_event_time={T0: 5, t1: 7})
    assert apply_skip(running.sinks["a"], lane, SkipMove(Position({T0: 41}), frozenset())).max_event_time == {T0: 5, t1: 7}
    assert apply_skip(running.sinks["a"], lane, SkipMove(Position({T0: 0}), frozenset({T0}))).max_event_time == {t1: 7}


def test_command_fails_with_the_reason_if_the_lane_does_not_continue():
    world = ReplicatedTuples(list(MANY))
    running = world.start().in_background()
    await_condition(lambda: has_applied(world, "a.items", 40))

    def refuse(_lane, _state=None):
        raise Fatal("it was removed")

    running.sinks["a"].skip = refuse
    with pytest.raises(Fatal, match="it was removed"):
        control(running).skip("a.items", Position({T0: 40})).result(5)
    assert running.lanes.find("a.items").status is LaneStatus.SUSPENDED
    running.sinks["a"].state = refuse
    with pytest.raises(Fatal, match="it was removed"):
        control(running).resume("a.items").result(5)
    assert running.stop() is ExitCode.OK


def test_changed_policy_suspends_the_lane_until_a_resync():
    world = ReplicatedTuples(list(MANY), lanes={"public.items": [("a", "scd1"), ("b", "scd1")]})
    world.start().once()
    world.log += [make_change(40, "c", 99)]
    world.lanes["public.items"] = [("a", "scd1"), ("b", "append")]
    running = world.start()
    assert running.once() is ExitCode.CONFIG
    problem = running.lanes.find("b.items").problem
    assert (
        problem.sentence == "Lane b.items contains rows written under 'scd1 by id', but the configuration is now 'append'."
    )
    assert "replicator lanes resync b.items" in problem.next_step and "replicator.yaml:7" in problem.next_step
    assert has_applied(world, "a.items", 41) and not has_applied(world, "b.items", 41)
    resync_stopped(running.sinks["b"], running.source, running.pipeline.context.register, running.lanes.find("b.items").lane)
    assert world.start().once() is ExitCode.OK
    assert [r.offset for r in world.targets["b.items"].log] == list(range(41))


def test_lane_with_the_target_of_another_table_takes_no_commands():
    """The second table was read before the config gave it the same target, and is first by name."""
    log = [make_change(i, "c", i, topic="u", table="aside.items") for i in range(5)] + MANY
    world = ReplicatedTuples(log, lanes={"public.items": [("a", "scd1")]})
    assert world.start().once() is ExitCode.OK
    world.lanes["aside.items"] = [("a", "scd1")]
    assert list(world.register["s"].topics) == ["aside.items", "public.items"]
    running = world.start()
    assert running.once() is ExitCode.CONFIG
    refused = running.lanes.find("a.items (aside.items)")
    assert refused.status is LaneStatus.SUSPENDED and running.lanes.find("a.items").lane.table == "public.items"
    assert world.targets["a.items"].rows == compute_rows(MANY)
    commanded = control(running)
    for command in (commanded.pause, commanded.resume, commanded.resync, lambda name: commanded.skip(name, None)):
        with pytest.raises(ConfigProblem, match=r"aside\.items both go to items in sink a"):
            command("a.items (aside.items)")
