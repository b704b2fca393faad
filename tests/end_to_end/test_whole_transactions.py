"""Transactions over two tables, from a real connector. A reader of the target sees each one whole or not at all."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable

from .compare import read_postgres_table
from .daemon import Daemon
from .stack import World, fetch_rows
from .workload import Cursor

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

TRANSACTIONS = 80
REST = 0.03
LARGE = 1_500
"""Items of one order among them: more than comes in one batch of the broker."""
CREATE = """
CREATE TABLE orders (id bigint PRIMARY KEY, items int, total bigint, written_by text);
CREATE TABLE order_items (id bigint PRIMARY KEY, order_id bigint, price bigint);
"""
SEEN = """
SELECT o.id, o.items, o.total, o.written_by, count(i.id), coalesce(sum(i.price), 0)::bigint
FROM orders o FULL JOIN order_items i ON i.order_id = o.id GROUP BY o.id
"""
TOLD = "SELECT transaction, exact, behind FROM _replicator.transactions WHERE source = 'shop'"
THERE = "SELECT to_regclass('orders'), to_regclass('order_items'), to_regclass('_replicator.transactions')"
INSERT_ITEMS = """
INSERT INTO order_items SELECT %(first)s + n, %(order)s, n %% 7 FROM generate_series(0, %(items)s - 1) AS n"""
Orders = Mapping[int, str]
"""By order the transaction that wrote it last."""


@dataclass
class Clerk:
    """Writes orders with their items, each in one transaction. `done`: the changes to orders by transaction number."""

    dsn: str
    number: int
    done: dict[str, dict[int, bool]] = field(default_factory=dict)
    failures: list[BaseException] = field(default_factory=list)
    ids: int = 0

    def write(self, turns: int = TRANSACTIONS) -> None:
        try:
            with closing(psycopg.connect(self.dsn, autocommit=True)) as connection:
                for turn in range(turns):
                    time.sleep(REST)
                    with connection.transaction(), connection.cursor() as cursor:
                        self._transaction(cursor, turn)
        except BaseException as error:
            self.failures.append(error)

    def next(self, ids: int = 1) -> int:
        self.ids += ids
        return self.number * 1_000_000 + self.ids - ids

    def _transaction(self, cursor: Cursor, turn: int) -> None:
        random, mine = Random(turn), sorted({order for done in self.done.values() for order in done})
        (me,) = cursor.execute("SELECT pg_current_xact_id()::text").fetchone() or ("",)
        done: dict[int, bool] = {}
        order = random.choice(mine) if mine and turn % 3 else None
        there = order is not None and cursor.execute("SELECT FROM orders WHERE id = %s", (order,)).fetchone() is not None
        if order is None or not there:
            order, items = self.next(), LARGE if turn == TRANSACTIONS // 2 else random.randint(1, 5)
            self._items(cursor, order, items)
            cursor.execute("INSERT INTO orders VALUES (%s, 0, 0, '')", (order,))
            self._sum_up(cursor, order, str(me))
            done[order] = True
        elif turn % 3 == 1:
            self._sum_up(cursor, order, str(me), more=1)
            self._items(cursor, order, 1)
            done[order] = True
        else:
            cursor.execute("DELETE FROM orders WHERE id = %s", (order,))
            cursor.execute("DELETE FROM order_items WHERE order_id = %s", (order,))
            done[order] = False
        self.done[str(me)] = done

    def _items(self, cursor: Cursor, order: int, items: int) -> None:
        cursor.execute(INSERT_ITEMS.encode(), {"first": self.next(items), "order": order, "items": items})

    def _sum_up(self, cursor: Cursor, order: int, me: str, more: int = 0) -> None:
        cursor.execute(
            b"UPDATE orders SET written_by = %(me)s, items = %(more)s + found.items, total = found.total "
            b"FROM (SELECT count(*) AS items, sum(price) AS total FROM order_items WHERE order_id = %(order)s) found "
            b"WHERE id = %(order)s",
            {"me": me, "order": order, "more": more},
        )


@dataclass
class Reader:
    """Reads the target all the time, each time in one snapshot. `states`: the rows at each new exact watermark. `torn`:
    orders and items without each other."""

    dsn: str
    states: dict[str, Orders] = field(default_factory=dict)
    torn: list[Any] = field(default_factory=list)
    looks: int = 0
    _end: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def looking(self) -> Iterator[None]:
        thread = threading.Thread(target=self._look_on, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._end.set()
            thread.join()

    def _look_on(self) -> None:
        with closing(psycopg.connect(self.dsn)) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            while not self._end.wait(0.005):
                with connection.transaction():
                    self._look(connection)

    def _look(self, connection: psycopg.Connection[Any]) -> None:
        there = connection.execute(THERE).fetchone() or (None,)
        if None in there:
            return
        self.looks += 1
        seen = connection.execute(SEEN.encode()).fetchall()
        self.torn += [row for row in seen if row[1:3] != row[4:6]]
        for name, exact, _ in connection.execute(TOLD.encode()).fetchall():
            if exact and name is not None:
                self.states.setdefault(name, {row[0]: row[3] for row in seen})


def read_orders(dsn: str) -> Orders:
    return {row["id"]: row["written_by"] for row in read_postgres_table(dsn, "public", "orders")}


def list_ended_transactions(world: World) -> list[str]:
    """The connector's names of the transactions, in the order of their ends."""
    told = [r.payload or {} for r in world.topics.read([f"{world.prefix}.transaction"])]
    return [payload["id"] for payload in told if payload["status"] == "END"]


def compute_expected(names: list[str], clerks: list[Clerk]) -> dict[str, Orders]:
    """The source's rows after each of these transactions."""
    done = {number: change for clerk in clerks for number, change in clerk.done.items()}
    now: dict[int, str] = {}
    after: dict[str, Orders] = {}
    for name in names:
        number = name.partition(":")[0]
        for order, written in done.get(number, {}).items():
            now.pop(order, None)
            now |= {order: number} if written else {}
        after[name] = dict(now)
    return after


def test_readers_see_whole_transactions_only(world: World) -> None:
    """If the watermark is exact, the target equals the source after that transaction."""
    marks = f"{world.prefix}.transaction"
    world.rewrite_config({"tables": [{"match": "public.*", "source": "shop", "to": [{"sink": "target"}, {"sink": "lake"}]}]})
    world.overrides += [
        f'sources.shop.topics=["{world.prefix}.public.*", "{marks}"]',
        f"sources.shop.transactions={{topic: {marks}}}",
    ]
    world.execute(CREATE)
    world.register()
    clerks, reader = [Clerk(world.source, number) for number in (1, 2)], Reader(world.target)
    clerks[0].write(1)  # From here on there are topics.
    daemon = world.daemon()
    with reader.looking():
        await_orders(world, daemon)
        write_concurrently(clerks)
        await_orders(world, daemon)
        last = list_ended_transactions(world)[-1]
        daemon.await_condition(lambda: fetch_rows(world.target, TOLD) == [(last, True, [])], f"the watermark is {last}")
        daemon.await_condition(
            lambda: read_lake_watermark(world).get("transaction") == last, f"the watermark of the lake is {last}"
        )
    after = compute_expected(list_ended_transactions(world), clerks)
    assert not reader.torn
    assert {name: after[name] for name in reader.states} == reader.states
    assert after[last] == read_orders(world.source)
    assert len(reader.states) > 3 and reader.looks > 20
    check_lake(world)
    assert last in world.program("status").stdout
    assert daemon.stop() == 0


def read_lake_watermark(world: World) -> dict[str, Any]:
    """The completeness watermark of the lake."""
    path = world.lake / "_replicator" / "transactions"
    found = DeltaTable(str(path)).to_pyarrow_table().to_pylist() if (path / "_delta_log").is_dir() else []
    return dict(found[0]) if found else {}


def check_lake(world: World) -> None:
    """The versions in the watermark are consistent: every order has its items, and equals the source's."""
    told = read_lake_watermark(world)
    versions = dict(told["versions"])
    tables = {t: DeltaTable(str(world.lake / t), version=v).to_pyarrow_table().to_pylist() for t, v in versions.items()}
    items = Counter(row["order_id"] for row in tables["order_items"])
    assert told["exact"] and not told["behind"]
    assert {row["id"]: row["written_by"] for row in tables["orders"]} == read_orders(world.source)
    assert {row["id"]: row["items"] for row in tables["orders"]} == items


def write_concurrently(clerks: list[Clerk]) -> None:
    threads = [threading.Thread(target=clerk.write, daemon=True) for clerk in clerks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    failures = [failure for clerk in clerks for failure in clerk.failures]
    assert not failures and not any(thread.is_alive() for thread in threads), failures


def await_orders(world: World, daemon: Daemon) -> None:
    written = read_orders(world.source)
    daemon.await_condition(lambda: read_orders(world.target) == written, "every order is there")
