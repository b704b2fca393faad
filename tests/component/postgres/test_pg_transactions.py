"""Lanes of a source advance together at its transactions: a reader of the target never sees an order without its items."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from support.application_world import QUICK
from support.shop_stream import COLUMNS, MARKS, Broker, Rows, Shop

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from adapters.engines.local import LocalEngine
from adapters.observability.prometheus import PrometheusTelemetry
from adapters.sinks.postgres.sink import PostgresSink
from replicator.application.delivery.worker import Worker
from replicator.application.lane_registry import SourceContext
from replicator.application.lane_runs import LaneRuns
from replicator.application.options import RuntimeOptions
from replicator.application.quarantine.rejects import Rejects
from replicator.application.runtime_context import RuntimeContext
from replicator.application.state_folder import FileRegister
from replicator.application.stream.pipeline import SourcePipeline
from replicator.application.supervisor import Supervisor
from replicator.domain.errors import ExitCode
from replicator.ports.components import TableRules, TransactionRules
from replicator.ports.frames import Lane
from replicator.testing.fakes import FakeDeadLetters, FakeSink, FakeSource, FakeStore

pytestmark = pytest.mark.postgres

OPTIONS = replace(QUICK, report_every=0.05, hold_idle=0.02, catch_up_turn=0.05, handover_bytes=1)
RULES = TransactionRules(MARKS, patience=30.0)
TORN = """
SELECT o.id FROM mirror.orders o LEFT JOIN mirror.order_items i ON i.order_id = o.id GROUP BY o.id, o.items, o.total
HAVING count(i.id) <> o.items OR coalesce(sum(i.price), 0) <> o.total
UNION ALL SELECT i.id FROM mirror.order_items i LEFT JOIN mirror.orders o ON o.id = i.order_id WHERE o.id IS NULL
"""
WATERMARK_QUERY = "SELECT transaction, exact, behind FROM _replicator.transactions"


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Reader:
    """Reads the target after every commit, in one snapshot. `seen` lists published transactions, `exact` counts the
    exact ones. `torn` lists orders and items without each other. `wrong` lists exact states that the source never had
    after that transaction."""

    dsn: str
    shop: Shop
    seen: list[str | None] = field(default_factory=list)
    exact: int = 0
    torn: list[Any] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def look(self) -> None:
        with psycopg.connect(self.dsn) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            there = connection.execute("SELECT to_regclass('mirror.orders'), to_regclass('mirror.order_items')").fetchone()
            if there is None or None in there:
                return
            self.torn += connection.execute(TORN.encode()).fetchall()
            watermark = connection.execute("SELECT to_regclass('_replicator.transactions')").fetchone()
            if watermark is None or watermark[0] is None:
                return
            for name, exact, _ in connection.execute(WATERMARK_QUERY.encode()).fetchall():
                self.seen.append(name)
                self.exact += exact
                if exact and name is not None and rows_of(connection) != self.shop.after[name]:
                    self.wrong.append(name)

    @contextmanager
    def looking(self):
        """Reads the target all the time, also between commits."""
        end = threading.Event()

        def read_repeatedly() -> None:
            while not end.wait(0.002):
                self.look()

        thread = threading.Thread(target=read_repeatedly, daemon=True)
        thread.start()
        yield
        end.set()
        thread.join()


def rows_of(connection: psycopg.Connection[Any]) -> Rows:
    out: Rows = {}
    for table, columns in COLUMNS.items():
        (there,) = connection.execute("SELECT to_regclass(%s)", (f"mirror.{table}",)).fetchone() or (None,)
        rows = connection.execute(f"SELECT {', '.join(columns)} FROM mirror.{table}".encode()).fetchall() if there else []
        out[table] = {row[0]: dict(zip(columns, row, strict=True)) for row in rows}
    return out


class Watched(PostgresSink):
    """Calls `after_commit` after each commit, and `at` with an even number before and an odd one after. `at` may raise."""

    after_commit: Callable[[], None] = staticmethod(lambda: None)
    at: Callable[[int], None] = staticmethod(lambda number: None)
    number = 0

    def apply(self, writes, reject):
        self.number += 1
        self.at(2 * self.number)
        applied = super().apply(writes, reject)
        self.after_commit()
        self.at(2 * self.number + 1)
        return applied


@dataclass
class World:
    """A target, a register folder, and pipelines that run on them."""

    dsn: str
    folder: Path
    rules: TransactionRules | None = RULES
    lanes: Sequence[str] = ("pg",)
    options: RuntimeOptions = OPTIONS
    store: FakeStore = field(default_factory=FakeStore)
    letters: FakeDeadLetters = field(default_factory=FakeDeadLetters)

    def lanes_of(self, table: str) -> TableRules:
        into = table.rpartition(".")[2]
        return TableRules(tuple(Lane(f"{s}.{into}", "p", "s", table, s, into, "scd1") for s in self.lanes))

    def start(self, source: FakeSource, reader: Reader | None = None, at: Any = None) -> tuple[Supervisor[Any], Any]:
        engine, stop, gauges = LocalEngine(), threading.Event(), PrometheusTelemetry("1")
        rejects: Rejects[Any] = Rejects(self.letters, engine.frames, stop, self.options, gauges)
        shared: RuntimeContext[Any] = RuntimeContext(engine, LaneRuns(gauges), rejects, gauges, self.options, stop)
        self.sink = Watched({"dsn": self.dsn, "schema": "mirror"})
        self.sink.after_commit = reader.look if reader else self.sink.after_commit
        self.sink.at = at or self.sink.at
        sinks = {"pg": self.sink, "other": FakeSink(self.store)}
        workers = {name: Worker(name, sinks[name], shared) for name in self.lanes}
        register = FileRegister(self.folder)
        place = SourceContext("s", source, self.lanes_of, (), workers, register, self.rules)
        pipeline = SourcePipeline(place, DebeziumJsonDecoder({}), shared)
        return Supervisor([pipeline], tuple(workers.values()), self.letters, shared), pipeline

    def once(self, pieces: Sequence[pa.Table], reader: Reader | None = None, at: Any = None) -> Any:
        supervisor, pipeline = self.start(Broker(pieces), reader, at)
        try:
            code = supervisor.run(once=True)
        except Killed:
            self.sink.close()  # As the server does when a connection is lost.
            return None
        held_back = pipeline.held_back_problem  # Where the pieces end within a transaction.
        assert code is (held_back.code if held_back else ExitCode.OK), supervisor.problem
        return pipeline

    def rows(self) -> Rows:
        with psycopg.connect(self.dsn) as connection:
            return rows_of(connection)

    def has_tables(self) -> bool:
        """True once the tables exist."""
        with psycopg.connect(self.dsn) as connection:
            return connection.execute("SELECT to_regclass('mirror.orders') IS NOT NULL").fetchone() == (True,)

    def read_watermark(self) -> tuple[Any, ...]:
        with psycopg.connect(self.dsn) as connection:
            (row,) = connection.execute(WATERMARK_QUERY.encode()).fetchall()
            return row


def make_shop(seed: int, transactions: int = 25) -> Shop:
    shop = Shop(Random(seed), partitions=1 + seed % 3)
    if seed % 2:
        shop.snapshot()
    for _ in range(transactions):
        shop.anything()
    return shop


def seeds(*always: int) -> list[Any]:
    """These seeds, with one, two and three partitions. A long run adds others."""
    return [*always, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(6) if seed not in always)]


@pytest.mark.parametrize("seed", seeds(0, 3, 4))
def test_orders_and_items_become_visible_together(postgres_dsn: str, tmp_path: Path, seed: int) -> None:
    """This holds after and between commits, for any cut of batches and any order of partitions."""
    shop = make_shop(seed - seed % 2)  # No snapshot: its rows belong to no transaction.
    # In every second case, many transactions are collected before a commit.
    options = replace(OPTIONS, handover_bytes=1 if seed % 2 else 400_000)
    reader, world = Reader(postgres_dsn, shop), World(postgres_dsn, tmp_path, options=options)
    with reader.looking():
        world.once(shop.pieces(), reader)
    assert not reader.torn and not reader.wrong
    assert world.rows() == shop.rows
    assert len(set(reader.seen)) > 1 and reader.exact
    assert world.read_watermark() == (list(shop.after)[-1], True, [])


@pytest.mark.parametrize("seed", seeds(0, 1, 2))
def test_killed_process_leaves_no_torn_transactions(postgres_dsn: str, tmp_path: Path, seed: int) -> None:
    """The process is killed before and after commits, and started again several times. A second sink is ahead or
    behind."""
    shop = make_shop(2 * seed)
    pieces, random = shop.pieces(), Random(seed)
    reader, world = Reader(postgres_dsn, shop), World(postgres_dsn, tmp_path, lanes=("pg", "other"))

    def kill(number: int) -> None:
        if number > 2 and random.random() < 0.15:
            raise Killed

    for end in (len(pieces) // 3, 2 * len(pieces) // 3, len(pieces), len(pieces)):
        world.once(pieces[:end], reader, kill)
    world.once(pieces, reader)
    assert not reader.torn and not reader.wrong
    assert world.rows() == shop.rows
    assert world.read_watermark() == (list(shop.after)[-1], True, [])


def test_reader_sees_torn_orders_without_transaction_rules(postgres_dsn: str, tmp_path: Path) -> None:
    """The tests above would see this if every batch was committed at once."""
    shop, options = make_shop(4), replace(OPTIONS, handover_bytes=1)
    reader, world = Reader(postgres_dsn, shop), World(postgres_dsn, tmp_path, rules=None, options=options)
    world.once(shop.pieces(), reader)
    assert reader.torn and world.rows() == shop.rows


def test_too_large_transaction_becomes_visible_in_parts(postgres_dsn: str, tmp_path: Path) -> None:
    """The watermark is inexact while parts of the transaction may be visible, and exact again after its end."""
    shop = Shop(Random(1))
    small = shop.transaction(shop.new_order(2))
    large = shop.transaction(shop.new_order(400))
    last = shop.transaction(shop.new_order(2))
    reader = Reader(postgres_dsn, shop)
    world = World(postgres_dsn, tmp_path, TransactionRules(MARKS, max_bytes=60_000, patience=30.0))
    pipeline = world.once(shop.pieces(20), reader)
    assert reader.torn and not reader.wrong
    assert {small, last} <= set(reader.seen) and reader.exact < len(reader.seen)
    assert world.rows() == shop.rows and large in shop.after
    assert world.read_watermark() == (last, True, [])
    assert pipeline.progress.transaction_progress.exact and not pipeline.progress.transaction_progress.held_bytes


@pytest.mark.parametrize("lacking", [MARKS, "cdc.public.order_items"])
def test_missing_topic_is_not_awaited_beyond_the_patience(postgres_dsn: str, tmp_path: Path, lacking: str) -> None:
    """The topic of transactions or of a table is missing. After the patience, other records become visible as they
    arrive."""
    shop = Shop(Random(2))
    for _ in range(5):
        shop.transaction(shop.new_order(2))
    shop.log = {place: records for place, records in shop.log.items() if place[0] != lacking}
    world = World(postgres_dsn, tmp_path, TransactionRules(MARKS, patience=0.3))
    if lacking == MARKS:
        shop.log[MARKS, 0] = [{"topic": MARKS, "partition": 0, "offset": 0, "timestamp": None, "key": None, "value": b"{}"}]
    supervisor, pipeline = world.start(Broker(shop.pieces()))
    thread = threading.Thread(target=supervisor.run, kwargs={"once": False}, daemon=True)
    thread.start()
    wait_until(lambda: world.has_tables() and world.rows()["orders"] == shop.rows["orders"])
    assert not pipeline.progress.transaction_progress.exact
    pipeline._runtime.stop.set()
    thread.join(10)
    assert not thread.is_alive()


def test_transaction_rules_apply_to_lanes_that_ran_without_them(postgres_dsn: str, tmp_path: Path) -> None:
    """Older transactions are not awaited, and newer ones are not torn. Customers get no rows meanwhile."""
    shop = make_shop(0, 10)
    pieces = shop.pieces()
    World(postgres_dsn, tmp_path, rules=None).once(pieces)
    world = World(postgres_dsn, tmp_path)
    for more in (1, 10):
        reader = Reader(postgres_dsn, shop)
        before = {place: len(records) for place, records in shop.log.items()}
        for _ in range(more):
            shop.transaction(shop.new_order(3))
        pieces += shop.pieces(since=before)
        world.once(pieces, reader)
    assert not reader.torn and not reader.wrong
    assert world.rows() == shop.rows and world.read_watermark() == (list(shop.after)[-1], True, [])


def test_reset_lane_revokes_its_watermark(postgres_dsn: str, tmp_path: Path) -> None:
    shop = make_shop(0, 8)
    pieces, world, last = shop.pieces(), World(postgres_dsn, tmp_path), list(shop.after)[-1]
    world.once(pieces)
    assert world.read_watermark() == (last, True, [])
    sink = PostgresSink({"dsn": postgres_dsn, "schema": "mirror"})
    sink.reset(world.lanes_of("public.orders").lanes[0])
    sink.close()
    assert world.read_watermark() == (None, False, ["pg.orders"])
    world.once(pieces)
    assert world.read_watermark() == (last, True, []) and world.rows() == shop.rows


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not become true in time"
        time.sleep(0.05)
