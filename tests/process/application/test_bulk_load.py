"""Spill files partitioned by key, from which a new target is loaded in one commit."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from support.application_world import QUICK
from support.tuple_ports import Machine, MemoryRegister, RecordedTelemetry

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from adapters.engines import decode_pool
from adapters.engines.decode_pool import NUMBER, DecodeWorker
from adapters.engines.local import LocalEngine
from adapters.sinks.delta.sink import DeltaRsSink
from replicator.application.delivery import bulk_load
from replicator.application.delivery.worker import Worker
from replicator.application.lane_registry import SourceContext
from replicator.application.lane_runs import LaneRuns
from replicator.application.quarantine.rejects import Rejects
from replicator.application.runtime_context import RuntimeContext
from replicator.application.stream.pipeline import SourcePipeline
from replicator.application.supervisor import Supervisor
from replicator.domain.errors import ExitCode, Retryable
from replicator.domain.policy.plan import CDC_APPLIED_AT, EVENT_ID
from replicator.domain.policy.policies import plan_for
from replicator.ports.components import TableRules
from replicator.ports.frames import Lane
from replicator.testing.debezium import make_raw_frame
from replicator.testing.delivery import to_canonical_rows
from replicator.testing.fakes import FakeDeadLetters, FakeSource
from replicator.testing.histories import History, make_random_history
from replicator.testing.model import fold_changes
from replicator.testing.sink_base import make_history, make_writes
from replicator.testing.source import EPOCH, Statement, StreamShape

GATHERING = replace(QUICK, gather=60.0, handover_bytes=1)
"""Each batch is a piece."""


LONG, POLICIES = pytest.mark.long, ("scd1", "scd2")
SEEDS = [pytest.param(seed, marks=() if 1 <= seed <= 3 else LONG) for seed in range(8)]
DECODED_AHEAD = [
    pytest.param(seed, policy, marks=() if (seed, policy) == (0, "scd2") else LONG)
    for seed in range(3)
    for policy in POLICIES
]
KILLED = [
    pytest.param(
        after, policy, marks=() if (after, policy) in {(1, "scd1"), (2, "scd1"), (4, "scd2"), (7, "scd1")} else LONG
    )
    for after in range(1, 8)
    for policy in POLICIES
]


class ProcessKilled(BaseException):
    """Stands for the end of the process."""


class Sink(DeltaRsSink):
    """Records its calls. `faults` are raised before or after a load."""

    faults: list[tuple[str, BaseException]]

    def __init__(self, folder: Path, faults: Sequence[tuple[str, BaseException]] = ()) -> None:
        super().__init__({"path": str(folder)})
        self.faults, self.did = list(faults), []

    def apply(self, writes, reject):
        self.did.append("apply")
        return super().apply(writes, reject)

    def load(self, write, parts, reject, folder):
        self.did.append("load")
        when, error = self.faults.pop(0) if self.faults else ("", None)
        if error is not None and when == "before":
            next(iter(parts))
            raise error
        outcome = super().load(write, parts, reject, folder)
        if error is not None:
            raise error
        return outcome


class Source(FakeSource):
    """Records the offset from which it is read."""

    starts: list[int]

    def run(self, start, consume_batch, stop, *, once):
        self.starts = [*start.values()]
        super().run(start, consume_batch, stop, once=once)


class Program:
    """One start of a replay over state that survives it."""

    options: ClassVar[dict[str, int]] = {}

    def __init__(self, folder: Path, pieces: Sequence[pa.Table], policy: str, faults=(), seen=None) -> None:
        engine, stop, gauges = LocalEngine(self.options), threading.Event(), RecordedTelemetry()
        self.letters = FakeDeadLetters()
        self.sink = Sink(folder / "lake", faults)
        self.shared = RuntimeContext(
            engine, LaneRuns(gauges), Rejects(self.letters, engine.frames, stop, GATHERING, gauges), gauges, GATHERING, stop
        )
        self.worker = Worker("s", self.sink, self.shared, folder / "laid")
        self.lane = Lane("s.x", "p", "s", "public.items", "s", "x", policy, {}, "c:1")
        rules = TableRules((self.lane,))
        register = MemoryRegister({} if seen is None else seen, Machine())
        self.source = Source(pieces)
        place = SourceContext("s", self.source, lambda _: rules, (), {"s": self.worker}, register)
        self.pipeline = SourcePipeline(place, DebeziumJsonDecoder({}), self.shared)

    def run(self) -> ExitCode:
        return Supervisor([self.pipeline], (self.worker,), self.letters, self.shared).run(once=True)

    def rows(self) -> list[dict[str, Any]]:
        return self.sink.read("x").to_pylist()


def make_pieces(history: History) -> list[pa.Table]:
    edges = sorted({0, len(history.events), *(d.end for d in history.deliveries)})
    return [make_raw_frame(history, a, b) for a, b in pairwise(edges)]


def equals_model(history: History, policy: str, program: Program) -> None:
    table = history.table()
    changes = [replace(change, ts=change.ts or EPOCH) for change in history.changes()]
    rows, _ = fold_changes(policy, table.column_names, table.keys, changes)
    columns = [c.name for c in plan_for(policy, table).target if c.name not in (CDC_APPLIED_AT, EVENT_ID)]
    there, due = to_canonical_rows(program.rows(), columns), to_canonical_rows(rows, columns)
    assert (dict(due - there), dict(there - due)) == ({}, {}), columns
    counts = program.shared.lanes.list_runs()[0].counts
    assert counts.rejected == 0


def make_ordered_history(seed: int) -> History:
    """All changes in order of their sequence, in few batches, with key changes and truncates."""
    history = make_random_history(seed, 40, toast=True, keys=("int", "text", "composite"))
    return replace(history, shape=replace(history.shape, scramble=None, shuffle=None, partitions=1, unseen=False))


@pytest.mark.parametrize("policy", ["scd1", "scd2"])
@pytest.mark.parametrize("seed", SEEDS)
def test_targets_equal_the_model(seed: int, policy: str, tmp_path: Path) -> None:
    history = make_ordered_history(seed)
    program = Program(tmp_path, make_pieces(history), policy)
    assert program.run() is ExitCode.OK, program.shared.lanes.list_runs()[0].problem
    if history.changes():
        equals_model(history, policy, program)
    assert not list((tmp_path / "laid").rglob("*.arrow"))


@pytest.mark.parametrize("policy", ["scd1", "scd2"])
@pytest.mark.parametrize("seed", SEEDS)
def test_partitions_folded_separately_equal_the_model(
    seed: int, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large partitions are folded so, whatever they contain."""
    monkeypatch.setattr(bulk_load, "MIN_FOLD_BYTES", 0)
    test_targets_equal_the_model(seed, policy, tmp_path)
    history = make_history(*make_bulk_history()[0].statements, Statement("write", 3, salt=70), Statement("delete", 4))
    program = Program(tmp_path / "other", [make_raw_frame(history, 0, 40), make_raw_frame(history, 40)], policy)
    assert program.run() is ExitCode.OK
    equals_model(history, policy, program)


@pytest.mark.skipif(not NUMBER, reason="needs two processors, and files in memory")
@pytest.mark.parametrize(("seed", "policy"), DECODED_AHEAD)
def test_prefetched_batches_equal_the_model(seed: int, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, ask, is_ready = [], DecodeWorker.send_request, DecodeWorker.is_ready
    monkeypatch.setattr(
        DecodeWorker, "send_request", lambda self, how, raw: asked.append(raw.num_rows) or ask(self, how, raw)
    )
    monkeypatch.setattr(
        DecodeWorker, "is_ready", lambda self: self._line.poll(60) and is_ready(self) if not self._is_ready else True
    )
    monkeypatch.setattr(decode_pool, "FEW", 1)
    monkeypatch.setattr(Program, "options", {"ahead": 2})
    test_new_target_is_one_commit(policy, tmp_path / "steady")
    assert len(asked) > 2
    test_targets_equal_the_model(seed, policy, tmp_path / "random")


def make_bulk_history() -> tuple[History, list[pa.Table]]:
    """A history in eight pieces that is bulk loaded whole. Keys are written again and again, and deleted."""
    random = Random(7)
    acts = [
        Statement("delete", random.randrange(9))
        if random.random() < 0.2
        else Statement("write", random.randrange(9), salt=n)
        for n in range(64)
    ]
    history = make_history(*acts)
    edges = [*range(0, len(history.events), len(history.events) // 8), len(history.events)]
    return history, [make_raw_frame(history, a, b) for a, b in pairwise(edges) if a < b]


@pytest.mark.parametrize("policy", ["scd1", "scd2"])
def test_new_target_is_one_commit(policy: str, tmp_path: Path) -> None:
    history, pieces = make_bulk_history()
    program = Program(tmp_path, pieces, policy)
    assert program.run() is ExitCode.OK
    assert program.sink.did == ["load"]
    equals_model(history, policy, program)
    assert program.shared.lanes.list_runs()[0].counts.total == len(history.changes())
    more = make_history(*history.statements, *make_writes(1, 2, salt=90), Statement("delete", 3))
    again = Program(tmp_path, [*pieces, make_raw_frame(more, len(history.events), len(more.events))], policy)
    assert again.run() is ExitCode.OK
    assert again.sink.did == ["apply"], "a target with rows is merged into"
    equals_model(more, policy, again)


@pytest.mark.parametrize(("after", "policy"), KILLED)
def test_killed_program_resumes(after: int, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The piece that was being spilled is spilled again. Of the earlier pieces only the last one is read again."""
    history, pieces = make_bulk_history()
    say, said = bulk_load.SpillFiles._write_manifest, []

    def dies(self: bulk_load.SpillFiles) -> None:
        said.append(None)
        if len(said) == after:
            raise ProcessKilled
        say(self)

    monkeypatch.setattr(bulk_load.SpillFiles, "_write_manifest", dies)
    seen: dict[str, Any] = {}
    killed = Program(tmp_path, pieces, policy, seen=seen)
    with pytest.raises(ProcessKilled):
        killed.run()
    monkeypatch.undo()
    killed.sink.close()
    program = Program(tmp_path, pieces, policy, seen=seen)
    assert program.run() is ExitCode.OK
    assert program.sink.did == ["load"]
    equals_model(history, policy, program)
    assert program.source.starts == [pieces[max(after - 2, 0)]["offset"][0].as_py()]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("error", [ProcessKilled(), Retryable("away")])
def test_failed_load_is_repeated(when: str, error: BaseException, tmp_path: Path) -> None:
    history, pieces = make_bulk_history()
    program = Program(tmp_path, pieces, "scd1", [(when, error)])
    if isinstance(error, ProcessKilled):
        with pytest.raises(ProcessKilled):
            program.run()
        program.sink.close()
        program = Program(tmp_path, pieces, "scd1")
    assert program.run() is ExitCode.OK, program.shared.lanes.list_runs()[0].problem
    equals_model(history, "scd1", program)
    assert not list((tmp_path / "laid").rglob("*.arrow"))


def run_until_spilled(folder: Path, pieces: Sequence[pa.Table], policy: str = "scd1") -> Program:
    """A program that is stopped after it has spilled these pieces."""
    program = Program(folder, pieces, policy)
    program.worker.start()
    run = program.source.run

    def ends(*args: Any, **more: Any) -> None:
        run(*args, **more)
        program.shared.stop.set()

    program.source.run = ends  # type: ignore[method-assign]
    program.pipeline.run(once=True)
    program.worker.finish()
    program.worker.join(None)
    program.sink.close()
    return program


def test_load_is_reported_as_a_call_of_the_sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, pieces = make_bulk_history()
    load, calls = Sink.load, []

    def record_call(*args: Any) -> Any:
        calls.append(program.shared.lanes.get_sink_call("s"))
        return load(*args)

    monkeypatch.setattr(Sink, "load", record_call)
    program = Program(tmp_path, pieces, "scd1")
    assert program.run() is ExitCode.OK
    assert [doing for doing, _ in calls] == ["loading s.x"]


def test_spill_files_wait_after_a_stop_request(tmp_path: Path) -> None:
    history, pieces = make_bulk_history()
    before = run_until_spilled(tmp_path, pieces[:5])
    assert before.sink.did == [] and not before.rows()
    program = Program(tmp_path, pieces, "scd1")
    assert program.run() is ExitCode.OK and program.sink.did == ["load"]
    equals_model(history, "scd1", program)


@pytest.mark.parametrize("policy", ["scd1", "scd2"])
def test_spill_files_are_loaded_before_a_truncate(policy: str, tmp_path: Path) -> None:
    """Also if the truncate is the first write after a restart."""
    history, pieces = make_bulk_history()
    more = make_history(*history.statements, Statement("truncate"), *make_writes(1, 2, salt=90))
    run_until_spilled(tmp_path, pieces[:5], policy)
    end = pieces[4]["offset"][-1].as_py() - history.events[0].offset + 1
    rest = [*pieces[:4], make_raw_frame(more, end - pieces[4].num_rows, len(more.events))]
    program = Program(tmp_path, rest, policy)
    assert program.run() is ExitCode.OK, program.shared.lanes.list_runs()[0].problem
    assert program.sink.did[0] == "load"
    equals_model(more, policy, program)


def test_spill_files_without_their_records_suspend_the_lane(tmp_path: Path) -> None:
    _, pieces = make_bulk_history()
    run_until_spilled(tmp_path, pieces[:5])
    program = Program(tmp_path, pieces[:4], "scd1")
    assert program.run() is ExitCode.RUNTIME and not program.rows()
    problem = program.shared.lanes.list_runs()[0].problem
    assert problem is not None and "by no record" in problem.sentence


def test_reject_of_a_load_is_a_dead_letter_with_its_record(tmp_path: Path) -> None:
    """The numbers do not fit into a table that existed before."""
    history = make_history(*make_writes(*range(6)), shape=StreamShape(values=("int",), tombstones=False))
    frames = [make_raw_frame(history, a, a + 1) for a in range(len(history.events))]
    program = Program(tmp_path, frames, "scd1")
    table = history.table()
    narrow = replace(table, columns=tuple(replace(c, type=pa.int32()) if c.name == "v1" else c for c in table.columns))
    there = DeltaRsSink({"path": str(tmp_path / "lake")})
    there.prepare(program.lane, plan_for("scd1", narrow))
    there.close()
    large = {change.image["k1"] for change in history.changes() if abs(change.image["v1"] or 0) >= 2**31}
    assert program.run() is ExitCode.OK and program.sink.did == ["load"]
    assert 0 < len(large) < 6 and len(program.rows()) == 6 - len(large)
    letters = program.letters.read()
    assert {json.loads(letter.record)["payload"]["after"]["k1"] for letter in letters} == large
    assert {letter.stage for letter in letters} == {"apply"}
    assert program.shared.lanes.list_runs()[0].counts.rejected == len(large)


@pytest.mark.parametrize("what", [(LocalEngine, "partitioner", "another hash"), (bulk_load, "FORMAT", 2)])
def test_spill_files_of_another_program_version_are_written_again(
    what, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another hash assigns a key to another partition."""
    history, pieces = make_bulk_history()
    run_until_spilled(tmp_path, pieces[:5])
    monkeypatch.setattr(*what)
    program = Program(tmp_path, pieces, "scd1")
    assert program.run() is ExitCode.OK and program.sink.did == ["load"]
    equals_model(history, "scd1", program)


def test_spill_files_of_another_policy_are_discarded(tmp_path: Path) -> None:
    _, pieces = make_bulk_history()
    run_until_spilled(tmp_path, pieces[:5])
    program = Program(tmp_path, pieces, "scd2")
    assert program.run() is ExitCode.CONFIG and program.sink.did == []
    problem = program.shared.lanes.list_runs()[0].problem
    assert problem is not None and "written under" in problem.sentence


def test_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    _, pieces = make_bulk_history()
    monkeypatch.setattr(bulk_load.SpillFiles, "_write_manifest", full)
    program = Program(tmp_path, pieces, "scd1")
    assert program.run() is not ExitCode.OK
    problem = program.shared.lanes.list_runs()[0].problem
    assert (
        problem is not None
        and "No space left on device" in problem.sentence
        and "Free disk space" in (problem.next_step or "")
    )
    assert not program.rows()
