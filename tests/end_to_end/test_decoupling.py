"""A slow target delays other targets only when its queue is full."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from .daemon import Daemon
from .shops import await_caught_up, await_equal, list_mirror_differences
from .stack import World, fetch_rows

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

BOUND = 400_000
WIDE = """
INSERT INTO products (name, description, price)
SELECT 'wide', repeat(md5(i::text), 60), 1 FROM generate_series(1, 100) i"""
"""Some 200,000 bytes of values, more with their envelopes."""


@contextmanager
def freeze_server(world: World) -> Iterator[None]:
    """The target's server does not answer its clients: it neither refuses nor works."""
    admin = world.stack.dsn("target", "postgres", superuser=True)
    found = fetch_rows(admin, "SELECT pid FROM pg_stat_activity WHERE datname = %s", world.databases["target"])
    clients = [psutil.Process(pid) for (pid,) in found]
    assert clients
    for client in clients:
        client.suspend()
    try:
        yield
    finally:
        for client in clients:
            client.resume()


def test_slow_target_delays_others_only_at_the_limit(shop: World) -> None:
    world = shop
    world.overrides.append(f"limits.batch_bytes={BOUND}")
    daemon = world.daemon()
    await_equal(world, daemon)
    with freeze_server(world):
        for city in ("first", "second", "third"):
            world.execute("UPDATE customers SET city = %s", city)
            await_equal(world, daemon, mirrors=("lake", "datalake"))
        assert daemon.lane("target.customers")["status"] == "running"
        assert fill_queue(world, daemon) > 0
    await_equal(world, daemon)
    await_caught_up(world, daemon)
    assert list_mirror_differences(world) == []
    daemon.await_running()
    assert world.dead_letters() == []
    assert daemon.stop() == 0


def fill_queue(world: World, daemon: Daemon) -> int:
    """Writes until the daemon stops reading, and returns the number of unread records."""
    topic = world.topic("products")
    for _ in range(40):
        world.execute(WIDE)
        wanted = world.topics.ends([topic])[topic, 0]
        if not reads_up_to(daemon, topic, wanted):
            return wanted - get_position(daemon, topic)
    raise AssertionError("nothing held the source up")


def get_position(daemon: Daemon, topic: str) -> int:
    status = daemon.status()
    return int(status["sources"][0]["position"].get(topic, {}).get("0", 0)) if status else 0


def reads_up_to(daemon: Daemon, topic: str, wanted: int) -> bool:
    """Whether the source reads up to this position within 8 seconds."""
    try:
        daemon.await_condition(lambda: get_position(daemon, topic) >= wanted, "the source has read everything", 8)
    except AssertionError:
        assert daemon.alive
        return False
    return True
