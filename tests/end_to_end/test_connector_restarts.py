"""The connector restarted in open transactions and while it delivers one COPY, on a server on which older connectors lose
rows by it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import psycopg
import pytest
from servers.ports import free_port

from adapters.stack.layout import DATABASES
from adapters.stack.pg_init import create_database, create_publication
from adapters.stack.pg_install import installations
from adapters.stack.postgres import PostgresService

from .daemon import until
from .stack import World, rows
from .workload import Cursor

pytestmark = [pytest.mark.stack, pytest.mark.timeout(450)]

FIRST_THAT_DECODES_ANEW = 17
"""From here on PostgreSQL sends an open transaction again after a restart of the connector."""
NEWER = [found for found in installations() if found.major >= FIRST_THAT_DECODES_ANEW]
CREATE = """
CREATE TABLE orders (id bigint PRIMARY KEY, note text);
CREATE TABLE order_items (id bigint PRIMARY KEY, order_id bigint);
"""
COPIED = 800
SMALL = {"max__batch__size": "50", "max__queue__size": "100"}
"""So that a restart falls into the delivery of the copied rows."""
SOURCE = DATABASES["source"]


@contextmanager
def newer_server(world: World, folder: Path) -> Iterator[int]:
    """A server of the newer version for the world's source, beside the stack's own; its port."""
    home = replace(world.stack.home, folder=folder, ports=replace(world.stack.home.ports, source=free_port()))
    server = PostgresService(home, SOURCE, installation=NEWER[0])
    try:
        server.start()
        server.wait()
        port = home.ports.source
        create_database(SOURCE.dsn(port, "postgres", superuser=True), world.prefix, SOURCE.user)
        create_publication(SOURCE.dsn(port, world.prefix, superuser=True))
        world.source = SOURCE.dsn(port, world.prefix)
        yield port
    finally:
        server.stop()
        server.erase()


class Shop:
    """Writes orders with their items."""

    def __init__(self, dsn: str) -> None:
        self.dsn, self._ids = dsn, count(1)

    def order(self, cursor: Cursor, items: int) -> None:
        order = next(self._ids)
        cursor.execute("INSERT INTO orders VALUES (%s, '')", (order,))
        for _ in range(items):
            cursor.execute("INSERT INTO order_items VALUES (%s, %s)", (next(self._ids), order))

    def orders(self) -> None:
        """Some, each in a transaction of its own."""
        for _ in range(3):
            with psycopg.connect(self.dsn) as connection:
                self.order(connection.cursor(), 2)

    def order_open_over(self, happening: Callable[[], None]) -> None:
        """One whose transaction is open while others end, and something happens; nothing else is committed before it ends:
        what the connector sees first would hide the loss."""
        with psycopg.connect(self.dsn) as connection:
            self.order(connection.cursor(), 5)
            self.orders()
            time.sleep(1)  # They are delivered, and their place is stored.
            happening()
            self.order(connection.cursor(), 3)
        self.orders()

    def copy_items(self) -> None:
        with psycopg.connect(self.dsn) as connection, connection.cursor().copy("COPY order_items FROM STDIN") as copy:
            for _ in range(COPIED):
                copy.write_row((next(self._ids), 0))


def restart(world: World) -> None:
    """Restart the connector and its task as an operator does."""
    world.stack.rest.restart(world.connector)
    time.sleep(0.5)  # Connect reports the old state for a moment.
    world.stack.rest.wait_running(world.connector, 60)


def of_table(dsn: str, table: str) -> set[int]:
    return {key for (key,) in rows(dsn, f"SELECT id FROM {table}")}


def sent(world: World, table: str) -> set[int]:
    records = world.topics.read([world.topic(table)])
    return {record.payload["after"]["id"] for record in records if record.payload is not None}


def all_sent(world: World, table: str, there: set[int]) -> bool:
    """Whether these rows are in the topic. A task that fails because the one before it still holds the slot is restarted, as
    an operator does."""
    state = world.stack.rest.state(world.connector)
    if state is not None and state.failed:
        print(f"restarted again: {state.trace_head}")
        restart(world)
    return sent(world, table) >= there


def await_sent(world: World, table: str) -> None:
    """A connector that stands still is restarted once more: what it has passed over does not come by that either."""
    there = of_table(world.source, table)
    for is_last in (False, True):
        try:
            until(partial(all_sent, world, table, there), f"all rows of {table} were sent", 100)
            return
        except AssertionError:
            lacking = sorted(there - sent(world, table))
            print(f"{len(lacking)} of {len(there)} lacking: {lacking[:20]}; {world.stack.rest.state(world.connector)}")
            if is_last:
                raise
            restart(world)


@pytest.mark.skipif(not NEWER, reason="needs PostgreSQL 17 or newer")
def test_no_row_is_lost_when_the_connector_is_restarted(world: World, tmp_path: Path) -> None:
    marks = f"{world.prefix}.transaction"
    world.rewrite_config({"tables": [{"match": "public.*", "source": "shop", "to": [{"sink": "target"}]}]})
    world.overrides += [
        f'sources.shop.topics=["{world.prefix}.public.*", "{marks}"]',
        f"sources.shop.transactions={{topic: {marks}}}",
    ]
    with newer_server(world, tmp_path / "newer") as port:
        world.execute(CREATE)
        world.connectors.add(world.prefix)
        world.stack.register_source(world.prefix, world.prefix, database__port=str(port), **SMALL)
        shop = Shop(world.source)
        shop.orders()
        until(lambda: world.topics.names(world.topic("order_items")), "there are topics")
        for _ in range(2):
            shop.order_open_over(partial(restart, world))
            shop.copy_items()
            time.sleep(0.1)
            restart(world)
        for table in ("orders", "order_items"):
            await_sent(world, table)
        assert world.run_until_caught_up() == 0
        for table in ("orders", "order_items"):
            assert of_table(world.target, table) == of_table(world.source, table)
        assert rows(world.target, "SELECT exact, behind FROM _replicator.transactions") == [(True, [])]
        world.stack.rest.delete(world.connector)
