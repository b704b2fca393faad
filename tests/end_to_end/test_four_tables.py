"""The four tables under a mixed workload, through the shipped config, equal in all five targets."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from support.accounting import count_unaccounted

from .daemon import Daemon
from .shops import (
    LOGS,
    MIRRORS,
    await_caught_up,
    await_equal,
    await_no_difference,
    list_log_differences,
    list_mirror_differences,
)
from .stack import TABLES, World
from .workload import Load

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

SEEDS = (11, 12)
TRANSACTIONS = 250


def test_all_five_targets_equal_the_source(shipped_world: World) -> None:
    world, daemon = shipped_world, shipped_world.daemon()
    load = Load(world.source, SEEDS, TRANSACTIONS, rest=0)
    assert load.finish() > 1.5 * TRANSACTIONS
    await_equal(world, daemon)
    await_caught_up(world, daemon)
    await_no_difference(
        lambda: list_log_differences(world), "both event logs are whole and add up to the source", daemon, 10
    )
    assert list_mirror_differences(world) == []
    assert world.dead_letters() == []
    await_no_difference(lambda: list_lags(daemon), "every lane knows that nothing is left", daemon, 30)
    daemon.await_running()
    check_accounts(world, world.get_result("status"))
    check_metrics(world, daemon.metrics())
    assert count_unaccounted(world.get_result("status"), daemon.page("/metrics"), "lake") == {"shop": (0, 0)}
    assert daemon.stop() == 0


def list_lags(daemon: Daemon) -> list[str]:
    """Lanes with remaining records, or with an unknown lag while the broker is slow to report the ends of topics."""
    lanes = daemon.lanes().items()
    return [f"{name} has {lane['lag_records']} records left" for name, lane in lanes if lane["lag_records"] != 0]


def check_accounts(world: World, status: dict[str, object]) -> None:
    """Every record is a change or ignored. In every lane, every change has exactly one of six outcomes."""
    records = world.topics.read([world.topic(table) for table in TABLES])
    changes = Counter(r.topic for r in records if r.value is not None)
    lanes = {lane["id"]: lane for lane in status["lanes"]}  # type: ignore[attr-defined]
    assert set(lanes) == {f"{m}.{t}" for m in MIRRORS for t in TABLES} | {f"{log}.shop" for log in LOGS}
    for name, lane in lanes.items():
        counts = lane["counts"]
        expected = len(records) if lane["policy"] == "event_log" else changes[world.topic(name.partition(".")[2])]
        assert sum(counts.values()) == expected, (name, counts)
        assert counts["rejected"] == counts["duplicate"] == counts["superseded"] == 0, (name, counts)
    assert json.dumps(status).count("example.com") == 0
    assert status["sources"][0]["records"] == len(records)  # type: ignore[index]


def check_metrics(world: World, metrics: dict[str, float]) -> None:
    records = world.topics.read([world.topic(table) for table in TABLES])
    tombstones = sum(r.value is None for r in records)
    assert metrics['replicator_records_consumed_total{source="shop"}'] == len(records)
    ignored = {name: value for name, value in metrics.items() if name.startswith("replicator_records_ignored_total")}
    assert ignored == {'replicator_records_ignored_total{kind="tombstone",source="shop"}': tombstones}
