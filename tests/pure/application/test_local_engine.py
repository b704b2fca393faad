"""The pipeline with the local engine and the Debezium decoder: random histories equal the model."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import pairwise

import pytest
from support.application_world import QUICK
from support.tuple_ports import Machine, MemoryRegister, RecordedTelemetry

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from adapters.engines.local import LocalEngine
from replicator.application.delivery.worker import Worker
from replicator.application.lane_registry import SourceContext
from replicator.application.lane_runs import LaneRuns
from replicator.application.quarantine.rejects import Rejects
from replicator.application.runtime_context import RuntimeContext
from replicator.application.stream.pipeline import SourcePipeline
from replicator.application.supervisor import Supervisor
from replicator.domain.errors import ExitCode
from replicator.domain.policy.plan import CDC_APPLIED_AT
from replicator.ports.components import TableRules
from replicator.ports.frames import Lane
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
from replicator.testing.histories import make_random_history
from replicator.testing.model import Outcome, fold_changes
from replicator.testing.model_transforms import TransformingPolicy
from replicator.testing.sink_retention import DISORDER, GRACE
from replicator.testing.source import EPOCH
from replicator.testing.transform_cases import CASES

POLICIES = {"scd1": "scd1", "append": "append", "late": "append"}
"""By the name of the sink; the last one has a watermark."""


def lanes_of(table):
    grace = {"late": GRACE}
    return tuple(Lane(f"{s}.x", "p", "s", table, s, "x", p, {}, "c:1", grace.get(s)) for s, p in POLICIES.items())


def shaped_lanes(table):
    """A lane for each case that a table whose first column is of text can be of: of scd1 where it can be, else of append."""
    for number, case in enumerate(case for case in CASES.values() if "text" in case.first_types):
        policy = "append" if number % 3 == 2 and "append" in case.policies else "scd1"
        yield case, Lane(f"s{number}.x", "p", "s", table, f"s{number}", "x", policy, {}, "c:1", None, case.row_transforms)


def shaped_only(table):
    return tuple(lane for _, lane in shaped_lanes(table))


class Takes:
    """A policy that takes whatever comes."""

    def apply_change(self, change):
        return Outcome.APPLIED


def start(store, pieces, register, letters, faults, *, lanes_of=lanes_of):
    engine, stop, gauges = LocalEngine(), threading.Event(), RecordedTelemetry()
    rejects = Rejects(letters, engine.frames, stop, QUICK, gauges)
    shared = RuntimeContext(engine, LaneRuns(gauges), rejects, gauges, QUICK, stop)
    sinks = {lane.sink: Faulty(FakeSink(store), {"apply": list(faults)}) for lane in lanes_of("public.items")}
    workers = {name: Worker(name, sink, shared) for name, sink in sinks.items()}
    place = SourceContext("s", FakeSource(pieces), lambda table: TableRules(lanes_of(table)), (), workers, register)
    pipeline = SourcePipeline(place, DebeziumJsonDecoder({}), shared)
    code = Supervisor([pipeline], tuple(workers.values()), letters, shared).run(once=True)
    return code, shared


@pytest.mark.parametrize("seed", [pytest.param(s, marks=pytest.mark.slow if s > 5 else ()) for s in range(24)])
def test_random_histories(seed):
    history = make_random_history(seed, 30, toast=True)
    history = replace(history, shape=replace(history.shape, key="int", disorder=DISORDER))
    edges = sorted({0, len(history.events), *(d.end for d in history.deliveries)})
    pieces = [make_raw_frame(history, a, b) for a, b in pairwise(edges)]
    store, register, letters = FakeStore(), MemoryRegister({}, Machine()), FakeDeadLetters()
    faults = [PassCall(), FailAfterApply(), PassCall(), FailBefore()]
    code, shared = start(store, pieces[: len(pieces) // 2], register, letters, faults)
    assert code is ExitCode.OK, [run.problem for run in shared.lanes.list_runs()]
    code, shared = start(store, pieces, register, letters, faults)
    assert code is ExitCode.OK, [run.problem for run in shared.lanes.list_runs()]
    if not history.changes():
        return
    table = history.table()
    # Debezium always tells a time: where there is none, the year 1970.
    changes = [replace(change, ts=change.ts or EPOCH) for change in history.changes()]
    for sink, policy in POLICIES.items():
        grace = GRACE if sink == "late" else None
        rows, outcomes = fold_changes(policy, table.column_names, table.keys, changes, grace)
        kept = store.lanes[f"{sink}.x"]
        columns = [c.name for c in kept.plan.target if c.name != CDC_APPLIED_AT]
        assert to_canonical_rows(kept.target.rows, columns) == to_canonical_rows(rows, columns)
        rejected = sum(lane == f"{sink}.x" for _, lane in letters.letters)
        assert rejected <= outcomes[Outcome.REJECTED] and bool(rejected) <= bool(outcomes[Outcome.REJECTED])
        assert sink != "late" or rejected == outcomes[Outcome.REJECTED]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [pytest.param(s, marks=() if s in (1, 3) else pytest.mark.long) for s in range(24)])
def test_random_histories_with_row_transforms(seed):
    """Each case in its own lane, all from one stream, with a restart in the middle and faults. Each lane equals the
    model. Changes that do not fit are dead letters of their lane only."""
    history = make_random_history(seed, 30, toast=True, keys=("int", "text", "composite"), first=("text",))
    # Values that were not sent are those of the row at that time, and partitions arrive in an order of their own.
    history = replace(history, shape=replace(history.shape, partitions=1, shuffle=None))
    edges = sorted({0, len(history.events), *(d.end for d in history.deliveries)})
    pieces = [make_raw_frame(history, a, b) for a, b in pairwise(edges)]
    store, register, letters = FakeStore(), MemoryRegister({}, Machine()), FakeDeadLetters()
    of_table = {lane.id: (case, lane) for case, lane in shaped_lanes("public.items")}
    faults = [PassCall(), FailAfterApply(), PassCall(), FailBefore()]
    for some in (pieces[: len(pieces) // 2], pieces):
        code, shared = start(store, some, register, letters, faults, lanes_of=shaped_only)
        assert code is ExitCode.OK, [run.problem for run in shared.lanes.list_runs()]
    if not history.changes():
        return
    table = history.table()
    changes = [replace(change, ts=change.ts or EPOCH) for change in history.changes()]
    for lane_id, (case, lane) in of_table.items():
        rows, outcomes = fold_changes(lane.policy, table.column_names, table.keys, changes, wanted=case.wanted)
        kept = store.lanes[lane_id]
        columns = [c.name for c in kept.plan.target if c.name != CDC_APPLIED_AT]
        assert to_canonical_rows(kept.target.rows, columns) == to_canonical_rows(rows, columns), lane_id
        mine = [letter for (_, of), letter in letters.letters.items() if of == lane_id]
        assert len(mine) <= outcomes[Outcome.REJECTED] and all(letter.record is not None for letter in mine), lane_id
        homeless = {
            c.event_id
            for c in changes
            if TransformingPolicy(Takes(), case.wanted, table.keys).apply_change(c) is Outcome.REJECTED
        }
        assert {letter.event_id for letter in mine if letter.stage == "shape"} == homeless, lane_id


def test_sink_without_watermarks_gets_none(monkeypatch):
    less = replace(FakeSink(FakeStore()).features, watermarks=False)
    monkeypatch.setattr(FakeSink, "features", less)
    history = make_random_history(3, 10, toast=True)
    raw, store = make_raw_frame(history, 0, len(history.events)), FakeStore()
    code, shared = start(store, [raw], MemoryRegister({}, Machine()), FakeDeadLetters(), [])
    assert code is ExitCode.CONFIG
    (suspended,) = [run for run in shared.lanes.list_runs() if run.problem]
    assert suspended.lane.id == "late.x" and not store.rows("late.x")
    assert "does not support watermarks" in suspended.problem.sentence and "c:1" in suspended.problem.next_step
