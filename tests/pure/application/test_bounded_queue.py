"""Writes that are joined, and the queue in which they wait."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from support.application_world import ReplicatedTuples
from support.histories_of_items import make_change, make_key_change
from support.tuple_engine import TupleDecoder, TupleEngine

from replicator.application.delivery.bounded_queue import (
    BoundedQueue,
    RecordFrame,
    WriteRequest,
    count_bytes,
    group_into_packs,
    group_into_rounds,
    join_writes,
)
from replicator.application.delivery.delivery import Delivery
from replicator.application.lane_runs import LaneRun
from replicator.application.options import Backoff
from replicator.application.problem import Stopped
from replicator.domain.errors import Fatal, Retryable
from replicator.domain.policy.plan import Counts
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.transactions import CompletenessWatermark
from replicator.domain.transform.rows import RowTransforms
from replicator.ports.frames import Lane, Write

T0 = TopicPartition("t", 0)
ENGINE = TupleEngine()
PLAN = plan_for("scd1", TupleDecoder().learn((), "public.items", "0"))


def run_of(name="a.items"):
    return LaneRun(Lane(name, "p", "s", "public.items", "a", "items", "scd1"))


def make_request(run, rows, start, end, *, size=10, plan=PLAN):
    span = Span(Position({T0: start}), Position({T0: end}))
    return WriteRequest(
        run, Write(run.lane, plan, ENGINE.fold(tuple(rows), plan), span), 0, (RecordFrame(tuple(rows), size),)
    )


def test_joined_writes_keep_the_counts_of_their_parts():
    run = run_of()
    parts = [
        make_request(run, [make_change(0, "c", 1), make_change(1, "c", 2), make_change(2, "u", 2)], 0, 3),
        make_request(run, [make_change(3, "t", None)], 3, 4),
        make_request(run, [make_change(4, "c", 5), make_change(5, "d", 5)], 4, 7),
    ]
    one = join_writes(ENGINE, parts)
    assert one.write.span == Span(Position({T0: 0}), Position({T0: 7}))
    assert one.write.folded.rows + one.write.folded.counts.total == 6
    assert one.write.folded.counts == Counts(folded=4)
    facts = one.write.folded.facts
    assert (facts.lowest, facts.highest, facts.truncated_at, facts.newest) == ((1,), (6,), (4,), 6_000_000)
    assert facts.has_deletes and count_bytes(one.raw) == 30 and len(one.raw) == 3


def test_truncate_with_soft_deletes_starts_a_new_write():
    """If deletes keep rows, a truncate starts a new write. So does a delete whose key may arrive in any order."""
    run, table = run_of(), TupleDecoder().learn((), "public.items", "0")
    soft = plan_for("scd1", table, None, RowTransforms(soft_deletes=True))
    ordered = replace(soft, table=replace(soft.table, ordered_by=soft.table.columns[:1]))
    parts = [[make_change(0, "c", 1)], [make_change(1, "d", 1)], [make_change(2, "t", None)], [make_change(3, "c", 1)]]
    for plan, expected in ((PLAN, [4]), (soft, [2, 2]), (ordered, [1, 1, 2])):
        items = [make_request(run, rows, at, at + 1, plan=plan) for at, rows in enumerate(parts)]
        assert [len(group) for (group,) in group_into_rounds(items)] == expected


def test_ambiguous_delete_starts_a_new_write() -> None:
    """The target then has the earlier changes of its key, and decides or rejects the delete."""
    items = [make_request(run_of(), [make_change(at, "c", 1)], at, at + 1) for at in range(4)]
    write = items[2].write
    doubted = replace(write, folded=replace(write.folded, facts=replace(write.folded.facts, has_doubtful_deletes=True)))
    items[2] = replace(items[2], write=doubted)
    assert [len(group) for (group,) in group_into_rounds(items)] == [2, 2]


def test_rounds_keep_the_order_within_a_lane():
    a, b = run_of(), run_of("a.other")
    other = plan_for("append", PLAN.table)
    moved = [r for r in make_key_change(2, 1, 9) if r.kind == "change"]
    items = [
        make_request(a, [make_change(0, "c", 1)], 0, 1),
        make_request(b, [make_change(0, "c", 1)], 0, 1),
        make_request(a, [make_change(1, "c", 2)], 1, 2),
        make_request(a, moved, 2, 5),
        make_request(a, [make_change(5, "c", 2)], 5, 6, plan=other),
        make_request(b, [make_change(3, "c", 2)], 3, 4),
    ]
    found = [[[items.index(item) for item in group] for group in turn] for turn in group_into_rounds(items)]
    assert found == [[[0, 2], [1]], [[3], [5]], [[4]]]


def make_bundled(number, *items):
    complete = CompletenessWatermark("s", "tx9")
    return [replace(item, bundle=number, write=replace(item.write, complete=complete)) for item in items]


def test_bundle_is_divided_where_a_lane_changes_its_plan():
    """A sink is prepared for one plan of a lane at a time. Only the last part has the watermark."""
    a, b, other = run_of(), run_of("a.other"), plan_for("append", PLAN.table)
    items = [
        *make_bundled(1, make_request(a, [], 0, 1)),
        *make_bundled(2, make_request(a, [], 1, 2), make_request(a, [], 2, 3, plan=other), make_request(b, [], 1, 2)),
        *make_bundled(3, make_request(a, [], 3, 4, plan=other)),
    ]
    packs = list(group_into_packs(items))
    places = [[(item.run.lane.id, item.write.span.start[T0]) for item in pack] for pack in packs]
    assert places == [[("a.items", 0), ("a.items", 1), ("a.other", 1)], [("a.items", 2), ("a.items", 3)]]
    assert [[item.write.complete.transaction for item in pack] for pack in packs] == [["tx9", None, None], ["tx9", "tx9"]]


def test_bundle_stays_whole_if_its_sink_is_away_while_the_failing_lane_is_found():
    running = ReplicatedTuples([]).start()
    lanes, applied = ["a.one", "a.two", "a.three"], []

    def fail(writes):
        applied.append([write.lane.id for write in writes])
        if len(applied) == 2:
            raise Retryable("the connection broke")
        if "a.one" in applied[-1]:
            raise Fatal("a value does not fit")

    running.sinks["a"].before_apply = fail
    items = [make_request(run_of(lane), [make_change(0, "c", 1)], 0, 1) for lane in lanes]
    Delivery("a", running.sinks["a"], running.shared).deliver(make_bundled(1, *items))
    assert applied == [lanes, lanes[1:], lanes, lanes[1:], lanes[:1]]


@pytest.mark.parametrize("halt", ["pause", "prepare"])
def test_watermark_of_a_commit_without_a_lane_names_no_transaction(halt):
    """The lane is paused while the sink is away, or suspended as its target is prepared. Its rows are not committed."""
    running = ReplicatedTuples([]).start()
    lanes, one, calls = running.lanes, run_of("a.one"), []
    runs = [lanes.add(run.lane) for run in (one, run_of("a.two"))]
    for run in runs:
        lanes.place_lane(run, Position({T0: 0}), Position({T0: 0}))
        lanes.join_lane(run)
    sink = running.sinks["a"]
    prepare = sink.prepare

    def fail_prepare(lane, plan):
        if halt == "prepare" and lane.id == "a.two":
            raise Fatal("a view uses the column")
        return prepare(lane, plan)

    def fail_apply(writes):
        calls.append([(write.lane.id, write.complete) for write in writes])
        if halt == "pause" and len(calls) == 1:
            lanes.pause(runs[1])
            raise Retryable("the server restarts")

    sink.prepare, sink.before_apply = fail_prepare, fail_apply
    requests = [make_request(run, [make_change(0, "c", 1)], 0, 1) for run in runs]
    requests = [replace(r, generation=r.run.position_generation, voided=lanes.voided) for r in make_bundled(1, *requests)]
    Delivery("a", sink, running.shared).deliver(requests)
    assert calls[-1] == [("a.one", CompletenessWatermark("s", behind=("a.two",)))]


def test_full_queue_is_waited_for_until_a_stop():
    slot, stop, run = BoundedQueue(lambda: 100), threading.Event(), run_of()
    slot.put([make_request(run, [], 0, 1, size=500)])
    assert not slot.has_room()
    stop.set()
    assert not slot.wait_for_room(lambda: False, stop)
    items = slot.take().requests
    assert len(items) == 1 and slot.has_room() and slot.wait_for_room(lambda: False, stop)


def test_full_queue_accepts_the_write_of_a_source_that_saw_room():
    """Another source may have filled it since. A wait for a sink that is away would stop its other sinks too."""
    slot, run = BoundedQueue(lambda: 100), run_of()
    slot.put([make_request(run, [], 0, 1, size=500)])
    slot.put([make_request(run, [], 1, 2)])
    slot.close()
    with pytest.raises(Stopped):
        slot.put([make_request(run, [], 2, 3)])
    assert len(slot.take().requests) == 2 and slot.take() is None


def test_tables_of_a_batch_share_its_records():
    queue, records = BoundedQueue(lambda: 100), RecordFrame((), 60)
    for table in ("a.items", "a.orders"):
        queue.put([replace(make_request(run_of(table), [], 0, 1), raw=(records,))])
    assert queue.has_room()
    queue.put([make_request(run_of(), [], 1, 2, size=60)])
    assert not queue.has_room()


def dequeue_in_thread(slot):
    """What a thread takes from the slot, once it has."""
    taken = []
    thread = threading.Thread(target=lambda: taken.append(slot.take()), daemon=True)
    thread.start()
    return thread, taken


@pytest.mark.parametrize("ripens", ["full", "closed", "asked"])
def test_gathered_writes_are_released_at_the_size_limit(ripens):
    """Or when the source has no more records, or the sink is called anyway."""
    slot, run = BoundedQueue(lambda: 100, gather=60.0), run_of()
    items = [make_request(run, [make_change(at, "c", at)], at, at + 1, size=50) for at in range(2)]
    slot.put(items[:1])
    thread, taken = dequeue_in_thread(slot)
    thread.join(0.3)
    assert thread.is_alive() and not taken
    if ripens == "full":
        slot.put(items[1:])
    elif ripens == "closed":
        slot.close()
    else:
        slot.submit(lambda: None)
    thread.join(30)
    assert [len(one.requests) for one in taken] == [2 if ripens == "full" else 1]


def test_gathered_writes_are_released_in_time():
    slot = BoundedQueue(lambda: 100, gather=0.2)
    slot.put([make_request(run_of(), [make_change(0, "c", 0)], 0, 1)])
    thread, taken = dequeue_in_thread(slot)
    thread.join(30)
    assert len(taken[0].requests) == 1


def test_delays_grow_up_to_a_limit():
    backoff = Backoff(0.1, 5.0, jitter=lambda: 1.0)
    assert [round(backoff.next_delay(), 3) for _ in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    backoff.reset()
    assert Backoff(0.1, 5.0, jitter=lambda: 0.0).next_delay() == 0.05 and backoff.next_delay() == 0.1
    backoff.attempts = 10_000
    assert backoff.next_delay() == 5.0


def test_writes_around_a_neutral_write_are_not_joined():
    """A partial change must not meet, two writes later, the key change with which its row started."""
    a = run_of()
    moved = [r for r in make_key_change(0, 1, 9) if r.kind == "change"]
    items = [
        make_request(a, moved, 0, 3),
        make_request(a, [make_change(3, "c", 5)], 3, 4),
        make_request(a, [make_change(4, "u", 9, unsent=("name",))], 4, 5),
    ]
    assert [len(group) for turn in group_into_rounds(items) for group in turn] == [2, 1]
