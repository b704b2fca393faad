"""Random histories, cuts, kills, faults and operators: every target ends with what the whole log means."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from support.application_world import QUICK, ReplicatedTuples
from support.budget import LONG, check_seeds
from support.histories_of_items import make_change, make_key_change, make_tombstone
from support.tuple_engine import TupleRecord
from support.tuple_ports import Crash, Machine
from test_kills_at_port_calls import assert_exact

from replicator.domain.errors import ExitCode, Retryable


def history(rng: random.Random) -> list[TupleRecord]:
    """Statements on two tables, each in a topic of its own. With two partitions records lie where their key says; key
    changes then carry every value, since their halves may be read in either order."""
    partitions = rng.choice([1, 1, 2])
    live: dict[str, set[int]] = {"t": set(), "u": set()}
    ends: Counter[tuple[str, int]] = Counter()
    order: list[TupleRecord] = []
    version = 0
    for _ in range(rng.randint(1, 14)):
        topic = rng.choice("tu")
        version = min(2, version + (rng.random() < 0.1))
        where = {"topic": topic, "table": "public.items" if topic == "t" else "public.other", "version": version}
        for rec in _statement(rng, len(order), live[topic], where, partitions == 1):
            partition = (rec.key or 0) % partitions
            order.append(replace(rec, partition=partition, offset=ends[topic, partition]))
            ends[topic, partition] += 1
    return order


def _statement(rng, at, rows, where, partial):
    act = rng.random()
    key = rng.randrange(4)
    free = [k for k in range(6) if k not in rows]
    if act < 0.1:
        return [
            TupleRecord(where["topic"], 0, at, where["table"], kind=rng.choice(["bad_route", "bad_decode", "heartbeat"]))
        ]
    if act < 0.15:
        rows.clear()
        return [make_change(at, "t", None, **where)]
    if key in rows and act < 0.35:
        rows.remove(key)
        return [make_change(at, "d", key, **where), make_tombstone(at + 1, key, topic=where["topic"])]
    if key in rows and act < 0.6:
        new = rng.choice(free)
        rows.remove(key)
        rows.add(new)
        return make_key_change(at, key, new, unsent=rng.choice([(), ("name",)]) if partial else (), **where)
    unsent = ("name",) if key in rows and rng.random() < 0.3 else ()
    rows.add(key)
    return [make_change(at, "u" if unsent else "c", key, unsent=unsent, **where)]


def start(world: ReplicatedTuples, rng: random.Random, at: int | None):
    """One start with faults of every kind; killed at call `at`."""
    running = world.start(Machine(at, after=rng.random() < 0.5))
    for sink in running.sinks.values():
        sink.before_apply = faults(rng.random(), random.Random(rng.random()))
        sink.after_apply = faults(rng.random(), random.Random(rng.random()))
    running.source.on_batch = faults(rng.random() / 2, random.Random(rng.random()))
    try:
        return running.once()
    except Crash:
        return None


def faults(share: float, rng: random.Random):
    def fail(_):
        if rng.random() < share / 2:
            raise Retryable("now and then")

    return fail


def _whole(log: list[TupleRecord], end: int) -> int:
    """A place that does not part a key change: what is caught up with is let go of as it is."""
    while end < len(log) and any(rec.moved_to for rec in log[max(0, end - 2) : end]) and log[end - 1].moved_from is None:
        end += 1
    return end


SEEDS = (1192, *range(500 if LONG else 100))


@pytest.mark.slow
def test_random_histories_with_faults_equal_the_model():
    check_seeds(SEEDS, check)


def check(seed):
    rng = random.Random(seed)
    log = history(rng)
    cuts = tuple(rng.randint(1, 4) for _ in range(6))
    lanes = {r.table: [("a", "scd1"), ("b", "append")] for r in log}
    options = replace(QUICK, catch_up_offsets=rng.randint(1, 5), handover_bytes=rng.choice([1, 1000, 1 << 20]))
    world = ReplicatedTuples([], cuts, lanes=lanes, options=options)
    for _ in range(rng.randint(0, 4)):
        world.log = log[: _whole(log, rng.randint(len(world.log), len(log)))]
        if world.log:
            start(world, rng, rng.choice([None, rng.randint(1, 50)]))
        if rng.random() < 0.1:
            world.register.clear()
    world.log = log
    assert start(world, rng, None) is ExitCode.OK
    world.lanes = {r.table: lanes[r.table] for r in log if r.kind == "change"}
    assert_exact(world)
