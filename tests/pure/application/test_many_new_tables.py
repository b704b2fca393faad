"""Many new tables at once: they do not delay known tables."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace

import pytest
from support.application_world import QUICK, ReplicatedTuples, compute_rows
from support.histories_of_items import make_change
from support.tuple_ports import Crash, Machine

from replicator.application.delivery import delivery, worker
from replicator.application.stream.source_progress import SourceProgress
from replicator.domain.position import Position, TopicPartition

NEW = [f"public.n{i}" for i in range(40)]
LIVE = "public.live"


def live(offset):
    return make_change(offset, "c", offset, topic="live", table=LIVE)


def new_tables():
    return [make_change(0, "c", 1, topic=table, table=table) for table in NEW]


def world(**options) -> ReplicatedTuples:
    """One sink; the live table is known before the others come, each with a record, in one batch with some of its own."""
    records = [live(0), *new_tables(), *(live(i) for i in range(1, 20))]
    lanes = {table: [("a", "scd1")] for table in (LIVE, *NEW)}
    return ReplicatedTuples(records, cuts=(1, len(NEW), 1), lanes=lanes, logs=(), options=replace(QUICK, **options))


def check(done: ReplicatedTuples) -> None:
    for table in (LIVE, *NEW):
        assert done.targets[f"a.{table.removeprefix('public.')}"].rows == compute_rows(done.log, table)


def slowly(monkeypatch, sink, name):
    """Each such call of the sink takes its time."""
    known = getattr(sink, name)

    def slow(*args):
        time.sleep(0.01)
        return known(*args)

    monkeypatch.setattr(sink, name, slow)


def first(applies, lane):
    return next(i for i, lanes in enumerate(applies) if lane in lanes)


def test_new_targets_are_created_one_at_a_time(monkeypatch):
    monkeypatch.setattr(delivery, "NEW_LANE_SECONDS", 0.02)
    shop = world()
    running = shop.start()
    slowly(monkeypatch, running.sinks["a"], "prepare")
    assert running.once() == 0
    check(shop)
    applies = running.sinks["a"].applies
    assert max(map(len, applies)) == 1
    news = [first(applies, f"a.{table.removeprefix('public.')}") for table in NEW]
    assert any(min(news) < i < max(news) for i, lanes in enumerate(applies) if lanes == ["a.live"])


def test_writes_run_between_state_reads_of_new_lanes(monkeypatch):
    """On a busy machine all states may be read before the first write: then it is tried again."""
    monkeypatch.setattr(worker, "CALL_SECONDS", 0.02)
    assert any(len(find_writes_between_calls(monkeypatch)) > 1 for _ in range(10))


def find_writes_between_calls(monkeypatch):
    """How many writes there had been at each call."""
    shop = world(new_patience=0.0)
    running = shop.start()
    asked = []
    sink = running.sinks["a"]
    slowly(monkeypatch, sink, "state")
    known = sink.state
    monkeypatch.setattr(sink, "state", lambda lane: (asked.append((lane.id, len(sink.applies))), known(lane))[1])
    assert running.once() == 0
    check(shop)
    return {applies for lane, applies in asked if lane != "a.live"}


def test_catch_ups_alternate(monkeypatch):
    """A turn does not become longer with more lanes, and each lane gets one. On a busy machine all lanes may finish
    before the stream continues: then it is tried again."""
    counts = [count_reads_by_turn(monkeypatch)]
    while sum(counts[-1]) <= 10 and len(counts) < 10:
        counts.append(count_reads_by_turn(monkeypatch))
    assert sum(counts[-1]) > 10 and max(map(max, counts)) <= 3


def count_reads_by_turn(monkeypatch):
    shop = world(new_patience=0.0, state_patience=0.0, catch_up_turn=0.005)
    running = shop.start()
    source, turn = running.source, running.pipeline._catch_up.run_turn
    slowly(monkeypatch, running.sinks["a"], "state")  # The stream goes on before they are placed.
    slowly(monkeypatch, source, "read")
    turns = []

    def count_seconds(seconds):
        before = len(source.reads)
        left = turn(seconds)
        turns.append(len(source.reads) - before)
        return left

    monkeypatch.setattr(running.pipeline._catch_up, "run_turn", count_seconds)
    assert running.once() == 0
    check(shop)
    return turns


def test_stream_waits_for_one_new_lane_at_a_time(monkeypatch):
    records = [live(0), *new_tables()]
    lanes = {table: [("a", "scd1")] for table in (LIVE, *NEW)}
    shop = ReplicatedTuples(
        records,
        cuts=(1,) * len(records),
        lanes=lanes,
        logs=(),
        options=replace(QUICK, new_patience=0.005, hold_bytes=1 << 20),
    )
    running = shop.start()
    slowly(monkeypatch, running.sinks["a"], "state")
    settle, waits, roster = running.pipeline.registry.receive_states, [], running.pipeline.registry

    def count_patience(patience):
        waits.append((patience > 0, roster.has_pending))
        settle(patience)

    monkeypatch.setattr(roster, "receive_states", count_patience)
    assert running.once() == 0
    check(shop)
    assert sum(patient for patient, _ in waits) < len(NEW)
    assert not running.source.reads, "what waited for the lanes was not read again"


@pytest.mark.parametrize("option", [{"hold_bytes": 1}, {"state_patience": 0.0}])
def test_lanes_read_records_again_that_the_buffer_cannot_hold(monkeypatch, option):
    shop = world(new_patience=0.0, **option)
    running = shop.start()
    slowly(monkeypatch, running.sinks["a"], "state")
    assert running.once() == 0
    check(shop)
    assert running.source.reads


def test_register_is_written_once_for_many_new_tables(monkeypatch):
    shop = world()
    running = shop.start()
    looks = []
    monkeypatch.setattr(running.source, "losses", lambda position, identity: looks.append(position) or {})
    assert running.once() == 0
    check(shop)
    assert running.machine.calls.count("register.save") <= 6
    assert len(looks) <= 1, "nothing is lost of what was just read"


def test_check_for_late_records_does_not_compare_all_lanes_and_partitions(monkeypatch):
    shop = world()
    running = shop.start()
    assert running.once() == 0
    roster, looks = running.pipeline.registry, []
    monkeypatch.setattr(roster, "is_covered", lambda run, partition: looks.append(partition) or False)
    roster.suspend_incomplete()
    assert not looks, "no file came late"


def test_lag_of_a_lane_reads_its_own_partitions_only():
    class Ends(Position):
        def __iter__(self):
            raise AssertionError("a status of so many lanes would look at each partition for each of them")

    mine = TopicPartition("t1", 0)
    flow = SourceProgress(end=Ends({TopicPartition(f"t{i}", 0): 5 for i in range(3)}))
    assert flow.count_lag({mine: 3, TopicPartition("unknown", 0): 1}) == 2


@pytest.mark.slow
@pytest.mark.parametrize("new_patience", [QUICK.new_patience, 0.0])
@pytest.mark.parametrize("crash_at", range(1, 240, 7))
def test_crash_among_new_tables_loses_nothing(crash_at, new_patience):
    shop = world(new_patience=new_patience)
    with suppress(Crash):
        shop.start(Machine(crash_at)).once()
    assert shop.start().once() == 0
    check(shop)
