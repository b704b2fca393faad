"""Random histories with rejected records: after a retry, targets are as if nothing had been rejected."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.application_world import QUICK
from support.budget import LONG, check_seeds
from support.tuple_ports import Machine, MemoryRegister, RecordedTelemetry

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from adapters.engines.local import LocalEngine
from adapters.sinks.delta.sink import DeltaRsSink
from replicator.application.delivery.worker import Worker
from replicator.application.lane_registry import SourceContext, make_refused_id
from replicator.application.lane_runs import LaneRuns
from replicator.application.operations.dead_letters import DeadLetterRetry
from replicator.application.quarantine.rejects import Rejects
from replicator.application.runtime_context import RuntimeContext
from replicator.application.stream.pipeline import SourcePipeline
from replicator.application.supervisor import Supervisor
from replicator.domain.change import ERROR, OFFSET
from replicator.domain.errors import ExitCode
from replicator.domain.policy.plan import CDC_APPLIED_AT, EVENT_ID
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import Position
from replicator.ports.components import TableRules
from replicator.ports.frames import Lane
from replicator.ports.stores import DeadLetterFilter
from replicator.testing.debezium import make_raw_frame
from replicator.testing.delivery import to_canonical_rows
from replicator.testing.fakes import (
    FailAfterApply,
    FailBefore,
    FakeDeadLetters,
    FakeSink,
    FakeSource,
    FakeStore,
    Faulty,
    PassCall,
)
from replicator.testing.histories import History, make_random_history
from replicator.testing.model import fold_changes
from replicator.testing.source import EPOCH

POLICIES = ("scd1", "append")
OPEN = DeadLetterFilter(state="open")


class Killed(BaseException):
    """The process is gone."""


class Picky(DebeziumJsonDecoder):
    """Cannot read the records at some offsets: not even which table they are of, or not their values."""

    def __init__(self, unroutable: set[int], undecodable: set[int]) -> None:
        super().__init__({})
        self.unroutable, self.undecodable = unroutable, undecodable

    def route(self, raw: pa.Table) -> pa.Table:
        routes = super().route(raw)
        bad = pc.is_in(raw["offset"], value_set=pa.array(sorted(self.unroutable), pa.int64())).combine_chunks()
        nothing = pa.nulls(raw.num_rows, pa.string())
        columns = [pc.if_else(bad, nothing, routes[name].combine_chunks()) for name in ("table", "fingerprint", "ignored")]
        errors = pc.if_else(bad, pa.scalar("MALFORMED: no"), routes["error"].combine_chunks())
        made = dict(zip(("table", "fingerprint", "ignored", "error"), [*columns, errors], strict=True))
        return pa.table({name: made[name].cast(routes.schema.field(name).type) for name in routes.column_names})

    def decode(self, raw: pa.Table, table):
        changes = super().decode(raw, table)
        bad = pc.is_in(changes[OFFSET], value_set=pa.array(sorted(self.undecodable), pa.int64()))
        errors = pc.if_else(bad, pa.scalar("OUT_OF_RANGE: no"), changes[ERROR])
        return changes.set_column(changes.column_names.index(ERROR), ERROR, errors)


class Elsewhere(DebeziumJsonDecoder):
    """Takes every record for one of another table."""

    def __init__(self) -> None:
        super().__init__({})

    def route(self, raw: pa.Table) -> pa.Table:
        routes = super().route(raw)
        other = pc.if_else(routes["table"].is_valid(), pa.scalar("shop.other"), routes["table"])
        return routes.set_column(routes.column_names.index("table"), "table", other.cast(routes["table"].type))


class Program:
    """One start of the program over what outlives it."""

    def __init__(self, decoder, pieces, sinks, register, letters, faults=(), *, known=True, why=""):  # noqa: PLR0917
        engine, stop, gauges = LocalEngine(), threading.Event(), RecordedTelemetry()
        self.letters = letters
        self.shared = RuntimeContext(
            engine, LaneRuns(gauges), Rejects(letters, engine.frames, stop, QUICK, gauges), gauges, QUICK, stop
        )
        self.sinks = {name: Faulty(sink, {"apply": list(faults)}) for name, sink in sinks.items()}
        self.workers = {name: Worker(name, sink, self.shared) for name, sink in self.sinks.items()}
        rules = TableRules(tuple(replace(lane_of(policy), refused=why) for policy in sinks))
        place = SourceContext("s", FakeSource(pieces), lambda _: rules if known else None, (), self.workers, register)
        self.pipeline = SourcePipeline(place, decoder, self.shared)
        self.retry = DeadLetterRetry(self.pipeline, self.shared)

    def caught_up(self):
        code = Supervisor([self.pipeline], tuple(self.workers.values()), self.letters, self.shared).run(once=True)
        assert code is ExitCode.OK, [run.problem for run in self.shared.lanes.list_runs()]

    def replay(self, letters):
        for worker in self.workers.values():
            worker.start()
        try:
            return self.retry.retry(letters)
        finally:
            for worker in self.workers.values():
                worker.finish()
                worker.join(None)
                worker.close_sink()


def lane_of(policy: str) -> Lane:
    return Lane(f"{policy}.x", "p", "s", "public.items", policy, f"x_{policy}", policy, {}, "c:1")


def whole(seed: int) -> History:
    """Every change sends every value, in whatever order they come. Their table keeps its columns: in one partition schemas
    come in order."""
    history = make_random_history(seed, 30, keys=("int", "text"))
    kept = tuple(replace(s, act="write") if s.act == "add_column" else s for s in history.statements)
    history = replace(history, statements=kept)
    return replace(history, shape=replace(history.shape, scramble=seed, shuffle=None, partitions=1))


def as_if_never_poisoned(history: History, policy: str, found) -> None:
    table = history.table()
    changes = [replace(change, ts=change.ts or EPOCH) for change in history.changes()]
    rows, _ = fold_changes(policy, table.column_names, table.keys, sorted(changes, key=lambda change: change.sequence))
    columns = [c.name for c in plan_for(policy, table).target if c.name not in (CDC_APPLIED_AT, EVENT_ID)]
    there, due = to_canonical_rows(found, columns), to_canonical_rows(rows, columns)
    assert (dict(due - there), dict(there - due)) == ({}, {}), columns


def check(history: History, seed: int, sinks, policies, rows_of) -> None:
    """Read past the poison, replay while it still is poison, then without it in random pieces; some replays are killed."""
    random = Random(seed)
    offsets = [event.offset for event in history.events if event.change is not None]
    poison = {offset for offset in offsets if random.random() < 0.3}
    unroutable = {offset for offset in poison if random.random() < 0.5}
    edges = sorted({0, len(history.events), *(d.end for d in history.deliveries)})
    pieces = [make_raw_frame(history, a, b) for a, b in pairwise(edges)]
    register, letters = MemoryRegister({}, Machine()), FakeDeadLetters()

    def program(decoder, faults=()):
        return Program(decoder, pieces, {policy: sinks(policy) for policy in policies}, register, letters, faults)

    picky = Picky(unroutable, poison - unroutable)
    program(picky).caught_up()
    assert {letter.offset for letter in letters.read()} == poison
    again = program(picky).replay(letters.read(OPEN))
    assert (again.applied, again.rejected) == (0, len(poison))
    assert {letter.attempts for letter in letters.read()} <= {2}
    while left := list(letters.read(OPEN)):
        chosen = random.sample(left, random.randrange(1, len(left) + 1))
        kill = random.choice((None, FailAfterApply(Killed()), FailBefore(Killed()), "mark"))
        if kill is not None:
            faults = [*[PassCall()] * random.randrange(2), kill] if kill != "mark" else []
            killed = program(DebeziumJsonDecoder({}), faults)
            if kill == "mark":
                killed.retry._store = Faulty(letters, {"mark": [FailBefore(Killed())]})
            try:
                killed.replay(chosen)
            except Killed:
                killed.shared.abandon.set()
        program(DebeziumJsonDecoder({})).replay(chosen)
        assert not set(chosen) & set(letters.read(OPEN))
    program(DebeziumJsonDecoder({})).caught_up()
    if history.changes():
        for policy in policies:
            as_if_never_poisoned(history, policy, rows_of(policy))


@pytest.mark.slow
def test_retried_histories_equal_the_model() -> None:
    def check_seed(seed: int) -> None:
        store = FakeStore()
        check(whole(seed), seed, lambda _: FakeSink(store), POLICIES, lambda policy: store.rows(f"{policy}.x"))

    check_seeds(range(12 if LONG else 6), check_seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
def test_retried_histories_in_a_lake_equal_the_model(seed: int, tmp_path: Path) -> None:
    policies = (*POLICIES, "scd2")

    def rows_of(policy: str):
        return DeltaRsSink({"path": str(tmp_path)}).read(f"x_{policy}").to_pylist()

    check(whole(seed), seed, lambda _: DeltaRsSink({"path": str(tmp_path)}), policies, rows_of)


def test_history_shares_no_fold_with_append() -> None:
    """A truncate is no row for append, and ends every version for a history."""
    table = whole(0).table()
    keys = {policy: plan_for(policy, table).fold_sharing_key for policy in ("append", "scd2")}
    assert keys["append"] != keys["scd2"] and keys["append"] == plan_for("append", table).fold_sharing_key


def rejected():
    """What a run leaves of whose records one was poison, and that record's letter."""
    history, store, letters = whole(3), FakeStore(), FakeDeadLetters()
    poison = next(event.offset for event in history.events if event.change is not None)
    pieces, register = [make_raw_frame(history, 0, len(history.events))], MemoryRegister({}, Machine())

    def program(decoder, **more):
        return Program(decoder, pieces, {"scd1": FakeSink(store)}, register, letters, **more)

    program(Picky(set(), {poison})).caught_up()
    [letter] = letters.read()
    return program, letters, letter


def test_record_of_an_unconfigured_table_is_not_retried() -> None:
    program, letters, letter = rejected()
    done = program(DebeziumJsonDecoder({}), known=False).replay([letter])
    assert (done.applied, done.rejected) == (0, 0) and "no entry of `tables`" in done.untried[letter.event_id]
    assert letters.read(OPEN) == [letter]


@pytest.mark.parametrize("why", ["", "has a dot"], ids=["target_of_another_table", "target_without_a_name"])
def test_record_of_a_lane_without_target_is_not_retried(why: str) -> None:
    program, letters, letter = rejected()
    if not why:
        register, refused = program(DebeziumJsonDecoder({})).pipeline.context.register, make_refused_id(lane_of("scd1"))
        register.save("s", replace(register.load("s"), beginnings={refused: Position()}))
    target = program(DebeziumJsonDecoder({}), why=why)
    before = target.sinks["scd1"].state(lane_of("scd1"))
    done = target.replay([letter])
    assert (done.applied, done.rejected) == (0, 0)
    assert "no lane of table public.items has a target of its own" in done.untried[letter.event_id]
    assert letters.read(OPEN) == [letter] and target.sinks["scd1"].state(lane_of("scd1")) == before


def test_record_that_cannot_be_routed_any_more_is_rejected_again() -> None:
    program, letters, letter = rejected()
    of_a_lane = replace(letter, lane="scd1.x", stage="apply")
    letters.remove([letter])
    letters.write([of_a_lane])
    done = program(Picky({letter.offset}, set())).replay([of_a_lane])
    assert (done.applied, done.rejected) == (0, 1)
    assert [(one.lane, one.stage, one.attempts) for one in letters.read(OPEN)] == [("scd1.x", "route", 2)]


def test_record_of_another_table_by_now_is_not_retried_by_its_lane() -> None:
    program, letters, letter = rejected()
    of_a_lane = replace(letter, lane="scd1.x", stage="apply")
    letters.remove([letter])
    letters.write([of_a_lane])
    done = program(Elsewhere()).replay([of_a_lane])
    assert (done.applied, done.rejected) == (0, 0)
    assert "now belongs to table shop.other, which lane scd1.x does not read" in done.untried[letter.event_id]
    assert letters.read(OPEN) == [of_a_lane]
