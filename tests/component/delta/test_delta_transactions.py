"""Completeness watermark of a lake: published after the last table is committed, never before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from support.application_world import QUICK
from support.shop_stream import COLUMNS, MARKS, Broker, Rows, Shop

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from adapters.engines.local import LocalEngine
from adapters.observability.prometheus import PrometheusTelemetry
from adapters.sinks.delta.lane import DeltaLane
from adapters.sinks.delta.sink import DeltaRsSink
from adapters.sinks.delta.transaction_table import TransactionTable
from replicator.application.delivery.worker import Worker
from replicator.application.lane_registry import SourceContext
from replicator.application.lane_runs import LaneRuns
from replicator.application.options import RuntimeOptions
from replicator.application.quarantine.rejects import Rejects
from replicator.application.runtime_context import RuntimeContext
from replicator.application.state_folder import FileRegister
from replicator.application.stream.pipeline import SourcePipeline
from replicator.application.supervisor import Supervisor
from replicator.domain.errors import Fatal, ReplicatorError, Retryable
from replicator.domain.position import Position
from replicator.domain.transactions import CompletenessWatermark
from replicator.ports.components import TableRules, TransactionRules
from replicator.ports.frames import Lane
from replicator.testing.fakes import FakeDeadLetters, FakeSink, FakeSource, FakeStore

OPTIONS = replace(QUICK, report_every=0.05, hold_idle=0.02, catch_up_turn=0.05, handover_bytes=1, publish_every=0.0)
RULES = TransactionRules(MARKS, patience=30.0)


class Killed(BaseException):
    """A kill of the program."""


def lane_of(into: str, sink: str = "lake") -> Lane:
    return Lane(f"{sink}.{into}", "p", "s", f"public.{into}", sink, into, "scd1")


@dataclass
class World:
    """One lake and its state folder, the program on them, and the view of a reader."""

    folder: Path
    shop: Shop
    sinks: Sequence[str] = ("lake",)
    options: RuntimeOptions = OPTIONS
    rules: TransactionRules = RULES
    store: FakeStore = field(default_factory=FakeStore)
    letters: FakeDeadLetters = field(default_factory=FakeDeadLetters)

    def start(self, source: FakeSource) -> tuple[Supervisor[Any], RuntimeContext[Any]]:
        engine, stop, gauges = LocalEngine(), threading.Event(), PrometheusTelemetry("1")
        rejects = Rejects(self.letters, engine.frames, stop, self.options, gauges)
        shared: RuntimeContext[Any] = RuntimeContext(engine, LaneRuns(gauges), rejects, gauges, self.options, stop)
        self.sink = DeltaRsSink({"path": str(self.folder / "lake")})
        made = {"lake": self.sink, "other": FakeSink(self.store)}
        workers = {name: Worker(name, made[name], shared) for name in self.sinks}
        place = SourceContext("s", source, self.lanes_of, (), workers, FileRegister(self.folder / "state"), self.rules)
        self.pipeline = SourcePipeline(place, DebeziumJsonDecoder({}), shared)
        return Supervisor([self.pipeline], tuple(workers.values()), self.letters, shared), shared

    def lanes_of(self, table: str) -> TableRules:
        return TableRules(tuple(lane_of(table.rpartition(".")[2], sink) for sink in self.sinks))

    def once(self, pieces: Sequence[pa.Table], source: type[FakeSource] = Broker) -> Supervisor[Any] | None:
        """Runs the pieces to their end. Returns None if the program was killed."""
        supervisor, _ = self.start(source(pieces))
        try:
            supervisor.run(once=True)
        except Killed:
            self.sink.close()  # The system closes it when the program ends.
            return None
        return supervisor

    def table(self, name: str, version: int | None = None) -> dict[int, dict[str, Any]]:
        path = self.folder / "lake" / name
        if not (path / "_delta_log").is_dir():
            return {}
        found = DeltaTable(str(path), version=version).to_pyarrow_table().select(list(COLUMNS[name])).to_pylist()
        return {row["id"]: row for row in found}

    def rows(self) -> Rows:
        return {name: self.table(name) for name in COLUMNS}

    def read_watermark_row(self) -> dict[str, Any] | None:
        path = self.folder / "lake" / "_replicator" / "transactions"
        if not (path / "_delta_log").is_dir():
            return None
        rows = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
        return {**rows[0], "versions": dict(rows[0]["versions"])} if rows else None

    def read_watermark(self) -> tuple[Any, ...]:
        row = self.read_watermark_row() or {}
        return row["transaction"], row["exact"], row["behind"]

    def commits(self) -> int:
        return DeltaTable(str(self.folder / "lake" / "_replicator" / "transactions")).version()

    def wrong(self) -> list[str]:
        """Published statements that are not true."""
        row = self.read_watermark_row()
        if row is None or row["transaction"] is None:
            return []
        name, sink = row["transaction"], DeltaRsSink({"path": str(self.folder / "lake")})
        out = []
        for table in COLUMNS:
            state, topic = sink.state(lane_of(table)), f"cdc.public.{table}"
            reached = state.position if state else Position()
            lacks = {p: o for p, o in self.shop.changes[name].items() if p.topic == topic and reached.get(p, 0) < o}
            out += [f"{table} is not complete up to {name}: {lacks}"] if lacks else []
            rows = self.table(table, row["versions"].get(table)) if table in row["versions"] else {}
            right = rows == self.shop.after[name][table] or not row["exact"]
            out += [] if right else [f"{table} at {row['versions'].get(table)} is not as after {name}"]
        return out


def shop_of(seed: int, transactions: int = 14) -> Shop:
    shop = Shop(Random(seed), partitions=1 + seed % 3)
    for _ in range(transactions):
        shop.anything()
    return shop


@contextmanager
def watch_commits(monkeypatch: pytest.MonkeyPatch, at: Callable[[str], None]) -> Iterator[None]:
    """Calls `at` before and after each commit of a lane and of the watermark; `at` may end the program."""

    def wrap_commit(what: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def acts(*arguments: Any, **named: Any) -> Any:
            at(f"before {what}")
            result = act(*arguments, **named)
            at(f"after {what}")
            return result

        return acts

    with monkeypatch.context() as patch:
        patch.setattr(DeltaLane, "_commit", wrap_commit("a lane", DeltaLane._commit))
        patch.setattr(TransactionTable, "_write_row", wrap_commit("publishing", TransactionTable._write_row))
        yield


@pytest.mark.parametrize("seed", [1, 2])
def test_published_watermark_is_always_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    shop = shop_of(seed, 9)
    # With every second seed a commit has many transactions.
    world = World(tmp_path, shop, options=replace(OPTIONS, handover_bytes=1 if seed % 2 else 200_000))
    wrong: list[str] = []
    seen: set[Any] = set()

    def look(when: str) -> None:
        wrong.extend(f"{when}: {what}" for what in world.wrong())
        row = world.read_watermark_row()
        seen.add((row["transaction"], row["exact"]) if row else None)

    with watch_commits(monkeypatch, look):
        world.once(shop.pieces())
    assert not wrong
    assert world.rows() == shop.rows
    assert world.read_watermark() == (list(shop.after)[-1], True, []) and not world.wrong()
    assert len([one for one in seen if one and one[0] and one[1]]) > 1


@pytest.mark.parametrize("seed", [1, 2, pytest.param(3, marks=pytest.mark.long)])
def test_watermark_is_true_for_lanes_that_join_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Records that such a lane reads itself are not counted."""
    shop, wrong = shop_of(seed, 9), []
    world = World(tmp_path, shop, options=replace(OPTIONS, state_patience=0.0))
    with watch_commits(monkeypatch, lambda when: wrong.extend(f"{when}: {what}" for what in world.wrong())):
        world.once(shop.pieces())
    assert not wrong
    assert world.rows() == shop.rows


@pytest.mark.parametrize("seed", [0, 1, pytest.param(2, marks=pytest.mark.long)])
def test_watermark_is_true_after_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The program is killed around commits and restarted, several times. A second sink is ahead or behind."""
    shop, random = shop_of(seed, 0), Random(seed)
    world = World(tmp_path, shop, sinks=("lake", "other") if seed % 2 else ("lake",))
    points: list[str] = []

    def kill(point: str) -> None:
        if random.random() < 0.1:
            points.append(point)
            raise Killed

    def start() -> None:
        """Runs with all records so far; on every second turn a transaction is still open."""
        nonlocal known
        pieces.extend(shop.pieces(since=known))
        known = {place: len(records) for place, records in shop.log.items()}
        with watch_commits(monkeypatch, kill):
            world.once(pieces)
        assert not world.wrong(), points

    pieces: list[pa.Table] = []
    known: dict[Any, int] = {}
    for turn in range(4):
        for _ in range(3):
            shop.anything()
        shop.transaction(shop.new_order(3), start if turn % 2 else lambda: None)
        start()
    pieces.extend(shop.pieces(since=known))
    world.once(pieces)
    assert points and not world.wrong()
    assert world.rows() == shop.rows
    assert world.read_watermark() == (list(shop.after)[-1], True, [])


def test_watermark_not_published_before_a_kill_is_published_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the next start, although no rows are left to write."""
    shop = shop_of(2, 3)
    world, pieces, last = World(tmp_path, shop), shop.pieces(), list(shop.after)[-1]

    def kill(point: str) -> None:
        if point == "before publishing" and world.rows() == shop.rows:
            raise Killed

    with watch_commits(monkeypatch, kill):
        assert world.once(pieces) is None
    assert world.read_watermark()[0] != last
    world.once(pieces)
    assert world.read_watermark() == (last, True, []) and not world.wrong()


def test_partly_visible_transaction_stays_inexact_after_a_restart(tmp_path: Path) -> None:
    """The transaction was too large, and continues while the program is restarted."""
    shop = shop_of(2, 3)
    world = World(tmp_path, shop, rules=TransactionRules(MARKS, max_bytes=3_000, patience=30.0))
    pieces: list[pa.Table] = []

    def halfway() -> None:
        pieces.extend(shop.pieces())
        for _ in range(2):
            world.once(pieces)
            assert not world.wrong() and world.table("order_items")
            assert (
                world.pipeline.progress.transaction_progress is not None
                and not world.pipeline.progress.transaction_progress.exact
            )

    shop.transaction(shop.new_order(60), halfway)


def test_unchanged_watermark_is_not_committed_again(tmp_path: Path) -> None:
    """Neither after each bundle nor after a restart."""
    shop = shop_of(0, 20)
    pieces = shop.pieces()
    world = World(tmp_path, shop, options=replace(OPTIONS, publish_every=3600.0))
    world.once(pieces)
    commits = world.commits()
    # One commit after the first bundle, and one at the end.
    assert commits <= 2 and world.read_watermark() == (list(shop.after)[-1], True, [])
    world.once(pieces)
    assert world.commits() == commits and not world.wrong()


def test_watermark_is_published_while_the_stream_is_idle(tmp_path: Path) -> None:
    shop = shop_of(2)
    world = World(tmp_path, shop, options=replace(OPTIONS, publish_every=0.3))
    supervisor, shared = world.start(Broker(shop.pieces()))
    thread = threading.Thread(target=supervisor.run, kwargs={"once": False}, daemon=True)
    thread.start()
    end, last = threading.Event(), list(shop.after)[-1]
    for _ in range(600):
        if (world.read_watermark_row() or {}).get("transaction") == last:
            break
        end.wait(0.05)
    assert world.read_watermark() == (last, True, [])
    shared.stop.set()
    thread.join(10)
    assert not thread.is_alive()


class Breaks(DeltaRsSink):
    """A sink that cannot write one table after some calls."""

    def __init__(self, options: Any, table: str, calls: int) -> None:
        super().__init__(options)
        self.table, self.calls = table, calls

    def apply(self, writes: Any, reject: Any) -> Any:
        if any(write.lane.into == self.table for write in writes):
            self.calls -= 1
            if self.calls < 0:
                raise Fatal("the disk is broken there")
        return super().apply(writes, reject)


def test_suspended_lane_holds_the_watermark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This includes changes that were queued before. The lane is listed, and no incomplete transaction is reported as
    complete."""
    shop = shop_of(4, 16)
    world = World(tmp_path, shop, options=replace(OPTIONS, handover_bytes=400_000))
    opened: list[Breaks] = []

    def open_broken(options: Any) -> Breaks:
        opened.append(Breaks(options, "order_items", 2))
        return opened[-1]

    monkeypatch.setattr("test_delta_transactions.DeltaRsSink", open_broken)
    supervisor = world.once(shop.pieces())
    monkeypatch.undo()
    assert supervisor is not None and opened
    assert world.read_watermark()[2] == ["lake.order_items"] and not world.wrong()
    assert world.read_watermark()[0] != list(shop.after)[-1]
    world.once(shop.pieces())
    assert world.read_watermark() == (list(shop.after)[-1], True, []) and not world.wrong()


def test_reset_lane_revokes_the_watermark(tmp_path: Path) -> None:
    shop = shop_of(2)
    pieces = shop.pieces()
    world = World(tmp_path, shop)
    world.once(pieces)
    assert world.read_watermark()[:2] == (list(shop.after)[-1], True)
    sink = DeltaRsSink({"path": str(tmp_path / "lake")})
    sink.reset(lane_of("orders"))
    sink.close()
    assert world.read_watermark() == (None, False, ["lake.orders"])
    world.once(pieces)
    assert world.read_watermark() == (list(shop.after)[-1], True, []) and not world.wrong()
    assert world.rows() == shop.rows


@pytest.mark.parametrize("error", [Retryable("the store is away"), Fatal("the store is broken")])
def test_failed_watermark_commit_does_not_block_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: ReplicatorError
) -> None:
    shop = shop_of(2)
    world = World(tmp_path, shop)

    def refuses(*arguments: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(TransactionTable, "_write_row", refuses)
        supervisor = world.once(shop.pieces())
    assert supervisor is not None
    assert world.rows() == shop.rows and world.read_watermark_row() is None


def test_each_source_and_pipeline_has_its_own_watermark(tmp_path: Path) -> None:
    """With any names, and after the table was opened again."""
    names = [("p", "s"), ("p", "it's a/b=c é"), ("q", "s")]
    for again in range(2):
        sink = DeltaRsSink({"path": str(tmp_path)})
        for pipeline, source in names:
            lane = replace(lane_of("orders"), pipeline=pipeline, source=source)
            sink.publish([lane], CompletenessWatermark(source, f"{pipeline}.{source}", None, True))
        sink.close()
        table = DeltaTable(str(tmp_path / "_replicator" / "transactions"))
        found = table.to_pyarrow_table().to_pylist()
        assert {(r["pipeline"], r["source"], r["transaction"]) for r in found} == {(p, s, f"{p}.{s}") for p, s in names}
        assert table.version() == len(names), again
