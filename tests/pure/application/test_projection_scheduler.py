"""Projections that are refreshed beside lanes: their times and failures."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from replicator.application.operations.refresh import (
    ProjectionRefresher,
    ProjectionScheduler,
    RefreshResult,
    ScheduledProjection,
)
from replicator.application.options import Backoff
from replicator.domain.errors import Retryable
from replicator.domain.projection import Projection, ProjectionInput

USERS = Projection("users", "SELECT 1", (ProjectionInput("u", "lake", "users"),), "lake", "by_city")
ON_TOP = Projection("top", "SELECT 1", (ProjectionInput("b", "lake", "by_city"),), "lake", "top")


class Refreshes:
    """Stands in for `ProjectionRefresher`: says that every refresh committed the next version, or fails."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.failing: Exception | None = None

    def refresh(self, projection: Projection, *, full: bool = False) -> RefreshResult:
        self.done.append(projection.name)
        if self.failing:
            raise self.failing
        version = len(self.done)
        return RefreshResult(projection.name, projection.label, "groups", "", 1, 1, version, {}, 0.0, "run")


class World:
    def __init__(self, *kept: ScheduledProjection) -> None:
        self.refreshes: Any = Refreshes()
        self.committed: dict[str, object] = {"lake.users": 1}
        self.time = 0.0
        for one in kept:
            one.backoff = Backoff(first=1.0, jitter=lambda: 1.0)
        self.keeper = ProjectionScheduler(kept, self.opening, lambda: self.committed, clock=lambda: self.time)

    @contextmanager
    def opening(self) -> Iterator[ProjectionRefresher]:
        yield self.refreshes

    def looks(self) -> list[str]:
        self.refreshes.done.clear()
        self.keeper.refresh_due(self.refreshes)
        return list(self.refreshes.done)


def test_on_change_refreshes_after_a_commit():
    world = World(ScheduledProjection(USERS), ScheduledProjection(ON_TOP))
    assert world.looks() == ["users", "top"]
    assert world.looks() == []
    world.committed["lake.other"] = 2
    assert world.looks() == []
    world.committed["lake.users"] = 2
    assert world.looks() == ["users"]  # That commits version 1 again, so nothing has changed for the other one.
    world.time = 100.0
    assert world.looks() == ["users", "top"]


def test_projection_is_refreshed_after_its_input_projection():
    world = World(ScheduledProjection(USERS), ScheduledProjection(ON_TOP))
    world.looks()
    world.committed["lake.users"] = 2
    world.refreshes.done = ["one", "two"]
    world.keeper.refresh_due(world.refreshes)
    assert world.refreshes.done == ["one", "two", "users", "top"]


def test_interval_does_not_depend_on_commits():
    world = World(ScheduledProjection(USERS, every=30.0))
    assert world.looks() == ["users"]
    world.committed["lake.users"] = 2
    world.time = 29.0
    assert world.looks() == []
    world.time = 30.0
    assert world.looks() == ["users"]


def test_failure_is_reported_and_retried_later():
    world = World(ScheduledProjection(USERS), ScheduledProjection(ON_TOP))
    world.refreshes.failing = Retryable("the store is away", next_step="Wait.")
    assert world.looks() == ["users", "top"]
    (told, _) = world.keeper.report()
    assert (told["status"], told["error"], told["next_step"]) == ("failed", "the store is away", "Wait.")
    world.committed["lake.users"] = 2
    assert world.looks() == []
    world.time = 1.0
    assert world.looks() == ["users", "top"]
    world.refreshes.failing = None
    world.time = 2.5
    assert world.looks() == []
    world.time = 3.0
    assert world.looks() == ["users", "top"]
    assert [one["status"] for one in world.keeper.report()] == ["current", "current"]


def test_unexpected_exception_does_not_end_the_thread():
    world = World(ScheduledProjection(USERS))
    world.refreshes.failing = KeyError("a value of a row")
    world.looks()
    (told,) = world.keeper.report()
    assert told["status"] == "failed"
    assert "a value of a row" not in str(told)


def test_unopenable_projection_is_reported():
    @contextmanager
    def fail_to_open() -> Iterator[ProjectionRefresher]:
        raise Retryable("no engine")
        yield

    kept = ScheduledProjection(USERS)
    keeper = ProjectionScheduler([kept], fail_to_open, dict)
    before = threading.active_count()
    keeper.start()
    keeper.end(10.0)
    assert threading.active_count() == before
    assert keeper.report()[0]["error"] == "no engine"


def test_all_projections_are_refreshed_once():
    world = World(ScheduledProjection(USERS), ScheduledProjection(ON_TOP))
    assert world.keeper.refresh_all(threading.Event()) is None
    assert world.refreshes.done == ["users", "top"]
    world.refreshes.failing = Retryable("away")
    problem = world.keeper.refresh_all(threading.Event())
    assert problem is not None and problem.sentence == "away"


def test_no_projection_is_refreshed_after_a_stop():
    world, stop = World(ScheduledProjection(USERS), ScheduledProjection(ON_TOP)), threading.Event()
    refresh = world.refreshes.refresh

    def refresh_and_stop(projection: Projection) -> RefreshResult:
        stop.set()
        return refresh(projection)

    world.refreshes.refresh = refresh_and_stop
    assert world.keeper.refresh_all(stop) is None
    assert world.refreshes.done == ["users"]
