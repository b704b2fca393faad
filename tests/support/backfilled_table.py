"""A table with a reader that follows it like a connector, and a pipeline that backfills it and follows its changes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from adapters.decoders.debezium_avro import DebeziumAvroDecoder
from adapters.decoders.debezium_json import DebeziumJsonDecoder
from adapters.engines.local import LocalEngine
from adapters.sinks.delta.sink import DeltaRsSink
from adapters.sinks.postgres.sink import PostgresSink
from adapters.sources.backfill import JournalSource
from replicator.application.delivery.worker import Worker
from replicator.application.lane_registry import SourceContext
from replicator.application.lane_runs import LaneRuns
from replicator.application.operations.backfill import BackfilledSource, BackfillOperation, BackfillOutcome
from replicator.application.options import RuntimeOptions
from replicator.application.quarantine.rejects import Rejects
from replicator.application.runtime_context import RuntimeContext
from replicator.application.state_folder import FileRegister
from replicator.application.stream.pipeline import SourcePipeline
from replicator.application.supervisor import Supervisor
from replicator.domain.errors import ExitCode
from replicator.domain.position import Position
from replicator.domain.transform.rows import RowTransforms
from replicator.ports.components import TableRules, TransactionRules
from replicator.ports.frames import Lane
from replicator.testing.fakes import FailAfterApply, FailBefore, FakeDeadLetters, FakeSource, Faulty, PassCall
from support.avro_of_connect import Avro
from support.loaded_items import TABLE, PostgresItems
from support.slot_reader import make_frame

COLUMNS = ("id", "note", "turn")
KINDS = {
    "items": ("scd1", RowTransforms()),
    "softly": ("scd1", RowTransforms(soft_deletes=True)),
    "versions": ("scd2", RowTransforms()),
}
LANES = tuple(
    Lane(f"{sink}.{into}", "p", "s", TABLE, sink, into, KINDS[into][0], {}, "c:1", None, KINDS[into][1])
    for sink, into in (("lake", "items"), ("lake", "versions"), ("pg", "softly"), ("pg", "versions"))
)
QUICK = RuntimeOptions(first_delay=0.01, longest_delay=0.05, hold_idle=0.0)


class ProcessKilled(BaseException):
    """Stands for the end of the process."""


class NoTelemetry:
    """Drops all telemetry."""

    def record(self, measured: Any) -> None: ...


@dataclass
class BackfilledTable:
    """A source database, and a pipeline from it into a lake and a schema of PostgreSQL. The source is PostgreSQL at
    `dsn`, unless `items` is given."""

    dsn: str
    folder: Path
    random: Random
    piece_rows: int = 7
    pieces: list[Any] = field(default_factory=list)
    letters: FakeDeadLetters = field(default_factory=FakeDeadLetters)
    lags: bool = False

    items: Any = None
    avro: Avro | None = None
    transactions: TransactionRules | None = None

    def __post_init__(self) -> None:
        self.items = self.items or PostgresItems(self.dsn)
        self.slot = self.items.slot
        self.told = 0

    def execute(self, statement: str) -> list[Any]:
        return self.items.execute(statement)

    def sinks(self) -> dict[str, Any]:
        lake = DeltaRsSink({"path": str(self.folder / "lake")})
        return {"lake": lake, "pg": PostgresSink({"dsn": self.dsn, "schema": "mirror"})}

    def engine(self) -> Any:
        return LocalEngine()

    def writers(self) -> dict[str, Any]:
        """The sinks that write the targets which `sinks` read."""
        return self.sinks()

    def source(self) -> BackfilledSource[Any]:
        return BackfilledSource(FakeSource(self.pieces), self.journal())

    def journal(self) -> JournalSource:
        return JournalSource({"state": str(self.folder / "kept"), "batch_bytes": self.random.choice([10_000, 1 << 20])})

    def poll(self) -> None:
        """Reads the records of the connector, in batches of random sizes."""
        new = self.slot.poll()
        while new:
            count = self.random.choice([5, 50, 500])
            self.pieces.append(self.avro.frame(make_frame(new[:count])) if self.avro else make_frame(new[:count]))
            new = new[count:]
        if self.transactions and self.slot.marks[self.told :]:
            self.pieces.append(make_frame(self.slot.marks[self.told :]))
            self.told = len(self.slot.marks)

    @contextmanager
    def change_unseen(self) -> Iterator[None]:
        """Drops the slot meanwhile: no stream contains the changes made within."""
        self.poll()
        self.slot.drop()
        yield
        self.slot.create()

    def apply(self, _: Position = Position()) -> None:  # noqa: B008
        """Runs once until caught up, with sinks that fail now and then."""
        if not self.lags:
            self.poll()
        engine, stop = self.engine(), threading.Event()
        shared: RuntimeContext[Any] = RuntimeContext(
            engine,
            LaneRuns(NoTelemetry()),
            Rejects(self.letters, engine.frames, stop, QUICK, NoTelemetry()),
            NoTelemetry(),
            QUICK,
            stop,
        )
        actions = [PassCall(), FailAfterApply(), PassCall(), FailBefore()]
        sinks = {n: Faulty(s, {"apply": self.random.sample(actions, 4)}) for n, s in self.writers().items()}
        workers = {name: Worker(name, sink, shared) for name, sink in sinks.items()}
        register = FileRegister(self.folder / "register")
        place = SourceContext(
            "s", self.source(), lambda _: TableRules(LANES), (), workers, register, transactions=self.transactions
        )
        pipeline = SourcePipeline(place, self.decoder(), shared)
        code = Supervisor([pipeline], tuple(workers.values()), self.letters, shared).run(once=True)
        assert code is ExitCode.OK, [run.problem for run in shared.lanes.list_runs()]

    def decoder(self) -> Any:
        url = self.avro.url if self.avro else ""
        return DebeziumAvroDecoder({"registry": {"url": url}}) if url else DebeziumJsonDecoder({})

    def reading(self) -> Any:
        return self.items.backfill(state=str(self.folder / "kept"), piece_rows=self.piece_rows)

    def backfill(self, **more: Any) -> BackfillOutcome:
        reading = self.reading()
        try:
            case = BackfillOperation(
                reading, self.apply, self.source().end, self.read_left_rows, lambda _: None, lambda: None
            )
            return case.run(TABLE, LANES, **more)
        finally:
            reading.close()

    def read_left_rows(self, lane: Lane, where: str) -> Any:
        sink = self.sinks()[lane.sink]
        try:
            reader = sink.features.reader
            return reader.read(lane.into, where=where) if lane.into in reader.tables() else None
        finally:
            sink.close()

    def rows(self, lane: Lane, where: str = "true") -> list[dict[str, Any]]:
        found = self.read_left_rows(lane, where)
        return [] if found is None else found.to_pylist()

    def table(self) -> dict[int, tuple[Any, ...]]:
        return {row[0]: tuple(row) for row in self.execute("SELECT id, note, turn FROM items")}

    def check(self) -> None:
        """Every target equals the table, and nothing was rejected."""
        assert not self.letters.letters
        for lane in LANES:
            rows = self.rows(lane)
            if lane.into == "softly":
                rows = [row for row in rows if not row["_cdc_deleted"]]
            if lane.into == "versions":
                rows = [row for row in rows if row["_cdc_end_seq_1"] is None]
            assert len(rows) == len({row["id"] for row in rows}), lane.id
            assert {row["id"]: tuple(row[c] for c in COLUMNS) for row in rows} == self.table(), lane.id

    def written_down(self) -> list[dict[str, Any]]:
        journal, found = self.journal(), list[dict[str, Any]]()
        take = lambda batch: found.extend(batch.frame.to_pylist())  # noqa: E731
        stored = journal.span()
        journal.read(stored.start, stored.end, take, threading.Event())
        return found


@dataclass
class Writer:
    """Changes rows all the time. Its transactions overlap with those of other writers. Its keys are its own, modulo
    `of`."""

    items: Any
    seed: int
    of: int
    failures: list[BaseException] = field(default_factory=list)
    end: threading.Event = field(default_factory=threading.Event)

    def work(self) -> None:
        random, turn = Random(self.seed), 0
        try:
            with self.items.connect() as connection:
                while not self.end.is_set():
                    for _ in range(random.randint(1, 4)):
                        turn += 1
                        key = random.randrange(0, 60 // self.of) * self.of + self.seed % self.of
                        self.items.change(connection, random, key, turn)
                        self.end.wait(random.random() * 0.1)
                    connection.rollback() if random.random() < 0.1 else connection.commit()
        except BaseException as failure:
            self.failures.append(failure)

    def __enter__(self) -> Writer:
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end.set()
        self.thread.join(30)
        assert not self.failures and not self.thread.is_alive()
