"""The daemon killed, stopped and started twice while two writers are at work."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections import Counter
from typing import Any

import pytest

from .appended import APPEND, list_append_differences
from .daemon import Daemon, await_condition
from .shops import LOGS, MIRRORS, await_caught_up, await_equal, await_no_difference, list_log_differences
from .stack import TABLES, World
from .workload import Load

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]

KILLS = int(os.environ.get("REPLICATOR_KILLS", "5"))
SEED = int(os.environ.get("REPLICATOR_SEED", "20240229"))


def are_up(daemon: Daemon, count: int) -> bool:
    """Whether there are `count` lanes, all running."""
    lanes = daemon.lanes().values()
    return len(lanes) == count and all(lane["status"] == "running" for lane in lanes)


def await_running(world: World, daemon: Daemon, extra: int = 0) -> None:
    """Waits until every lane runs."""
    count = len(LOGS) + len(MIRRORS) * len(TABLES) + extra
    daemon.await_condition(lambda: are_up(daemon, count), "every lane runs")


@pytest.mark.slow
@pytest.mark.parametrize("kills", [KILLS])
@pytest.mark.parametrize("seed", [SEED])  # A parameter, so that reports name it; REPLICATOR_SEED sets it.
def test_kills_at_random_times_lose_and_double_nothing(shop: World, seed: int, kills: int) -> None:
    world, chance = shop, random.Random(seed)
    world.overrides.append(f"tables={APPEND}")
    load = Load(world.source, (seed % 1000, seed % 1000 + 1))
    daemon = world.daemon()
    for number in range(kills):
        # Every other one early: while lanes look for their positions and catch up.
        moment = chance.uniform(0.5, 3.0) if number % 2 else chance.uniform(2.5, 6.0)
        with pytest.raises(subprocess.TimeoutExpired):
            daemon.process.wait(moment)
        daemon.kill()
        daemon = world.daemon()
    await_running(world, daemon, extra=4)
    assert load.end() > 10 * kills
    await_equal(world, daemon)
    await_caught_up(world, daemon)
    await_no_difference(lambda: list_log_differences(world), "both event logs are whole", daemon, 10)
    await_no_difference(lambda: list_append_differences(world), "every change is once in every append target", daemon, 10)
    assert world.dead_letters() == []
    assert daemon.stop() == 0


def test_run_after_sigterm_resumes_at_the_committed_position(shop: World) -> None:
    """Together both runs apply every change once."""
    world = shop
    load = Load(world.source, (31, 32))
    first = world.daemon("--json")
    await_running(world, first)
    assert first.stop() == 0
    load.end()
    second = world.daemon("--json", "--until-caught-up")
    assert second.wait() == 0
    assert list_log_differences(world) == []
    done = Counter[str]()
    for daemon in (first, second):
        for lane in read_last_report(daemon)["lanes"]:
            done[lane["id"]] += sum(lane["counts"].values())
    records = world.topics.read([world.topic(table) for table in TABLES])
    changes = Counter(r.topic.rpartition(".")[2] for r in records if r.value is not None)
    expected = {f"{m}.{t}": changes[t] for m in MIRRORS for t in TABLES} | {f"{log}.shop": len(records) for log in LOGS}
    assert done == expected


def read_last_report(daemon: Daemon) -> dict[str, Any]:
    """The last output of `run --json`."""
    line = daemon.log.read_text().splitlines()[-1]
    answer = json.loads(line)
    assert answer["command"] == "run" and answer["ok"], line
    return dict(answer["result"])


def test_second_instance_is_refused_at_once(shop: World) -> None:
    first = shop.daemon()
    await_running(shop, first)
    second = shop.daemon()
    assert second.wait() == 5
    assert f"Another instance of pipeline shop runs (process {first.process.pid})" in second.tail()
    assert first.stop() == 0


def test_second_instance_with_its_own_state_folder_is_refused(shop: World) -> None:
    world, first = shop, shop.daemon()
    await_running(world, first)
    second = world.daemon("-v", "--set", "state=./elsewhere")
    # Its locks are others', so it finds out when it has something to write.
    await_condition(lambda: '"running"' in second.tail() or not second.alive, "the second instance is at work")
    world.execute("UPDATE customers SET city = 'after the second instance'")
    assert second.wait() == 5
    await_equal(world, first)
    await_caught_up(world, first)
    first.await_running()
    assert first.stop() == 0
