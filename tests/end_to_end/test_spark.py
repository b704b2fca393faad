"""The shipped config on Spark: the same targets, and the engines take turns on them."""

from __future__ import annotations

import pytest

from .daemon import Daemon
from .shops import await_caught_up, await_equal, await_nothing, logs_differ, mirrors_differ
from .stack import World
from .workload import Load

pytestmark = [pytest.mark.slow, pytest.mark.stack, pytest.mark.timeout(900)]

SPARK = ("--engine", "spark")
PATIENCE = 200.0
"""A JVM starts, and each table takes its moment."""


@pytest.fixture
def small(shipped: World) -> World:
    """A world whose Spark leaves room for the servers."""
    shipped.overrides += ['spark={"spark.ui.enabled": "false", "spark.driver.memory": "1g"}']
    return shipped


def test_all_five_targets_equal_the_source(small: World) -> None:
    world, daemon = small, small.daemon(*SPARK)
    Load(world.source, (71, 72), 120, rest=0).finish()
    await_equal(world, daemon, seconds=PATIENCE)
    await_caught_up(world, daemon)
    await_nothing(lambda: logs_differ(world), "both event logs are whole and add up to the source", daemon, 10)
    assert mirrors_differ(world) == []
    assert world.dead_letters() == []
    assert all(lane["counts"]["rejected"] == 0 for lane in daemon.lanes().values())
    assert daemon.stop() == 0


def test_the_engines_follow_each_other(small: World) -> None:
    """Nothing is applied twice or skipped, whoever goes on where the other was killed."""
    world = small
    load = Load(world.source, (73,), rest=0.25)
    for engine in ((), SPARK, ()):
        daemon = world.daemon(*engine)
        seen = load.committed
        daemon.until(lambda seen=seen: load.committed > seen + 30, "there is load")  # type: ignore[misc]
        await_applied(daemon)
        daemon.kill()
    load.end()
    daemon = world.daemon(*SPARK)
    await_equal(world, daemon, seconds=PATIENCE)
    await_caught_up(world, daemon)
    await_nothing(lambda: logs_differ(world), "both event logs are whole and add up to the source", daemon, 10)
    assert daemon.stop() == 0


def await_applied(daemon: Daemon) -> None:
    """This run has applied something."""
    daemon.until(lambda: (daemon.lane("lake.orders").get("counts") or {}).get("applied"), "it applies", PATIENCE)
