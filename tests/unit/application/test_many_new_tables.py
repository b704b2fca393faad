"""Many tables that turn up at once: what is known does not stand still meanwhile."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace

import pytest
from application_world import QUICK, World, model
from histories_of_items import change
from tuple_ports import Crash, Machine

from replicator.application import delivery, roster, workers

NEW = [f"public.n{i}" for i in range(40)]
LIVE = "public.live"


def live(offset):
    return change(offset, "c", offset, topic="live", table=LIVE)


def new_tables():
    return [change(0, "c", 1, topic=table, table=table) for table in NEW]


def world(**options) -> World:
    """One sink; the live table is known before the others come, each with a record, in one batch with some of its own."""
    records = [live(0), *new_tables(), *(live(i) for i in range(1, 20))]
    lanes = {table: [("a", "scd1")] for table in (LIVE, *NEW)}
    return World(records, cuts=(1, len(NEW), 1), lanes=lanes, logs=(), options=replace(QUICK, **options))


def check(done: World) -> None:
    for table in (LIVE, *NEW):
        assert done.targets[f"a.{table.removeprefix('public.')}"].rows == model(done.log, table)


def slowly(monkeypatch, sink, name):
    """Each such call of the sink takes its time."""
    known = getattr(sink, name)

    def slow(*args):
        time.sleep(0.01)
        return known(*args)

    monkeypatch.setattr(sink, name, slow)


def first(applies, lane):
    return next(i for i, lanes in enumerate(applies) if lane in lanes)


def test_new_targets_are_made_one_at_a_time(monkeypatch):
    monkeypatch.setattr(delivery, "NEW_SECONDS", 0.02)
    shop = world()
    running = shop.start()
    slowly(monkeypatch, running.sinks["a"], "prepare")
    assert running.once() == 0
    check(shop)
    applies = running.sinks["a"].applies
    assert max(map(len, applies)) == 1
    news = [first(applies, f"a.{table.removeprefix('public.')}") for table in NEW]
    assert any(min(news) < i < max(news) for i, lanes in enumerate(applies) if lanes == ["a.live"])


def test_a_few_new_targets_are_made_right_after_the_others_are_written():
    shop = World(
        [live(0), live(1), *new_tables()[:2]], cuts=(1, 3), lanes={t: [("a", "scd1")] for t in (LIVE, *NEW[:2])}, logs=()
    )
    running = shop.start()
    assert running.once() == 0
    known: set[str] = set()
    for lanes in map(set, running.sinks["a"].applies):
        assert not known & lanes or lanes <= known
        known |= lanes


def test_writes_go_between_the_questions_of_new_lanes(monkeypatch):
    monkeypatch.setattr(workers, "ASKED_SECONDS", 0.02)
    shop = world(new_patience=0.0)
    running = shop.start()
    asked = []
    sink = running.sinks["a"]
    slowly(monkeypatch, sink, "state")
    known = sink.state
    monkeypatch.setattr(sink, "state", lambda lane: (asked.append((lane.id, len(sink.applies))), known(lane))[1])
    assert running.once() == 0
    check(shop)
    assert len({applies for lane, applies in asked if lane != "a.live"}) > 1


def test_lanes_that_are_behind_take_turns(monkeypatch):
    """No turn is longer because there are more of them, and each gets its own."""
    shop = world(new_patience=0.0, catch_up_turn=0.005, hold_bytes=0)  # What was just read is not kept.
    running = shop.start()
    source, turn = running.source, running.pipeline._catch_up.turn
    slowly(monkeypatch, running.sinks["a"], "state")  # The stream goes on before they are placed.
    slowly(monkeypatch, source, "read")
    turns = []

    def counted(seconds):
        before = len(source.reads)
        left = turn(seconds)
        turns.append(len(source.reads) - before)
        return left

    monkeypatch.setattr(running.pipeline._catch_up, "turn", counted)
    assert running.once() == 0
    check(shop)
    assert sum(turns) > 10 and max(turns) <= 3


def in_rounds(**options) -> World:
    """As `world`; the records of new tables come in three batches, and those of the live table in between."""
    rounds = [[change(i, "c", i, topic=table, table=table) for table in NEW] for i in range(3)]
    records = [live(0), *rounds[0], live(1), *rounds[1], live(2), *rounds[2], *(live(i) for i in range(3, 20))]
    shop = world(**options)
    shop.log, shop.cuts = records, (1, len(NEW), 1, len(NEW), 1, len(NEW), 1)
    return shop


@pytest.mark.parametrize("size", [0, 2, 10**6])
def test_lanes_of_new_tables_take_what_was_just_read(monkeypatch, size):
    """As far as there is room for it; the rest is read again."""
    shop = in_rounds(new_patience=0.0, hold_bytes=size)
    running = shop.start()
    slowly(monkeypatch, running.sinks["a"], "state")  # The stream goes on before they are placed.
    assert running.once() == 0
    check(shop)
    assert not running.source.reads if size > 2 else running.source.reads
    assert not running.pipeline._catch_up._kept


@pytest.mark.parametrize("times", [(0, 1, 1), (1, 0, 1), (2, 2, 2)])
def test_what_is_kept_of_new_tables_may_lack_a_part_or_repeat(monkeypatch, times):
    """As it does where there was no room at first, and where a batch came again after an error."""
    shop, left = in_rounds(new_patience=0.0), [*times]
    shop.lanes = {table: [("a", "append")] for table in shop.lanes}
    running = shop.start()
    slowly(monkeypatch, running.sinks["a"], "state")
    known = running.pipeline._catch_up.keep
    is_new = lambda batch: any(p.topic in NEW for p in batch.span.end)  # noqa: E731
    monkeypatch.setattr(
        running.pipeline._catch_up, "keep", lambda batch: [known(batch) for _ in range(left.pop(0) if is_new(batch) else 0)]
    )
    assert running.once() == 0
    assert not left
    for table in NEW:
        assert [rec.offset for rec in shop.targets[f"a.{table.removeprefix('public.')}"].log] == [0, 1, 2]


def test_no_more_is_taken_of_what_is_kept_than_is_to_be_read(monkeypatch):
    shop, taken = in_rounds(new_patience=0.0, catch_up_offsets=1), []
    shop.cuts = (1, 10**6)
    running = shop.start()
    slowly(monkeypatch, running.sinks["a"], "state")
    known = running.pipeline._catch_up._take
    monkeypatch.setattr(
        running.pipeline._catch_up, "_take", lambda lane, batch: [taken.append(batch.span), known(lane, batch)]
    )
    assert running.once() == 0
    check(shop)
    assert taken and all(end - span.start[p] == 1 for span in taken for p, end in span.end.items())


def test_new_lanes_are_waited_for_as_long_as_the_option_says(monkeypatch):
    shop, waits, known = world(new_patience=0.25), [], roster.wait
    running = shop.start()
    slowly(monkeypatch, running.sinks["a"], "state")
    monkeypatch.setattr(roster, "wait", lambda asked, timeout: waits.append(timeout) or known(asked, timeout))
    settle = running.pipeline.roster.settle

    def settled(patience):
        waits.clear()
        settle(patience)
        assert sum(waits) <= patience

    monkeypatch.setattr(running.pipeline.roster, "settle", settled)
    assert running.once() == 0
    check(shop)


def test_what_is_learned_of_new_tables_is_stored_once(monkeypatch):
    shop = world()
    running = shop.start()
    looks = []
    monkeypatch.setattr(running.source, "losses", lambda position, identity: looks.append(position) or {})
    assert running.once() == 0
    check(shop)
    assert running.machine.calls.count("register.save") <= 4
    assert len(looks) <= 1, "nothing is lost of what was just read"


@pytest.mark.parametrize("crash_at", range(1, 240, 7))
def test_a_crash_among_them_loses_nothing(crash_at):
    shop = in_rounds(new_patience=0.0)
    with suppress(Crash):
        shop.start(Machine(crash_at)).once()
    assert shop.start().once() == 0
    check(shop)
