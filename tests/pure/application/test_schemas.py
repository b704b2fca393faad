"""Schema changes, key changes split between batches, and counts that must add up."""

from __future__ import annotations

import pyarrow as pa
import pytest
from support.application_world import ReplicatedTuples, await_condition, compute_rows
from support.histories_of_items import make_change, make_key_change, make_tombstone
from support.tuple_engine import TupleDecoder, TupleEngine

from replicator.application.catalog import can_hold, unite_schemas
from replicator.application.delivery.bounded_queue import can_join_pair
from replicator.application.lane_runs import LaneStatus
from replicator.domain.errors import ExitCode, Fatal
from replicator.domain.policy.plan import Counts
from replicator.domain.table import Column, TableSpec

GROWING = [
    make_change(0, "c", 1),
    make_change(1, "u", 1, version=1),
    make_change(2, "u", 1),
    make_change(3, "c", 2, version=2),
]


@pytest.mark.parametrize("cuts", [(1,), (2,), (4,)], ids=str)
def test_columns_are_added_before_their_first_row(cuts):
    world = ReplicatedTuples(GROWING, cuts=cuts)
    running = world.start()
    assert running.once() is ExitCode.OK  # The sink asserts that the plan's columns are the target's.
    assert set(world.targets["a.items"].columns) == {"id", "name", "mail", "age"}
    assert len(world.decoder.learnt) == 3
    assert world.targets["a.items"].rows == compute_rows(GROWING)


def test_incompatible_type_suspends_the_lanes_of_its_table():
    decoder = TupleDecoder(types={(1, "name"): pa.binary()})
    other = make_change(0, "c", 1, topic="u", table="public.other")
    lanes = {"public.items": [("a", "scd1")], "public.other": [("b", "append")]}
    world = ReplicatedTuples([*GROWING, other], cuts=(1,), decoder=decoder, lanes=lanes)
    running = world.start()
    assert running.once() is ExitCode.RUNTIME
    problem = running.lanes.find("a.items").problem
    assert "'name'" in problem.sentence and "string to binary" in problem.sentence and "drop a.items" in problem.next_step
    assert len(world.targets["b.other"].log) == 1
    assert [r.offset for r in world.targets["raw.s"].log if r.topic == "t"] == [0, 1, 2, 3]


RESERVED = ["_cdc_op", "_CDC_OP", "_event_id", "_op", "_OP", "_from_1", "_i", "_Row", "_v0", "_Reading"]


@pytest.mark.parametrize("name", RESERVED)
def test_reserved_name_suspends_the_lanes_of_its_table(monkeypatch, name):
    monkeypatch.setattr("support.tuple_engine.VERSIONS", [("id", name)])
    running = ReplicatedTuples([make_change(0, "c", 1)]).start()
    assert running.once() is ExitCode.RUNTIME
    assert running.lanes.find("a.items").status is LaneStatus.SUSPENDED


def test_keys_that_differ_in_case_only_are_refused():
    columns = (Column("id", pa.int32()), Column("ID", pa.int32()))
    TableSpec("public.items", columns, ("id",)).refuse_keys_alike()
    with pytest.raises(Fatal, match="differ in case only"):
        TableSpec("public.items", columns, ("id", "ID")).refuse_keys_alike()


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        (pa.int64(), pa.int32(), True),
        (pa.int32(), pa.int64(), False),
        (pa.int64(), pa.uint32(), True),
        (pa.int64(), pa.uint64(), False),
        (pa.uint64(), pa.int32(), False),
        (pa.float64(), pa.float32(), True),
        (pa.float64(), pa.int32(), True),
        (pa.float64(), pa.int64(), False),
        (pa.float32(), pa.int32(), False),
        (pa.decimal128(10, 2), pa.decimal128(8, 2), True),
        (pa.decimal128(10, 2), pa.decimal128(10, 1), False),
        (pa.decimal128(12, 2), pa.int32(), True),
        (pa.decimal128(11, 2), pa.int32(), False),
        (pa.timestamp("us", "UTC"), pa.timestamp("ms", "UTC"), True),
        (pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC"), False),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), False),
        (pa.large_string(), pa.string(), True),
        (pa.string(), pa.int32(), False),
        (pa.string(), pa.binary(), False),
    ],
    ids=str,
)
def test_types_that_hold_another_type(wide, narrow, expected):
    assert can_hold(wide, narrow) is expected


def test_union_of_schemas_has_the_wider_types_in_order():
    old = TableSpec("t", (Column("id", pa.int32()), Column("v", pa.int64())), ("id",))
    new = TableSpec("t", (Column("w", pa.string()), Column("id", pa.int64()), Column("v", pa.int32())), ("id",))
    assert unite_schemas(old, new).columns == (Column("id", pa.int64()), Column("v", pa.int64()), Column("w", pa.string()))
    assert unite_schemas(old, old) is old
    with pytest.raises(Fatal, match="key of table t"):
        unite_schemas(old, new.with_keys(("v",)))


def test_records_without_a_key_keep_the_known_key():
    class Forgetful(TupleDecoder):
        """A truncate does not tell the key."""

        def learn(self, sample, table, fingerprint):
            learnt = super().learn(sample, table, fingerprint)
            return learnt if any(r.key is not None for r in sample) else learnt.with_keys(())

    log = [make_change(0, "c", 1), make_change(1, "t", None, version=1), make_change(2, "c", 2, version=1)]
    world = ReplicatedTuples(log[:1], decoder=Forgetful())
    assert world.start().once() is ExitCode.OK
    for end in (2, 3):
        world.log = log[:end]
        running = world.start()
        assert running.once() is ExitCode.OK, running.lanes.find("a.items").problem
    assert world.targets["a.items"].rows == compute_rows(log)


MOVES = [
    make_change(0, "c", 1),
    *make_key_change(1, 1, 2),
    make_change(4, "u", 2, unsent=("name",)),
    *make_key_change(5, 2, 3),
    make_tombstone(8, 1),
    *make_key_change(9, 3, 1),
]


@pytest.mark.parametrize("first", range(1, len(MOVES)))
@pytest.mark.parametrize("rest", [1, 2, 100])
def test_key_change_is_applied_however_batches_are_split(first, rest):
    world = ReplicatedTuples(MOVES, cuts=(first, rest))
    assert world.start().once() is ExitCode.OK
    assert world.targets["a.items"].rows == compute_rows(MOVES) == {1: (12, {"id": 1, "name": "name0"})}
    assert not world.letters


def test_half_of_a_key_change_is_applied_at_the_end():
    world = ReplicatedTuples([make_change(0, "c", 1), *make_key_change(1, 1, 2)[:1]])
    assert world.start().once() is ExitCode.OK
    assert world.targets["a.items"].rows == {}
    world = ReplicatedTuples([make_change(0, "c", 1), *make_key_change(1, 1, 2)[:1]])
    running = world.start().in_background()
    from test_lanes import has_applied

    await_condition(lambda: has_applied(world, "a.items", 2))
    assert running.stop() is ExitCode.OK


def test_halves_of_a_key_change_in_different_partitions():
    log = [
        make_change(0, "c", 1),
        make_change(1, "d", 1, moved_to=True),
        make_change(0, "c", 2, partition=1, moved_from=1, seq=3),
    ]
    for cuts in ((1,), (2,), (3,)):
        world = ReplicatedTuples(log, cuts=cuts)
        assert world.start().once() is ExitCode.OK
        assert list(world.targets["a.items"].rows) == [2]


def test_lost_record_ends_the_program(monkeypatch):
    world = ReplicatedTuples(GROWING)
    running = world.start()
    route = running.engine.route
    monkeypatch.setattr(running.engine, "route", lambda raw, decoder: route(raw[1:], decoder))
    assert running.once() is ExitCode.RUNTIME
    assert "accounted for" in running.supervisor.problem.sentence and not world.targets


@pytest.mark.parametrize("stage", ["decode", "fold"])
def test_lost_change_ends_the_program(monkeypatch, stage):
    running = ReplicatedTuples(GROWING).start()
    whole = getattr(TupleEngine, stage)
    if stage == "decode":
        monkeypatch.setattr(running.engine, stage, lambda *args: (whole(running.engine, *args)[0][1:], ()))
    else:
        monkeypatch.setattr(running.engine, stage, lambda changes, plan: whole(running.engine, changes[1:], plan))
    assert running.once() is ExitCode.RUNTIME
    assert running.supervisor.problem.next_step.startswith("This is a bug")


@pytest.mark.parametrize("applied", [0, 77])
def test_sink_with_wrong_counts_is_stopped(monkeypatch, applied):
    running = ReplicatedTuples(GROWING).start()
    sink = running.sinks["a"]
    monkeypatch.setattr(sink, "_upsert", lambda *args: "applied")
    one = sink._one
    from dataclasses import replace

    monkeypatch.setattr(sink, "_one", lambda *args: replace(one(*args), counts=Counts(applied=applied)))
    assert running.once() is ExitCode.RUNTIME
    assert f"accounts for {applied}." in running.lanes.find("a.items").problem.sentence
    assert running.lanes.find("b.items").status is LaneStatus.RUNNING


def test_writes_with_a_gap_or_another_plan_are_not_joined():
    world = ReplicatedTuples(MOVES, cuts=(2,))
    running = world.start()
    items = []
    put = running.workers["a"].queue.put

    def keep(handed):
        items.extend(handed)
        put(handed)

    running.workers["a"].queue.put = keep
    running.once()
    table = [item for item in items if item.write.plan.policy == "scd1"]
    assert not can_join_pair(table[0], table[2])
    moving = next(i for i, item in enumerate(table) if item.write.folded.facts.has_key_changes)
    assert not can_join_pair(table[moving - 1], table[moving])
