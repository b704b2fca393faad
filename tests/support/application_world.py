"""A whole program over tuples: the state that survives a crash, and the program started on it."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from replicator.application.delivery.worker import Worker
from replicator.application.lane_registry import SourceContext
from replicator.application.lane_runs import Clock, LaneRuns, monotonic
from replicator.application.options import RuntimeOptions
from replicator.application.quarantine.poison_records import PoisonRecordFinder
from replicator.application.quarantine.rejects import Rejects
from replicator.application.runtime_context import RuntimeContext
from replicator.application.stream.pipeline import SourcePipeline
from replicator.application.supervisor import Supervisor
from replicator.ports.components import TableRules, make_event_log_lane
from replicator.ports.frames import Lane
from replicator.ports.stores import RegisterEntry
from support.tuple_engine import TupleDecoder, TupleEngine, TupleRecord
from support.tuple_ports import DeadLetterList, Machine, MemoryRegister, RecordedTelemetry, Target, TupleSink, TupleSource

BOTH = (("a", "scd1"), ("b", "append"))
QUICK = RuntimeOptions(
    first_delay=0.001,
    longest_delay=0.002,
    drain=5.0,
    reject_patience=0.02,
    report_every=0.01,
    hold_idle=0.005,
    hold_bytes=1,  # Every batch is larger, as a full one is.
)


@dataclass
class ReplicatedTuples:
    """Everything that survives a crash. `start` starts a program on it."""

    log: list[TupleRecord]
    cuts: Sequence[int] = (1000,)
    lanes: dict[str, list[tuple[str, str]]] = field(default_factory=lambda: {"public.items": [*BOTH]})
    logs: Sequence[str] = ("raw",)
    event_logs: Mapping[str, frozenset[str]] = field(default_factory=dict)
    decoder: TupleDecoder = field(default_factory=TupleDecoder)
    engine: TupleEngine = field(default_factory=TupleEngine)
    options: RuntimeOptions = QUICK
    clock: Clock = monotonic
    has_backfills: bool = False
    notes: Path | None = None
    """Where the program notes records that kill it."""
    targets: dict[str, Target] = field(default_factory=dict)
    letters: dict[tuple[str, str], Any] = field(default_factory=dict)
    register: dict[str, RegisterEntry] = field(default_factory=dict)

    def rules(self, table: str) -> TableRules | None:
        entries = self.lanes.get(table)
        if entries is None:
            return None
        into = table.rpartition(".")[2]
        lanes = tuple(
            Lane(f"{sink}.{into}", "p", "s", table, sink, into, policy, config_line="replicator.yaml:7")
            for sink, policy in entries
        )
        return TableRules(lanes, (), self.event_logs.get(table, frozenset(self.logs)))

    def start(self, machine: Machine | None = None) -> RunningProgram:
        return RunningProgram(self, machine or Machine())


class RunningProgram:
    """One start of the program over `ReplicatedTuples`."""

    def __init__(self, world: ReplicatedTuples, machine: Machine) -> None:
        self.world, self.machine = world, machine
        self.telemetry = RecordedTelemetry()
        self.engine = world.engine
        self.letters = DeadLetterList(world.letters, machine)
        self.source = TupleSource(world.log, world.cuts, machine)
        names = sorted({sink for entries in world.lanes.values() for sink, _ in entries} | set(world.logs))
        self.sinks = {name: TupleSink(name, world.targets, machine) for name in names}
        stop = threading.Event()
        rejects = Rejects(self.letters, self.engine.frames, stop, world.options, self.telemetry)
        self.shared: RuntimeContext[Any] = RuntimeContext(
            self.engine, LaneRuns(self.telemetry), rejects, self.telemetry, world.options, stop, clock=world.clock
        )
        self.workers = {name: Worker(name, sink, self.shared) for name, sink in self.sinks.items()}
        logs = [make_event_log_lane("p", "s", name) for name in world.logs]
        register = MemoryRegister(world.register, machine)
        crashes = PoisonRecordFinder(world.notes, self.engine.frames, rejects, "s", self.shared.decoding)
        place = SourceContext(
            "s",
            self.source,
            world.rules,
            logs,
            self.workers,
            register,
            poison_records=crashes,
            has_backfills=world.has_backfills,
        )
        self.pipeline: SourcePipeline[Any] = SourcePipeline(place, world.decoder, self.shared)
        self.supervisor = Supervisor([self.pipeline], list(self.workers.values()), self.letters, self.shared)
        self.lanes = self.shared.lanes
        self.code: Any = None
        self.thread: threading.Thread | None = None

    def once(self) -> Any:
        return self.supervisor.run(once=True)

    def in_background(self, *, once: bool = False, timeout: float | None = None) -> RunningProgram:
        def run() -> None:
            try:
                self.code = self.supervisor.run(once=once, timeout=timeout)
            except BaseException as error:
                self.code = error

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()
        return self

    def stop(self) -> Any:
        self.shared.stop.set()
        return self.join()

    def join(self) -> Any:
        assert self.thread is not None
        self.thread.join(10)
        assert not self.thread.is_alive(), "the program did not end"
        return self.code


def await_condition(condition, seconds=20.0):
    """Waits for the work of another thread."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.002)


def compute_rows(log: Sequence[TupleRecord], table: str = "public.items") -> dict[Any, tuple[int, dict[str, Any]]]:
    """The current rows of a table. Applies one change at a time."""
    rows: dict[Any, tuple[int, dict[str, Any]]] = {}
    departed: dict[Any, dict[str, Any]] = {}
    for rec in log:
        if rec.kind != "change" or rec.table != table:
            continue
        if rec.op == "t":
            rows.clear()
        elif rec.op == "d":
            old = rows.pop(rec.key, None)
            if rec.moved_to and old:
                departed[rec.key] = old[1]
        else:
            base = rows.get(rec.key, (0, {}))[1] if rec.moved_from is None else departed.get(rec.moved_from, {})
            rows[rec.key] = (rec.seq, {n: v for n, v in base.items() if n in rec.unsent} | dict(rec.values))
    return rows
