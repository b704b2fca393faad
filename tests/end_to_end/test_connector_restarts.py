"""Restarts of the connector in open transactions and during one COPY, on a server on which older connectors lost rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg
import pytest
from support.registered_source import make_slot_name, register_source

from adapters.stack.connect import ConnectService

from .connector_restart import (
    read_connector_offset,
    request_connector,
    reset_to_last_commit,
    restart_without_loss,
    resume_connector,
    stop_connector,
)
from .daemon import await_condition
from .newer_postgres import NEWER, SMALL, SOURCE, start_newer_server
from .stack import STREAMS, World, fetch_rows
from .workload import Cursor

pytestmark = [pytest.mark.stack, pytest.mark.timeout(450)]

CREATE = """
CREATE TABLE orders (id bigint PRIMARY KEY, note text);
CREATE TABLE order_items (id bigint PRIMARY KEY, order_id bigint);
CREATE TABLE coupons (id bigint PRIMARY KEY);
CREATE TABLE vouchers (id bigint PRIMARY KEY);
"""
TABLES = ("orders", "order_items", "coupons", "vouchers")
COPIED = 800
READ_OF_NEW_TABLES = "pg_catalog.pg_description"
"""The catalog that the connector reads between BEGIN and the first row of a table of which it has sent no row yet."""


@contextmanager
def start_followed_server(world: World, folder: Path) -> Iterator[str]:
    """A server of the newer version with a connector that follows its log. Yields the superuser's DSN."""
    with start_newer_server(world, folder) as port:
        world.execute(CREATE)
        world.connectors.add(world.prefix)
        register_source(world.stack, world.prefix, world.prefix, database__port=str(port), **SMALL)
        admin = SOURCE.dsn(port, world.prefix, superuser=True)
        await_condition(lambda: fetch_rows(admin, STREAMS, make_slot_name(world.prefix)), "the connector follows the log")
        yield admin
        world.stack.rest.delete(world.connector)


class Shop:
    """Writes orders with their items."""

    def __init__(self, dsn: str) -> None:
        self.dsn, self._ids, self.ended = dsn, count(1), 0

    def order(self, cursor: Cursor, items: int) -> None:
        order = next(self._ids)
        cursor.execute("INSERT INTO orders VALUES (%s, '')", (order,))
        for _ in range(items):
            cursor.execute("INSERT INTO order_items VALUES (%s, %s)", (next(self._ids), order))

    @contextmanager
    def transaction(self) -> Iterator[Cursor]:
        with psycopg.connect(self.dsn) as connection:
            yield connection.cursor()
        self.ended += 1

    def orders(self) -> None:
        """Some, each in a transaction of its own."""
        for _ in range(3):
            with self.transaction() as cursor:
                self.order(cursor, 2)

    def order_open_over(self, happening: Callable[[], None], before: str = "") -> None:
        """One whose transaction is open while others end, and something happens before it ends. Its next row is written
        where the last of the others ended in the log; nothing else is committed before it ends: it would hide the loss."""
        with self.transaction() as cursor:
            if before:
                cursor.execute(f"INSERT INTO {before} VALUES (1)".encode())
            self.order(cursor, 5)
            self.orders()
            self.order(cursor, 3)
            happening()
        self.orders()

    def copy_items(self) -> None:
        with self.transaction() as cursor, cursor.copy("COPY order_items FROM STDIN") as copy:
            for _ in range(COPIED):
                copy.write_row((next(self._ids), 0))


def read_ids(dsn: str, table: str) -> set[int]:
    return {key for (key,) in fetch_rows(dsn, f"SELECT id FROM {table}")}


def read_sent_ids(world: World, table: str) -> set[int]:
    topics = world.topics.names(world.topic(table))
    return {r.payload["after"]["id"] for r in world.topics.read(topics) if r.payload is not None} if topics else set()


def find_lost_rows(world: World) -> dict[str, set[int]]:
    """Rows of the source that were not sent."""
    found = {table: read_ids(world.source, table) - read_sent_ids(world, table) for table in TABLES}
    return {table: keys for table, keys in found.items() if keys}


def read_marked_transactions(world: World, status: str) -> set[str]:
    """Transactions whose BEGIN or END was sent."""
    topics = world.topics.names(f"{world.prefix}.transaction")
    marks = [record.payload for record in world.topics.read(topics)] if topics else []
    return {mark["id"].partition(":")[0] for mark in marks if mark and mark["status"] == status}


def await_ends(world: World, shop: Shop) -> None:
    """Waits until the connector is behind the end of the last transaction. A restart must find that position again."""
    await_condition(
        lambda: len(read_marked_transactions(world, "END")) == shop.ended,
        f"{shop.ended} transactions were sent to their ends",
        100,
    )


@pytest.mark.skipif(not NEWER, reason="needs PostgreSQL 17 or newer")
def test_connector_restart_loses_no_row(world: World, tmp_path: Path) -> None:
    marks = f"{world.prefix}.transaction"
    world.rewrite_config({"tables": [{"match": "public.*", "source": "shop", "to": [{"sink": "target"}]}]})
    world.overrides += [
        f'sources.shop.topics=["{world.prefix}.public.*", "{marks}"]',
        f"sources.shop.transactions={{topic: {marks}}}",
    ]

    def restart_behind_the_others() -> None:
        await_ends(world, shop)
        restart_without_loss(world)

    with start_followed_server(world, tmp_path / "newer"):
        shop = Shop(world.source)
        shop.orders()
        shop.order_open_over(restart_behind_the_others)
        shop.copy_items()
        time.sleep(0.1)
        restart_without_loss(world)
        await_ends(world, shop)
        assert find_lost_rows(world) == {}
        assert world.run_until_caught_up() == 0
        for table in ("orders", "order_items"):
            assert read_ids(world.target, table) == read_ids(world.source, table)
        assert fetch_rows(world.target, "SELECT exact, behind FROM _replicator.transactions") == [(True, [])]


def stop_between_begin_and_first_row(world: World, shop: Shop, admin: str, table: str) -> None:
    """Stops the connector within a transaction that was open while others ended. It has sent BEGIN, and waits for the
    schema of `table`, of which it has sent no row yet."""
    (log,) = [service.log for service in world.stack.services if isinstance(service, ConnectService)]
    stopping = f"Stopping task {world.connector}-0"
    with psycopg.connect(admin) as other:
        other.execute(f"LOCK TABLE {READ_OF_NEW_TABLES} IN ACCESS EXCLUSIVE MODE".encode())
        begun, stopped = len(read_marked_transactions(world, "BEGIN")), log.read_text().count(stopping)
        shop.order_open_over(lambda: None, before=table)
        await_condition(lambda: len(read_marked_transactions(world, "BEGIN")) == begun + 4, "the transaction has begun")
        request_connector(world, "PUT", "stop")
        await_condition(lambda: log.read_text().count(stopping) > stopped, "it is about to stop")
        time.sleep(0.5)
    stop_connector(world)
    assert read_connector_offset(world)["messageType"] == "BEGIN"


@pytest.mark.skipif(not NEWER, reason="needs PostgreSQL 17 or newer")
def test_connector_restart_between_begin_and_first_row_skips_rows(world: World, tmp_path: Path) -> None:
    """A defect of the connector; the docs say what to do before a restart. When a newer connector skips nothing, change
    the docs."""
    with start_followed_server(world, tmp_path / "newer") as admin:
        shop = Shop(world.source)
        shop.orders()
        await_ends(world, shop)
        stop_between_begin_and_first_row(world, shop, admin, "coupons")
        resume_connector(world)
        await_ends(world, shop)
        lost = find_lost_rows(world)
        assert (lost.keys(), lost["coupons"]) == ({"coupons", "orders", "order_items"}, {1})

        stop_between_begin_and_first_row(world, shop, admin, "vouchers")
        reset_to_last_commit(world)
        resume_connector(world)
        await_ends(world, shop)
        assert find_lost_rows(world) == lost
