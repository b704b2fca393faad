"""Completeness watermark of a lake without a transaction barrier: sometimes behind, never ahead."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from support.shop_stream import COLUMNS, Broker, Shop
from test_delta_transactions import QUICK, RULES, Breaks, Killed, World, lane_of, watch_commits

from adapters.sinks.delta.sink import DeltaRsSink
from replicator.domain.position import Position, TopicPartition

Records = list[dict[str, Any]]


@dataclass
class Unsteady(Shop):
    """A shop whose connector is sometimes killed before the broker acknowledged everything. It resumes at an earlier
    change, of this or the previous transaction. `copies`: offsets of each change, by transaction."""

    kills: float = 0.5
    copies: dict[int, dict[int, list[tuple[TopicPartition, int]]]] = field(default_factory=dict)
    before: list[tuple[int, Records]] = field(default_factory=list)

    def transaction(self, changes: Any, halfway: Callable[[], None] = lambda: None) -> str:
        self.number += 1
        records = self.make_records(changes)
        self.before = [*self.before[-1:], (self.number, records)]
        self.copies[self.number] = {n: [] for n in range(len(records))}
        if self.random.random() >= self.kills:
            return self.send_attempt(self.number, records, 0, halfway)
        lost = self.begin_attempt(records)
        halfway()
        number, again, since = self.number, records, self.random.randint(0, lost)
        if len(self.before) == 2 and self.random.random() < 0.3:
            number, again = self.before[0]
            self.send_attempt(number, again, self.random.randrange(len(again)))
            number, again, since = self.number, records, 0
        return self.send_attempt(number, again, since)

    def make_records(self, changes: Any) -> Records:
        """The records of a transaction, without offsets. A null record belongs to the change before it."""
        log, self.log = self.log, {}
        found: Records = []
        for table, op, row in changes:
            self.change(table, op, row)
            (records,) = self.log.values()
            found.append({"table": table, "records": records})
            self.log = {}
        self.log = log
        self.reach = {}
        return found

    def begin_attempt(self, records: Records) -> int:
        """Sends the first attempt. Returns the first change without acknowledgement; partitions stop at different
        changes."""
        self.send_marker(self.number, "BEGIN")
        reached = self.random.randint(0, len(records))
        refused: dict[Any, int] = {}
        for n, change in enumerate(records[:reached]):
            partition = (change["records"][0]["topic"], change["records"][0]["partition"])
            if partition in refused or self.random.random() < 0.3:
                refused.setdefault(partition, n)
            else:
                self.deliver(self.number, n, change)
        if reached == len(records) and self.random.random() < 0.7:
            self.send_marker(self.number, "END", records)
        return min([*refused.values(), reached, len(records) - 1])

    def send_attempt(self, number: int, records: Records, since: int, halfway: Callable[[], None] = lambda: None) -> str:
        self.send_marker(number, "BEGIN")
        for n, change in enumerate(records[since:], since):
            if n == len(records) // 2:
                halfway()
            self.deliver(number, n, change)
        return self.send_marker(number, "END", records[since:])

    def send_marker(self, number: int, status: str, records: Records = ()) -> str:
        """Sends a marker; it counts the changes sent in this attempt."""
        events: dict[str, int] = {}
        for change in records:
            events[change["table"]] = events.get(change["table"], 0) + 1
        newest, self.number = self.number, number
        name = self.mark(status, events or None)
        self.number = newest
        self.after[name] = {}
        return name

    def deliver(self, number: int, n: int, change: dict[str, Any]) -> None:
        for record in change["records"]:
            self.put(record["topic"], record["partition"], record["key"], record["value"])
        at = TopicPartition(record["topic"], record["partition"])
        offset = len(self.log[at.topic, at.partition]) - len(change["records"])
        self.copies[number][n].append((at, offset))


@dataclass
class Followed(World):
    """A world without a transaction barrier."""

    shop: Unsteady

    def __post_init__(self) -> None:
        self.rules = replace(self.rules, together=False)
        # Records before a lane knows its state are not counted, and this may take long on a busy machine.
        self.options = replace(self.options, state_patience=600.0)

    def wrong(self) -> list[str]:
        row = self.read_watermark_row()
        if row is None or row["transaction"] is None:
            return []
        name, sink = row["transaction"], DeltaRsSink({"path": str(self.folder / "lake")})
        reached = Position()
        for table in COLUMNS:
            state = sink.state(lane_of(table))
            topic = f"cdc.public.{table}"
            position = state.position if state else Position()
            reached = reached.advanced_to(position.only(p for p in position if p.topic == topic))
        lacking = [
            f"{name} is published, but change {n} of {number} is missing"
            for number, changes in self.shop.copies.items()
            for n, copies in changes.items()
            if number <= int(name.split(":")[0]) and not any(reached.get(p, 0) > offset for p, offset in copies)
        ]
        return [*lacking, *([f"{name} is published as exact"] if row["exact"] else [])]


def steady(seed: int, transactions: int) -> Unsteady:
    shop = Unsteady(Random(seed), partitions=1 + seed % 3, kills=0.0)
    for _ in range(transactions):
        shop.anything()
    return shop


@pytest.mark.parametrize("seed", [1, 2])
def test_every_transaction_is_published_and_none_too_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    shop = steady(seed, 9)
    world = Followed(tmp_path, shop, options=replace(QUICK, handover_bytes=1 if seed % 2 else 200_000))
    wrong: list[str] = []
    seen: set[Any] = set()

    def look(when: str) -> None:
        wrong.extend(f"{when}: {what}" for what in world.wrong())
        seen.add((world.read_watermark_row() or {}).get("transaction"))

    with watch_commits(monkeypatch, look):
        world.once(shop.pieces())
    assert not wrong and len(seen - {None}) > seed % 2
    assert world.rows() == shop.rows
    assert world.read_watermark() == (list(shop.after)[-1], False, [])


@pytest.mark.parametrize(("seed", "patience"), [(1, 0.1), (2, 0.0), (3, 30.0)])
def test_watermark_is_true_after_kills_of_connector_and_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, patience: float
) -> None:
    """Changes are sent again in a transaction that counts from zero, and the program is killed around commits.
    Unprovable transactions are passed in the end, if patience allows it."""
    shop, random = Unsteady(Random(seed), partitions=1 + seed % 3), Random(seed)
    world = Followed(tmp_path, shop, rules=replace(RULES, patience=patience))
    pieces: list[pa.Table] = []
    known: dict[Any, int] = {}
    wrong: list[str] = []

    def look(point: str) -> None:
        wrong.extend(f"{point}: {what}" for what in world.wrong())
        if random.random() < 0.05:
            raise Killed

    def start() -> None:
        """Runs with all records so far."""
        nonlocal known
        pieces.extend(shop.pieces(since=known))
        known = {place: len(records) for place, records in shop.log.items()}
        with watch_commits(monkeypatch, look):
            world.once(pieces)
        assert not wrong and not world.wrong()

    for turn in range(5):
        for _ in range(2):
            shop.anything()
        shop.transaction(shop.new_order(4), start if turn % 2 else lambda: None)
        start()
    shop.kills = 0.0
    for _ in range(3):
        shop.anything()
    pieces.extend(shop.pieces(since=known))
    last = list(shop.after)[-1]
    supervisor, shared = world.start(Broker(pieces))
    thread = threading.Thread(target=supervisor.run, kwargs={"once": False}, daemon=True)
    thread.start()
    until = time.monotonic() + (60.0 if patience < 1 else 1.0)
    while (world.read_watermark_row() or {}).get("transaction") != last and time.monotonic() < until:
        time.sleep(0.05)
    shared.stop.set()
    thread.join(30)
    assert not thread.is_alive() and not world.wrong()
    assert patience > 1 or (world.read_watermark() == (last, False, []) and world.rows() == shop.rows)


def test_watermark_not_published_before_a_kill_is_published_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill does not revoke the watermark. The next start publishes the missing one."""
    shop = steady(2, 4)
    world, pieces, last = Followed(tmp_path, shop), shop.pieces(), list(shop.after)[-1]

    def kill(point: str) -> None:
        if point == "before publishing" and world.rows() == shop.rows:
            raise Killed

    with watch_commits(monkeypatch, kill):
        assert world.once(pieces) is None
    assert (world.read_watermark_row() or {}).get("transaction") != last
    world.once(pieces)
    assert world.read_watermark() == (last, False, [])


def test_suspended_lane_is_listed_as_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = steady(4, 16)
    world = Followed(tmp_path, shop, options=replace(QUICK, handover_bytes=400_000))
    monkeypatch.setattr("test_delta_transactions.DeltaRsSink", lambda options: Breaks(options, "order_items", 2))
    world.once(shop.pieces())
    monkeypatch.undo()
    assert world.read_watermark()[2] == ["lake.order_items"] and not world.wrong()
    assert world.read_watermark()[0] != list(shop.after)[-1]
    world.once(shop.pieces())
    for _ in range(4):  # A lane that has caught up may be listed until the next transaction has ended.
        shop.anything()
    world.once(shop.pieces())
    assert not world.wrong() and world.read_watermark()[2] == [] and world.rows() == shop.rows


def test_transaction_across_a_restart_is_published(tmp_path: Path) -> None:
    """Its first records are read again, and written once."""
    shop = steady(5, 6)
    world = Followed(tmp_path, shop)
    name = shop.transaction(shop.new_order(9), lambda: world.once(shop.pieces()))
    assert world.read_watermark()[0] != name
    world.once(shop.pieces())
    assert world.read_watermark() == (name, False, []) and not world.wrong()
    assert world.rows() == shop.rows


def test_rows_of_an_open_transaction_are_visible(tmp_path: Path) -> None:
    """Records of a transaction are visible before its end."""
    shop = steady(2, 3)
    world = Followed(tmp_path, shop)

    def halfway() -> None:
        before = sum(len(changes) for number, changes in shop.copies.items() if number < shop.number)
        world.once(shop.pieces())
        assert len(world.table("order_items")) > before
        assert world.read_watermark()[0] == name and not world.wrong()

    name = list(shop.after)[-1]
    shop.transaction(shop.new_order(60), halfway)
