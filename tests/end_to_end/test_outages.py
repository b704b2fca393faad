"""Outages of servers and full disks, and recovery from them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from .daemon import Daemon
from .shops import MIRRORS, await_caught_up, await_equal, await_no_difference, list_log_differences
from .stack import TABLES, World
from .workload import Load

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

DISK = "6M"


def test_broker_outage(shop: World) -> None:
    world, daemon = shop, shop.daemon()
    await_equal(world, daemon)
    load = Load(world.source, (61,))
    world.stack.service("kafka").stop()
    daemon.await_condition(
        lambda: "source away" in daemon.log.read_text() or "Waiting for it" in daemon.log.read_text(), "it notices"
    )
    world.stack.restart("kafka")
    load.end()
    world.stack.rest.wait_running(world.connector, 90)
    await_equal(world, daemon)
    await_caught_up(world, daemon)
    assert list_log_differences(world) == []
    daemon.await_running()
    assert daemon.stop() == 0


def test_outage_of_a_target_does_not_stop_others(shop: World) -> None:
    """However much is queued for it."""
    world = shop
    world.overrides.append("limits.batch_bytes=100000")
    daemon = world.daemon()
    await_equal(world, daemon)
    world.stack.service("postgres-target").stop()
    Load(world.source, (71, 72), transactions=40, rest=0).finish()
    try:
        await_equal(world, daemon, mirrors=("lake", "datalake"))
        for table in TABLES:
            lane = daemon.await_status(f"target.{table}", "retrying")
            assert lane["error"] and lane["exit_code"] is None
        daemon.await_running(*(f"{m}.{t}" for m in ("lake", "datalake") for t in TABLES))
    finally:
        world.stack.restart("postgres-target")
    await_equal(world, daemon)
    await_caught_up(world, daemon)
    daemon.await_running()
    assert world.dead_letters() == []
    assert daemon.stop() == 0


def test_target_unreachable_at_the_start_catches_up(shop: World) -> None:
    world = shop
    world.stack.service("postgres-target").stop()
    try:
        daemon = world.daemon()
        await_equal(world, daemon, mirrors=("lake", "datalake"))
    finally:
        world.stack.restart("postgres-target")
    await_equal(world, daemon)
    await_caught_up(world, daemon)
    assert daemon.stop() == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes."""
    mount = shutil.which("mount")
    folder = tmp_path / "disk"
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    if mount is None or subprocess.run([mount, *options], capture_output=True, check=False).returncode != 0:
        pytest.skip("only a user who may mount file systems can have a small disk")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_full_disk_loses_nothing(shop: World, small_disk: Path) -> None:
    """The lanes of the lake wait for space. Those of PostgreSQL continue."""
    world = shop
    world.lake = small_disk / "lake"
    world.overrides += [f"sinks.lake.path={world.lake}", f"sinks.raw.path={world.lake / 'cdc_events'}"]
    daemon = world.daemon()
    await_equal(world, daemon)
    filler = small_disk / "filler"
    fill_disk(filler)
    Load(world.source, (81,), transactions=30, rest=0).finish()
    await_equal(world, daemon, mirrors=("datalake", "target"))
    daemon.await_condition(lambda: is_lake_waiting(daemon), "lanes of the lake wait for room")
    filler.unlink()
    await_equal(world, daemon)
    await_caught_up(world, daemon)
    await_no_difference(lambda: list_log_differences(world), "both event logs are whole", daemon, 10)
    daemon.await_running()
    assert daemon.stop() == 0


def fill_disk(path: Path) -> None:
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(b"\0" * 4096):
            continue


def is_lake_waiting(daemon: Daemon) -> bool:
    lanes = daemon.lanes()
    waiting = [name for name, lane in lanes.items() if lane["status"] == "retrying"]
    suspended = [name for name, lane in lanes.items() if lane["status"] == "suspended"]
    assert not suspended, {name: lanes[name]["error"] for name in suspended}
    return bool(waiting) and all(name.startswith(("lake.", "raw.")) for name in waiting)


def test_stop_during_two_outages_and_restart(shop: World) -> None:
    """The daemon stops within its time limit although a target is unreachable, and the next run resumes."""
    world, daemon = shop, shop.daemon()
    await_equal(world, daemon)
    world.stack.service("postgres-target").stop()
    try:
        world.execute("UPDATE customers SET city = 'while the target is away'")
        await_equal(world, daemon, mirrors=("lake", "datalake"))
        daemon.await_status("target.customers", "retrying")
        assert daemon.stop() == 0
    finally:
        world.stack.restart("postgres-target")
    again = world.daemon()
    await_equal(world, again, mirrors=MIRRORS)
    await_caught_up(world, again)
    assert list_log_differences(world) == []
    assert again.stop() == 0
