"""Lanes that join late while transactions are tracked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from support.shop_stream import COLUMNS, MARKS, Rows, Shop, make_frame

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from adapters.engines.local import LocalEngine
from adapters.observability.prometheus import PrometheusTelemetry
from replicator.application.delivery.worker import Worker
from replicator.application.lane_registry import SourceContext
from replicator.application.lane_runs import LaneRun, LaneRuns
from replicator.application.operations.lanes import Control
from replicator.application.options import RuntimeOptions
from replicator.application.quarantine.rejects import Rejects
from replicator.application.runtime_context import RuntimeContext
from replicator.application.state_folder import FileRegister
from replicator.application.stream.pipeline import SourcePipeline
from replicator.application.supervisor import Supervisor
from replicator.domain.change import RAW
from replicator.domain.errors import ExitCode
from replicator.ports.components import TableRules, TransactionRules
from replicator.ports.frames import Lane
from replicator.testing.fakes import FakeDeadLetters, FakeSink, FakeSource, FakeStore

OPTIONS = RuntimeOptions(catch_up_turn=5.0)
LATE = "a.orders"


class Scripted(FakeSource):
    """Does what it is told to between its pieces, and lets the pipeline turn after that."""

    steps: Sequence[Any] = ()

    def run(self, start, consume_batch, stop, *, once):
        position = start
        for step in self.steps:
            if isinstance(step, pa.Table):
                position = self._hand_over(step, position, consume_batch)
            elif step is None:
                self._hand_over(RAW.empty_table(), position, consume_batch)
            else:
                step()

    def read(self, start, until, consume_batch, stop):
        """All at once, as a broker may."""
        FakeSource([pa.concat_tables(self.pieces)]).read(start, until, consume_batch, stop)


@dataclass
class World:
    """The answers of the sink for lanes that are `withheld` do not arrive; all others arrive at once."""

    folder: Path
    together: bool
    store: FakeStore = field(default_factory=FakeStore)
    withheld: set[str] = field(default_factory=set)

    def lanes_of(self, table: str) -> TableRules:
        into = table.rpartition(".")[2]
        return TableRules((Lane(f"a.{into}", "p", "s", table, "a", into, "scd1"),))

    def once(self, steps: Sequence[Any]) -> ExitCode:
        engine, stop, gauges, letters = LocalEngine(), threading.Event(), PrometheusTelemetry("1"), FakeDeadLetters()
        self.lanes = LaneRuns(gauges)
        shared: RuntimeContext[Any] = RuntimeContext(
            engine, self.lanes, Rejects(letters, engine.frames, stop, OPTIONS, gauges), gauges, OPTIONS, stop
        )
        source = Scripted([step for step in steps if isinstance(step, pa.Table)])
        source.steps = steps
        worker: Worker[Any] = Worker("a", FakeSink(self.store), shared)
        rules = TransactionRules(MARKS, together=self.together)
        place = SourceContext("s", source, self.lanes_of, (), {"a": worker}, FileRegister(self.folder), rules)
        self.pipeline = SourcePipeline(place, DebeziumJsonDecoder({}), shared)
        self.control = Control(self.lanes, {"s": self.pipeline})
        self.pipeline.registry.receive_states = self.settling(self.pipeline.registry)  # type: ignore[method-assign]
        self.supervisor = Supervisor([self.pipeline], (worker,), letters, shared)
        return self.supervisor.run(once=True)

    def settling(self, roster: Any) -> Callable[[float], None]:
        settle = roster.receive_states

        def settling(_: float) -> None:
            apart = {lane: roster._pending.pop(lane) for lane in self.withheld & set(roster._pending)}
            settle(5.0)
            roster._pending.update(apart)

        return settling

    def run(self) -> LaneRun:
        run = self.lanes.find(LATE)
        assert run is not None
        return run

    def rows(self) -> Rows:
        found = {name: self.store.rows(f"a.{name}") if f"a.{name}" in self.store.lanes else [] for name in COLUMNS}
        return {name: {row["id"]: {c: row[c] for c in COLUMNS[name]} for row in rows} for name, rows in found.items()}

    def hold_lanes(self, *lanes: str) -> None:
        self.withheld |= {*lanes} or {LATE}

    def release(self) -> None:
        self.withheld.clear()

    def fill(self, *, full: bool) -> None:
        self.lanes.wait_for_rows(self.run(), None, is_full=full)

    def resync(self) -> None:
        self.hold_lanes()
        self.control.resync(LATE)

    def restart(self) -> None:
        self.hold_lanes()
        self.pipeline.registry.restart_lane(self.run())


@pytest.fixture(params=[True, False], ids=["held", "followed"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> World:
    return World(tmp_path, together=request.param)


class RecordedShop:
    """A shop, and what it has logged, of one topic or of all of them, since it was last asked for that."""

    def __init__(self) -> None:
        self.shop, self.known = Shop(Random(1)), dict[tuple[str, int], int]()

    def new(self, *tables: str) -> pa.Table:
        records = []
        for place, log in self.shop.log.items():
            if not tables or place[0].rpartition(".")[2] in tables:
                records += log[self.known.get(place, 0) :]
                self.known[place] = len(log)
        return make_frame(records)

    def each(self, table: str) -> list[pa.Table]:
        records = self.new(table)
        return [records.slice(n, 1) for n in range(records.num_rows)]


def late(world: World, how: str) -> tuple[Callable[[], None], Callable[[], None]]:
    """What makes the lane leave, or not come; and what makes it join."""
    return {
        "new": (world.hold_lanes, world.release),
        "restarted": (world.restart, world.release),
        "resynced": (world.resync, world.release),
        "paused": (lambda: world.control.pause(LATE), lambda: world.control.resume(LATE)),
        "full": (lambda: world.fill(full=True), lambda: world.fill(full=False)),
    }[how]


@pytest.mark.parametrize("how", ["new", "restarted", "resynced", "paused", "full"])
def test_transaction_with_a_part_in_a_late_lane_is_complete(world: World, how: str) -> None:
    told, (leaves, joins) = RecordedShop(), late(world, how)
    told.shop.transaction([("customers", "c", {"id": 99, "name": "x"})] if how == "new" else told.shop.new_order(2))
    before = told.new()
    for _ in range(3):
        told.shop.transaction(told.shop.new_order(2))
    steps = [before, leaves, None, told.new("orders"), joins, None, None, told.new("order_items"), told.new()]
    code = world.once(steps)
    assert (code, world.supervisor.problem) == (ExitCode.OK, None)
    assert world.rows() == told.shop.rows
    assert world.pipeline._transactions is not None
    assert world.pipeline._transactions.progress.last == list(told.shop.after)[-1] or not world.together


def test_part_of_a_transaction_in_a_late_lane_is_not_held_back(world: World) -> None:
    """The end of the transaction has not arrived."""
    told, pieces = RecordedShop(), list[pa.Table]()
    changes = sorted(told.shop.new_order(3), key=lambda change: change[0] != "orders")
    told.shop.transaction(changes, lambda: pieces.extend([told.new("order_items", "transaction"), told.new("orders")]))
    world.once([world.hold_lanes, *pieces, world.release])
    found = world.rows()
    assert (len(found["orders"]), len(found["order_items"])) == (1, 1)


@pytest.mark.parametrize("how", ["restarted", "resynced", "paused"])
def test_changes_counted_by_the_stream_are_not_counted_by_a_lane(world: World, how: str) -> None:
    told, (leaves, joins) = RecordedShop(), late(world, how)
    complete: list[str | None] = []

    def look() -> None:
        assert world.pipeline._transactions is not None
        complete.append(world.pipeline._transactions.progress.last)

    told.shop.transaction(told.shop.new_order(1))
    whole = told.new()
    orders = [("orders", "c", {"id": n, "items": 0, "total": 0, "note": "x"}) for n in range(97, 100)]
    last = told.shop.transaction(orders)
    (one, two, three), ends = told.each("orders"), told.new("transaction")
    world.once([whole, one, leaves, two, joins, None, None, ends, None, look, three, None, look])
    assert last not in complete[:1] and (complete[1:] == [last] or not world.together)
    assert world.rows() == told.shop.rows


def test_parts_applied_before_the_start_count(world: World) -> None:
    """Of two transactions, which wait for different tables."""
    told = RecordedShop()
    told.shop.transaction([*told.shop.new_order(2), ("customers", "c", {"id": 98, "name": "x"})])
    whole = told.new()
    told.shop.transaction(told.shop.new_order(2))
    line = {"id": 97, "order_id": 1, "price": 7}
    told.shop.transaction([("order_items", "c", line), ("customers", "c", {"id": 99, "name": "x"})])
    orders, customers = told.new("orders"), told.new("customers")
    world.once([lambda: world.hold_lanes("a.orders", "a.customers"), whole, orders, customers, world.release])
    code = world.once([whole, orders, customers, told.new()])
    assert (code, world.supervisor.problem) == (ExitCode.OK, None)
    assert world.rows() == told.shop.rows
