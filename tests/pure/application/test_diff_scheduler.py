"""Comparisons by schedule: when a lane is due, and what is stored of a run."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.lane_diffs import make_diff

from adapters.observability.prometheus import PrometheusTelemetry
from replicator.application.operations.diff_runs import (
    KEPT_RUNS,
    DiffScheduler,
    ScheduledDiff,
    StoredDiff,
    keep_run,
    list_runs,
    report_runs,
)
from replicator.domain.differences import LaneDiff, RowDifference
from replicator.domain.errors import EnvironmentProblem
from replicator.ports.runtime import ShowLine

BEGUN = datetime(2026, 1, 31, 12, tzinfo=UTC)
DAY = timedelta(days=1)


class World:
    """Lanes with comparisons that give `rows` missing rows, or fail. The clock is `time`."""

    def __init__(self, folder: Path, every: Mapping[str, timedelta]) -> None:
        self.folder, self.time = folder, BEGUN
        self.done: list[str] = []
        self.missing = 0
        self.failing: Exception | None = None
        self.lanes = [
            ScheduledDiff(lane, "public.orders", each, lambda report, lane=lane: self.compare(lane, report))
            for lane, each in every.items()
        ]
        self.telemetry = PrometheusTelemetry()
        self.scheduler = self.start()

    def start(self) -> DiffScheduler:
        return DiffScheduler(lambda: self.lanes, self.folder, self.telemetry, now=lambda: self.time)

    def compare(self, lane: str, report: ShowLine) -> LaneDiff:
        self.done.append(lane)
        report("0 rows compared")
        if self.failing is not None:
            raise self.failing
        return make_diff(lane=lane, missing=self.missing, begun=self.time.isoformat())

    def look(self, after: timedelta = timedelta(0)) -> list[str]:
        self.time += after
        self.done.clear()
        self.scheduler.compare_due()
        return list(self.done)

    def get_metric(self, name: str, **labels: str) -> float | None:
        return self.telemetry.registry.get_sample_value(f"replicator_{name}", labels)


def test_each_lane_is_compared_in_its_interval(tmp_path):
    world = World(tmp_path, {"lake.a": DAY, "lake.b": 2 * DAY})
    assert world.look() == ["lake.a", "lake.b"]
    assert world.look(DAY - timedelta(seconds=1)) == []
    assert world.look(timedelta(seconds=1)) == ["lake.a"]
    assert world.look(DAY) == ["lake.a", "lake.b"]


def test_restart_repeats_no_comparison(tmp_path):
    world = World(tmp_path, {"lake.a": DAY})
    world.missing = 2
    world.look()
    world.telemetry = PrometheusTelemetry()
    world.scheduler = world.start()
    assert world.look(DAY / 2) == []
    assert world.get_metric("diff_rows", lane="lake.a", kind="missing") == 2
    assert world.get_metric("diff_timestamp_seconds", lane="lake.a") == BEGUN.timestamp()
    assert world.look(DAY / 2) == ["lake.a"]


def test_run_of_the_command_counts(tmp_path):
    world = World(tmp_path, {"lake.a": DAY})
    world.look()
    keep_run(tmp_path, make_diff(lane="lake.a", begun=(BEGUN + DAY).isoformat()))
    assert world.look(DAY) == [] and world.look(DAY) == ["lake.a"]


def test_run_with_a_future_time_delays_nothing(tmp_path):
    """The clock was wrong, and is right again."""
    world = World(tmp_path, {"lake.a": DAY})
    world.look()
    assert world.look(-2 * DAY) == ["lake.a"]


def test_failure_is_stored_and_repeated_after_an_hour(tmp_path):
    world = World(tmp_path, {"lake.a": DAY, "lake.b": DAY})
    world.look()
    world.failing = EnvironmentProblem("The source does not answer.", next_step="Start it.")
    assert world.look(DAY) == ["lake.a", "lake.b"]
    assert world.get_metric("diff_timestamp_seconds", lane="lake.a") == BEGUN.timestamp()
    (last, _) = report_runs(tmp_path, ["lake.a", "lake.b", "lake.never"])
    assert (last["error"], last["next_step"], last["equal"]) == ("The source does not answer.", "Start it.", False)
    assert world.look(timedelta(minutes=59)) == []
    assert world.look(timedelta(minutes=1)) == ["lake.a", "lake.b"]
    assert [bool(run.error) for run in list_runs(tmp_path, "lake.a")] == [True, False]
    world.failing = None
    assert world.look(timedelta(hours=1)) == ["lake.a", "lake.b"] and world.look(timedelta(hours=23)) == []


def test_text_of_an_unexpected_exception_is_not_stored(tmp_path):
    world = World(tmp_path, {"lake.a": DAY})
    world.failing = KeyError("a value of a row")
    world.look()
    [file] = tmp_path.rglob("*.json")
    assert "KeyError" in file.read_text() and "a value of a row" not in file.read_text()


def test_full_disk_does_not_repeat_comparisons(tmp_path, monkeypatch):
    world = World(tmp_path, {"lake.a": DAY})

    def refuse(folder: Path, run: Any) -> None:
        raise OSError(28, "No space left on device", str(folder))

    monkeypatch.setattr("replicator.application.operations.diff_runs.keep_run", refuse)
    assert world.look() == ["lake.a"] and world.look(DAY / 2) == [] and world.look(DAY / 2) == ["lake.a"]


def test_end_interrupts_the_running_comparison(tmp_path, monkeypatch):
    """Its result is not stored."""
    monkeypatch.setattr("replicator.application.operations.diff_runs.LOOK_SECONDS", 0.001)
    world, is_comparing = World(tmp_path, {}), threading.Event()

    def compare_for_ever(report: ShowLine) -> LaneDiff:
        while True:
            report("1 row compared")
            is_comparing.set()

    world.lanes = [ScheduledDiff("lake.a", "public.orders", DAY, compare_for_ever)]
    before = threading.active_count()
    world.scheduler.start()
    assert is_comparing.wait(10)
    world.scheduler.end(10)
    assert threading.active_count() == before and not list(tmp_path.rglob("*.json"))


def test_thirty_runs_of_each_lane_are_stored_without_values(tmp_path):
    row = RowDifference("different", {"id": "private key"}, {"name": ("private name", None)}, "a reason")
    for number in range(KEPT_RUNS + 2):
        begun = (BEGUN + number * DAY).isoformat()
        for lane in ("lake.a", "lake.b/c"):
            keep_run(tmp_path, make_diff(lane=lane, begun=begun, different=1, differences=(row,)))
    runs = list(list_runs(tmp_path, "lake.b/c"))
    assert len(runs) == KEPT_RUNS == 30
    assert [run.begun for run in (runs[0], runs[-1])] == [(BEGUN + days * DAY).isoformat() for days in (31, 2)]
    assert (runs[0].rows, runs[0].different, runs[0].equal) == (10, 1, False)
    assert not any("private" in file.read_text() for file in tmp_path.rglob("*") if file.is_file())


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"lane": "lake.a", "table": "t", "begun": "?", "seconds": 1}'])
def test_unreadable_file_is_skipped(tmp_path, content):
    keep_run(tmp_path, StoredDiff("lake.a", "t", BEGUN.isoformat(), 1.0))
    [file] = tmp_path.rglob("*.json")
    file.with_name("20990101T000000.000000Z.json").write_text(content)
    assert [run.begun for run in list_runs(tmp_path, "lake.a")] == [BEGUN.isoformat()]
