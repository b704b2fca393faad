"""The connector and its worker: changes sent twice, and a connector that starts from scratch."""

from __future__ import annotations

from collections import Counter

import pytest
from support.registered_source import drop_source

from .appended import APPEND, VISITS, count_topic_changes, list_append_differences, list_visit_differences
from .daemon import Daemon, await_condition
from .shops import LOGS, await_caught_up, await_equal, await_no_difference, list_log_differences, read_log_rows
from .stack import World
from .workload import Load

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

ATTEMPTS = 6


def list_resent_changes(world: World) -> Counter[object]:
    """Changes that occur more than once in the topics."""
    found = count_topic_changes(world, "products") + count_topic_changes(world, "customers")
    return Counter({change: count for change, count in found.items() if count > 1})


@pytest.mark.slow
def test_changes_sent_twice_by_a_killed_worker_are_applied_once(shop: World) -> None:
    world = shop
    world.overrides.append(f"tables={APPEND}")
    world.execute(VISITS)
    daemon = world.daemon()
    Load(world.source, (40,), transactions=20).finish()
    world.await_offsets()
    for attempt in range(ATTEMPTS):
        # Limited: how much the targets have to apply must not depend on how long the worker takes to start.
        load = Load(world.source, (41 + 2 * attempt, 42 + 2 * attempt), transactions=60)
        await_condition(lambda load=load: load.committed > 40, "there is load")  # type: ignore[misc]
        world.stack.service("debezium").kill()
        load.finish()
        world.stack.restart("debezium")
        world.stack.rest.wait_running(world.connector, 90)
        if await_resent(world):
            break
    await_equal(world, daemon)
    await_caught_up(world, daemon)
    assert list_resent_changes(world), "no change was sent twice: the test showed nothing"
    await_no_difference(lambda: list_append_differences(world), "every change is once in every append target", daemon, 10)
    await_no_difference(
        lambda: list_visit_differences(world), "every row of the table without a key is there once", daemon, 10
    )
    for log in LOGS:
        ids = [row["event_id"] for row in read_log_rows(world, log)]
        assert len(ids) == len(set(ids)) == sum(world.topics.ends(world.topics.names(f"{world.prefix}.public.")).values())
    assert list_log_differences(world) == []
    assert all(lane["counts"]["rejected"] == 0 for lane in daemon.lanes().values())
    assert daemon.stop() == 0


def await_resent(world: World) -> bool:
    """Whether the worker has sent changes twice, once it follows the log again."""
    world.execute(
        "INSERT INTO customers (first_name, last_name, email) VALUES ('after', 'the kill', gen_random_uuid()::text)"
    )
    seen = sum(count_topic_changes(world, "customers").values())
    await_condition(lambda: sum(count_topic_changes(world, "customers").values()) > seen, "the worker follows again")
    return bool(list_resent_changes(world))


def test_connector_with_a_new_slot_is_not_stale(shop: World) -> None:
    """Its snapshot delivers the changes made meanwhile. It cannot know of deleted rows."""
    world, daemon = shop, shop.daemon()
    Load(world.source, (51,), transactions=40, rest=0).finish()
    await_equal(world, daemon)
    drop_source(world.stack, world.prefix)
    world.execute("UPDATE customers SET city = 'changed while it was gone'")
    world.execute("UPDATE products SET description = repeat('changed ', 3), price = 7.77 WHERE id <= 4")
    world.execute("INSERT INTO customers (first_name, last_name, email) VALUES ('new', 'meanwhile', 'new@example.com')")
    again = f"{world.prefix}again"
    world.stack.create_database("source", world.databases["source"])
    world.register(again, **{"topic.prefix": world.prefix})
    await_equal(world, daemon)
    world.execute("UPDATE customers SET city = 'and after'")
    world.execute("DELETE FROM customers WHERE email = 'new@example.com'")
    await_equal(world, daemon)
    check_nothing_stale(daemon)
    assert daemon.stop() == 0


def check_nothing_stale(daemon: Daemon) -> None:
    daemon.await_running()
    for name, lane in daemon.lanes().items():
        assert (lane["counts"]["superseded"], lane["counts"]["rejected"]) == (0, 0), name
