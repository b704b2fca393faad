"""The program is killed at every call of a port, before or after it."""

from __future__ import annotations

from collections import Counter

import pytest
from support.application_world import ReplicatedTuples, compute_rows
from support.budget import LONG as ALL
from support.histories_of_items import make_change, make_key_change, make_tombstone
from support.tuple_engine import TupleRecord
from support.tuple_ports import Crash, Machine

from replicator.domain.errors import ExitCode

LONG = [
    make_change(0, "c", 1),
    make_change(1, "c", 2),
    TupleRecord("t", 0, 2, kind="bad_route"),
    make_change(3, "u", 1, version=1),
    *make_key_change(4, 2, 5),
    make_change(7, "u", 5, version=1),
    TupleRecord("t", 0, 8, kind="bad_decode", version=1),
    make_change(9, "d", 1),
    make_tombstone(10, 1),
    *make_key_change(11, 5, 1, unsent=("name", "mail"), version=1),
    make_change(14, "c", 9, version=1),
]
SHORT = [
    make_change(0, "c", 1),
    *make_key_change(1, 1, 2),
    TupleRecord("t", 0, 4, kind="bad_decode"),
    make_change(5, "u", 2),
]
TWO_TOPICS = [
    make_change(0, "c", 1),
    make_change(0, "c", 1, topic="u", table="public.other"),
    make_change(1, "u", 1),
    *make_key_change(1, 1, 2, topic="u", table="public.other"),
    make_change(2, "d", 1),
    make_change(4, "u", 2, topic="u", table="public.other"),
]
CUTS = [
    pytest.param((1,), marks=pytest.mark.slow),
    *(pytest.param(cuts, marks=pytest.mark.long) for cuts in ((2,), (3,))),
    pytest.param((5, 1), marks=pytest.mark.slow),
    (1000,),
]
"""How many records the batches hold; random cuts are tried in `test_random_histories`."""


def assert_exact(world: ReplicatedTuples) -> None:
    """Every target holds what the whole log means, each record once."""
    for table in world.lanes:
        name = table.rpartition(".")[2]
        assert world.targets[f"a.{name}"].rows == compute_rows(world.log, table)
        changes = [(r.at, r.offset) for r in world.log if r.kind == "change" and r.table == table]
        assert Counter((r.at, r.offset) for r in world.targets[f"b.{name}"].log) == Counter(changes)
    assert Counter((r.at, r.offset) for r in world.targets["raw.s"].log) == Counter((r.at, r.offset) for r in world.log)
    bad = {f"{r.topic}-{r.partition}-{r.offset}" for r in world.log if r.kind.startswith("bad")}
    assert {event_id for event_id, _ in world.letters} == bad


def world_of(log, cuts) -> ReplicatedTuples:
    tables = {r.table for r in log}
    return ReplicatedTuples(list(log), cuts, lanes={t: [("a", "scd1"), ("b", "append")] for t in tables})


def run_until_killed(world: ReplicatedTuples, at: int, after: bool) -> bool:
    """One start that is killed at its `at`-th call; False when it ended before."""
    machine = Machine(at, after=after)
    try:
        world.start(machine).once()
    except Crash:
        return True
    return machine.dead


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("log", [LONG, TWO_TOPICS], ids=["long", "two_topics"])
@pytest.mark.parametrize("cuts", CUTS, ids=str)
def test_kill_at_every_call(log, cuts, after):
    at = 1
    while True:
        world = world_of(log, cuts)
        crashed = run_until_killed(world, at, after)
        assert world.start().once() is ExitCode.OK
        assert_exact(world)
        if not crashed:
            break
        at += 1
    assert at > 15


def kill_every_pair(log, cuts, after):
    """One start is killed at its n-th call and the next at its m-th: for every n and m, by default every third m, which are
    others for the next n."""
    step = 1 if ALL else 3
    first, crashed = 1, True
    while crashed:
        second, again = 1 + first % step, True
        while again:
            world = world_of(log, cuts)
            crashed = run_until_killed(world, first, after)
            again = run_until_killed(world, second, not after)
            assert world.start().once() is ExitCode.OK
            assert_exact(world)
            second += step
        first += 1
    assert first > 12


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_kill_at_every_pair_of_calls(after):
    kill_every_pair(SHORT[:4], (2,), after)


@pytest.mark.long
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("cuts", [(1,), (2, 3)], ids=str)
def test_kill_at_every_pair_of_calls_of_a_longer_history(cuts, after):
    kill_every_pair(SHORT, cuts, after)


@pytest.mark.parametrize("cut", range(1, len(LONG) + 1))
def test_log_that_grows_between_starts(cut):
    world = world_of(LONG[:cut], (2,))
    world.start().once()
    world.log.extend(LONG[cut:])
    assert world.start().once() is ExitCode.OK
    applied = {r.offset for r in world.targets["b.items"].log}
    assert applied == {r.offset for r in LONG if r.kind == "change"}
    assert [r.offset for r in world.targets["raw.s"].log] == list(range(len(LONG)))
