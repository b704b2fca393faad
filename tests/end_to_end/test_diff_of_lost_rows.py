"""`replicator diff` finds rows that a connector has lost, and repairs them. No other check finds them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.registered_source import make_slot_name

from adapters.stack import EmbeddedStack
from adapters.stack.postgres import Installation

from .compare import index_by_key, list_differences, read_lake_table, read_postgres_table
from .daemon import Daemon, await_condition
from .newer_postgres import NEWER, SMALL
from .old_connector import start_old_connector
from .stack import STREAMS, World, fetch_rows
from .test_backfill import prepare_world
from .test_incremental_snapshot import Clerk

pytestmark = [pytest.mark.stack, pytest.mark.long, pytest.mark.timeout(1200)]

SECONDS = 300.0
"""For a command and a wait, on a machine with other work."""
COPIED, TRIES = 3_000, 8
"""Rows of one COPY. The restart must happen while they are delivered, so it may need several tries."""
MARKS = range(8_000, 9_000)
"""Keys of rows that are written last. A target with such a row contains all changes before it."""
LANES = [{"sink": "lake"}, {"sink": "target", "into": "versions", "policy": "scd2"}]
PID = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s"


def read_targets(world: World, where: str = "true") -> dict[str, list[dict[str, Any]]]:
    """The current rows of each lane."""
    current = f"_cdc_end_seq_1 IS NULL AND {where}"
    return {
        "lake.items": read_lake_table(world.lake / "items", where),
        "target.versions": read_postgres_table(world.target, "public", "versions", current),
    }


def find_differences(world: World) -> dict[str, set[tuple[str, int]]]:
    """By lane the kind and key of each row that differs from the source, found with SQL."""
    expected = index_by_key(read_postgres_table(world.source, "public", "items"), "id")
    found = {}
    for lane, target in read_targets(world).items():
        actual = index_by_key(target, "id")
        kinds = {
            "missing": expected.keys() - actual.keys(),
            "extra": actual.keys() - expected.keys(),
            "different": {k for k in expected.keys() & actual.keys() if list_differences({k: expected[k]}, {k: actual[k]})},
        }
        found[lane] = {(kind, key) for kind, keys in kinds.items() for (key,) in keys}
    return found


def write_mark(world: World, number: int) -> None:
    world.execute("INSERT INTO items VALUES (%s, 'mark', 0)", MARKS[number])


def await_mark(world: World, daemon: Daemon, number: int) -> None:
    """Waits until both targets have the mark. Earlier changes that they lack then are lost."""
    condition = f"id = {MARKS[number]}"
    daemon.await_condition(lambda: all(read_targets(world, condition).values()), "the mark is in the targets", SECONDS)


def restart_abruptly(world: World) -> None:
    """Restarts the connector without a stop, and waits until it streams again."""
    admin = world.stack.dsn("source", superuser=True)
    [(before,)] = fetch_rows(admin, PID, make_slot_name(world.prefix))
    world.stack.rest.restart(world.connector)
    again = f"{STREAMS} AND r.pid <> %s"
    await_condition(
        lambda: fetch_rows(admin, again, make_slot_name(world.prefix), before), "the connector streams again", SECONDS
    )


def lose_copied_rows(world: World, daemon: Daemon) -> None:
    """dbz#1554: many rows of a COPY share one log position. The connector skips more of them than it has sent."""
    topic = world.topic("items")

    def count_records() -> int:
        return world.topics.ends([topic])[topic, 0]

    for number in range(TRIES):
        before = count_records()
        with psycopg.connect(world.source) as connection, connection.cursor().copy("COPY items FROM STDIN") as copy:
            for key in range(COPIED):
                copy.write_row((10_000 * (number + 1) + key, "copied", number))
        await_condition(lambda before=before: count_records() > before, "the delivery has begun")  # type: ignore[misc]
        restart_abruptly(world)
        write_mark(world, number)
        await_mark(world, daemon, number)
        if any(find_differences(world).values()):
            return


def lose_open_transaction(world: World, daemon: Daemon) -> None:
    """dbz#76: a transaction is open during the restart, and another one was delivered. The open transaction continues
    in the log where the other one ended. The connector takes that position as completely sent."""
    with psycopg.connect(world.source) as connection:
        connection.execute("INSERT INTO items SELECT i, 'open', 1 FROM generate_series(3001, 3020) i")
        connection.execute("UPDATE items SET note = 'open' WHERE id BETWEEN 1001 AND 1010")
        connection.execute("DELETE FROM items WHERE id BETWEEN 1101 AND 1105")
        write_mark(world, 0)
        connection.execute("INSERT INTO items VALUES (3101, 'open', 2)")
        await_mark(world, daemon, 0)
        restart_abruptly(world)
    write_mark(world, 1)
    await_mark(world, daemon, 1)


NEEDS_NEWER = pytest.mark.skipif(not NEWER, reason="needs PostgreSQL 17 or newer")


@pytest.mark.parametrize(
    ("source", "lose", "kinds"),
    [
        pytest.param(None, lose_copied_rows, {"missing"}, id="COPY"),
        pytest.param(
            NEWER[0] if NEWER else None,
            lose_open_transaction,
            {"missing", "extra", "different"},
            id="open-transaction",
            marks=NEEDS_NEWER,
        ),
    ],
)
def test_diff_finds_and_repairs_rows_that_the_connector_lost(
    source: Installation | None,
    lose: Callable[[World, Daemon], None],
    kinds: set[str],
    stack: EmbeddedStack,
    tmp_path: Path,
) -> None:
    """Exactly the rows that SQL finds, while other rows change."""
    home = tmp_path / "home"
    home.mkdir()
    with start_old_connector(stack, tmp_path / "old", source) as beside:
        world = prepare_world(World(beside, home, "t"))
        world.rewrite_config({"tables": [{"match": "public.items", "source": "shop", "to": LANES}]})
        try:
            world.register(heartbeat__interval__ms="0", **SMALL)
            daemon = world.daemon()
            lose(world, daemon)
            lost = find_differences(world)
            assert all({kind for kind, _ in keys} == kinds for keys in lost.values()), lost
            with Clerk(world.source, pause=0.05):
                found = world.get_result("diff", "items", "--show", str(COPIED), code=7, seconds=SECONDS)
                assert {one["lane"]: {(d["kind"], d["key"]["id"]) for d in one["differences"]} for one in found} == lost
                counted = {one["lane"]: one["missing"] + one["extra"] + one["different"] for one in found}
                assert counted == {lane: len(keys) for lane, keys in lost.items()}
                repaired = world.get_result("diff", "items", "--repair", "--yes", seconds=SECONDS)
                assert all(one["equal"] and one["repaired"] for one in repaired), repaired
            daemon.await_condition(
                lambda: not any(find_differences(world).values()), "the targets equal the source", SECONDS
            )
            assert daemon.stop() == 0
        finally:
            world.close()
