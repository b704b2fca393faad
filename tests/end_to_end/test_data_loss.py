"""Records deleted before they were applied: lanes stop with code 4, and the command in the error resolves it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

import pytest

from .daemon import Daemon, await_condition
from .shops import LOGS, MIRRORS, await_caught_up, await_equal, read_source_rows
from .stack import World

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

DATA_LOSS = 4
LOST = {f"{mirror}.customers" for mirror in MIRRORS} | {f"{log}.shop" for log in LOGS}
"""The lanes that the customers' topic concerns."""
CITY = "UPDATE customers SET city = %s"


@pytest.fixture
def stop_in_step(shop: World) -> World:
    """A pipeline that caught up with its source, then stopped."""
    daemon = shop.daemon()
    await_equal(shop, daemon)
    await_caught_up(shop, daemon)
    assert daemon.stop() == 0
    return shop


def get_end(world: World, table: str) -> int:
    return world.topics.ends([world.topic(table)]).get((world.topic(table), 0), 0)


def change_unseen(world: World) -> None:
    """Changes every customer, and waits for the records in the topic."""
    wanted = get_end(world, "customers") + len(read_source_rows(world, "customers"))
    world.execute(CITY, "changed while it was stopped")
    await_condition(lambda: get_end(world, "customers") >= wanted, "the changes are in the topic")


def await_suspended(daemon: Daemon) -> Mapping[str, Mapping[str, Any]]:
    """The lanes after all lanes with lost records are suspended. All others run."""
    for lane in LOST:
        report = daemon.await_status(lane, "suspended")
        assert report["exit_code"] == DATA_LOSS
    lanes = daemon.lanes()
    assert {name for name, lane in lanes.items() if lane["status"] == "suspended"} == LOST
    return lanes


def find_command(lane: Mapping[str, Any], verb: str) -> list[str]:
    """The arguments of the command with this verb in a lane's report."""
    commands = [shlex.split(text) for text in re.findall(r"`([^`]*)`", lane["next_step"])]
    found = [command for command in commands if verb in command]
    assert found, lane["next_step"]
    assert found[0][:4] == ["replicator", "lanes", verb, lane["id"]]
    return found[0][1:]


def run_confirmed(world: World, *command: str) -> None:
    done = world.program(*command, *(("--yes",) if "resync" in command else ()), "--json")
    assert done.returncode == 0, done.stdout + done.stderr


def test_records_deleted_above_the_position_of_a_lane_are_data_loss(stop_in_step: World) -> None:
    world = stop_in_step
    change_unseen(world)
    world.topics.delete_below(world.topic("customers"), get_end(world, "customers") - 2)
    assert world.run_until_caught_up() == DATA_LOSS
    daemon = world.daemon()
    lanes = await_suspended(daemon)
    assert "gone" in lanes["lake.customers"]["error"]
    # Two lanes while the daemon runs, and two while it does not. One of each pair is resynced, and one accepts the loss.
    run_confirmed(world, *find_command(lanes["lake.customers"], "skip"))
    run_confirmed(world, *find_command(lanes["raw.shop"], "skip"))
    run_confirmed(world, *find_command(lanes["datalake.customers"], "resync"))
    for lane in ("lake.customers", "raw.shop", "datalake.customers"):
        daemon.await_status(lane, "running")
    assert daemon.stop() == 0
    run_confirmed(world, *find_command(lanes["target.customers"], "skip"))
    run_confirmed(world, *find_command(lanes["raw_pg.shop"], "resync"))
    again = world.daemon()
    world.execute(CITY, "seen by all again")
    await_equal(world, again)
    await_caught_up(world, again)
    again.await_running()
    assert again.stop() == 0


def test_topic_recreated_while_the_daemon_is_stopped_is_data_loss(stop_in_step: World) -> None:
    world = stop_in_step
    world.topics.delete(world.topic("customers"))
    world.execute(CITY, "into the new topic")
    await_condition(
        lambda: get_end(world, "customers") >= len(read_source_rows(world, "customers")), "the topic is there again"
    )
    assert world.run_until_caught_up() == DATA_LOSS
    daemon = world.daemon()
    lanes = await_suspended(daemon)
    assert "created again" in lanes["lake.customers"]["error"]
    for name in LOST:
        run_confirmed(world, *find_command(lanes[name], "resync"))
    await_equal(world, daemon)
    await_caught_up(world, daemon)
    assert daemon.stop() == 0


def test_topic_recreated_while_it_is_read_is_data_loss(shop: World) -> None:
    world, daemon = shop, shop.daemon()
    await_equal(world, daemon)
    world.topics.delete(world.topic("customers"))
    world.execute(CITY, "into the new topic")
    assert daemon.wait() == DATA_LOSS
    assert "replicator lanes resync" in daemon.log.read_text()
    await_condition(
        lambda: get_end(world, "customers") >= len(read_source_rows(world, "customers")), "the topic is there again"
    )
    again = world.daemon()
    lanes = await_suspended(again)
    for name in LOST:
        run_confirmed(world, *find_command(lanes[name], "resync"))
    await_equal(world, again)
    assert again.stop() == 0
