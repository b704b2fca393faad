"""`ALTER TABLE` in a source whose rows keep changing: every target has the columns of the source, and its rows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

from . import compare
from .conftest import MakeWorld
from .shops import MIRRORS, await_caught_up, await_no_difference, read_mirror_table
from .stack import World

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

TABLE = "CREATE TABLE gauges (id bigint PRIMARY KEY, name text, n int, note text, price numeric(6,2))"
STATEMENTS = (
    "ALTER TABLE gauges ADD COLUMN extra text",
    "ALTER TABLE gauges DROP COLUMN note",
    "ALTER TABLE gauges RENAME COLUMN name TO title",
    "ALTER TABLE gauges ALTER COLUMN n TYPE bigint",
    "ALTER TABLE gauges ALTER COLUMN price TYPE numeric(9,2)",
    "ALTER TABLE gauges ALTER COLUMN n TYPE int USING (n % 1000)::int",
)
"""Added, dropped, renamed, widened twice, narrowed."""


class Load(threading.Thread):
    """Inserts, updates and deletes rows with the current columns of the table, until `ended` is set."""

    def __init__(self, dsn: str) -> None:
        super().__init__(daemon=True)
        self._dsn = dsn
        self.ended = threading.Event()
        self.statements = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with closing(psycopg.connect(self._dsn, autocommit=True)) as connection:
                while not self.ended.is_set():
                    self._turn(connection)
        except BaseException as error:
            self.failure = error

    def _turn(self, connection: psycopg.Connection) -> None:
        self.statements += 1
        n = self.statements
        try:
            connection.execute(
                "INSERT INTO gauges (id, n, price) VALUES (%s, %s, %s)", (n, n % 1000, n % 9000), prepare=False
            )
            connection.execute("UPDATE gauges SET n = (n + 1) %% 1000 WHERE id = %s", (n // 2,), prepare=False)
            connection.execute("DELETE FROM gauges WHERE id = %s AND id %% 7 = 0", (n // 3,), prepare=False)
        except psycopg.errors.FeatureNotSupported:
            pass  # A plan of before the change; the statement is tried again in another form.
        self.ended.wait(0.004)


@contextmanager
def start_load(world: World) -> Iterator[Load]:
    running = Load(world.source)
    running.start()
    try:
        yield running
    finally:
        running.ended.set()
        running.join(30)
    assert running.failure is None, running.failure


def query_source(world: World, sql: str) -> list[tuple[Any, ...]]:
    with closing(psycopg.connect(world.source, autocommit=True)) as connection:
        cursor = connection.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []


def test_targets_follow_altered_tables_under_load(make_world: MakeWorld) -> None:
    world = make_world("altered")
    query_source(world, TABLE)
    world.register()
    to = ", ".join(f"{{sink: {mirror}, dropped_columns: remove, renamed_columns: {{name: title}}}}" for mirror in MIRRORS)
    world.overrides.append(f'tables=[{{match: "public.gauges", source: shop, to: [{to}]}}]')
    daemon = world.daemon()
    with start_load(world) as running:
        for statement in STATEMENTS:
            before = running.statements
            await_no_difference(
                lambda before=before: [] if running.statements > before + 60 else ["more rows"], statement, daemon
            )
            query_source(world, statement)
        last = running.statements
        await_no_difference(lambda: [] if running.statements > last + 60 else ["more rows"], "rows after the last", daemon)
    query_source(world, "UPDATE gauges SET title = 'end', n = n")
    await_no_difference(lambda: list_gauge_differences(world), "every mirror equals the source", daemon)
    await_caught_up(world, daemon, [f"{mirror}.gauges" for mirror in MIRRORS])
    daemon.await_running(*(f"{mirror}.gauges" for mirror in MIRRORS))
    lanes = daemon.lanes()
    for mirror in MIRRORS:
        lane = lanes[f"{mirror}.gauges"]
        assert lane["counts"]["rejected"] == 0
        told = [change for schema in lane["schemas"] for change in schema["changes"]]
        assert [len(schema["changes"]) for schema in lane["schemas"]] == [0, *[1] * len(STATEMENTS)], told
    assert daemon.stop() == 0


def list_gauge_differences(world: World) -> list[str]:
    wanted = compare.index_by_key(compare.read_postgres_table(world.source, "public", "gauges"), "id")
    lines: list[str] = []
    for mirror in MIRRORS:
        rows = compare.index_by_key(read_mirror_table(world, mirror, "gauges"), "id")
        lines += [f"{mirror}: {d}" for d in compare.list_differences(wanted, rows)]
    return lines[:5]
