"""Rows that a target refuses because of other rows: their lane waits and repeats them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.application_world import QUICK, ReplicatedTuples, RunningProgram
from support.histories_of_items import make_change

from replicator.application.delivery import delivery
from replicator.application.operations import status
from replicator.application.operations.status import StatusReporter
from replicator.domain.errors import ExitCode, RowsWait

CHILDREN = [make_change(n, "c", n, topic="t") for n in range(20)]
PARENTS = [make_change(n, "c", n, topic="u", table="public.parents") for n in range(20)]
LANES = {"public.items": [("a", "scd1")], "public.parents": [("a", "scd1"), ("b", "scd1")]}


def with_foreign_key(
    world: ReplicatedTuples, *, parents: str = "a.parents", rows: list[int] | None = None
) -> tuple[RunningProgram, list[str]]:
    """A start in which items need the row of their key in another target, and sink b is slow; and the lanes that were
    told to wait no more. `rows`: gets how many rows each write has that waits."""
    running, impatient = world.start(), list[str]()
    if "b" in running.sinks:
        running.sinks["b"].before_apply = lambda writes: time.sleep(0.05)

    def check(writes: Sequence[Any]) -> None:
        there = world.targets[parents].rows if parents in world.targets else {}
        orphans = [w for w in writes if w.lane.id == "a.items" and any(r.key not in there for r in w.folded.frame)]
        if rows is not None:
            rows.extend(len(w.folded.frame) for w in orphans)
        impatient.extend(w.lane.id for w in orphans if not w.may_wait)
        if waiting := tuple(w.lane.id for w in orphans if w.may_wait):
            raise RowsWait("Rows of lane a.items wait.", waiting)

    running.sinks["a"].before_apply = check
    return running, impatient


@pytest.mark.slow
@pytest.mark.parametrize("cuts", [(1,), (3, 7), (1000,)])
@pytest.mark.parametrize("bytes_", [1, 64 << 20], ids=["little memory", "much memory"])
@pytest.mark.parametrize("parents", ["a.parents", "b.parents"], ids=["same sink", "other sink"])
def test_children_before_their_parents_are_applied_later(cuts: tuple[int, ...], bytes_: int, parents: str) -> None:
    """However batches are split, and however small the queue is, no row is lost."""
    options = replace(QUICK, handover_bytes=bytes_, row_retry=0.01)
    world = ReplicatedTuples([*CHILDREN, *PARENTS], cuts=cuts, lanes=LANES, logs=(), options=options)
    rows: list[int] = []
    running, impatient = with_foreign_key(world, parents=parents, rows=rows)
    assert running.once() is ExitCode.OK
    assert sorted(world.targets["a.items"].rows) == sorted(world.targets["a.parents"].rows) == list(range(20))
    assert not impatient and world.targets["a.items"].state.position.to_json() == {"t": {"0": 20}}
    assert bytes_ > 1 or max(rows) < 15 or max(cuts) > 15


def test_rows_wait_up_to_their_patience_and_the_lane_reports_it() -> None:
    options = replace(QUICK, row_patience=0.3, row_retry=0.02)
    world = ReplicatedTuples([*CHILDREN[:2], *PARENTS[:1]], cuts=(1,), lanes=LANES, logs=(), options=options)
    running, impatient = with_foreign_key(world)
    running.in_background()
    until = time.monotonic() + 10
    while "a.parents" not in world.targets or running.lanes.find("a.items").waiting is None:
        assert time.monotonic() < until
    assert running.lanes.find("a.items").shown_status == "retrying" and not impatient
    while not impatient:
        assert time.monotonic() < until
        time.sleep(0.01)
    running.stop()
    assert sorted(world.targets["a.items"].rows) == [0, 1] and running.lanes.find("a.items").waiting is None


def test_rows_wait_while_new_tables_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row that they wait for may be in one of these tables."""
    monkeypatch.setattr(delivery, "NEW_LANE_SECONDS", 0.0)
    tables = [f"public.n{n}" for n in range(20)]
    others = [make_change(0, "c", 1, topic=table, table=table) for table in tables]
    lanes = {table: [("a", "scd1")] for table in ("public.items", *tables, "public.parents")}
    options = replace(QUICK, row_patience=0.05, row_retry=0.001)
    world = ReplicatedTuples([CHILDREN[0], *others, PARENTS[0]], cuts=(1, 1000), lanes=lanes, logs=(), options=options)
    running, impatient = with_foreign_key(world)
    prepare, passed = running.sinks["a"].prepare, [0.0]
    running.pipeline.context.workers["a"]._delivery._clock = lambda: passed[0]

    def slow(*args: Any) -> None:
        passed[0] += 0.02
        prepare(*args)

    monkeypatch.setattr(running.sinks["a"], "prepare", slow)
    assert running.once() is ExitCode.OK
    assert not impatient and list(world.targets["a.items"].rows) == [0]


def test_waiting_rows_are_read_again_after_a_stop() -> None:
    world = ReplicatedTuples([*CHILDREN], cuts=(5,), lanes=LANES, logs=())
    running, impatient = with_foreign_key(world)
    running.in_background()
    until = time.monotonic() + 10
    while (run := running.lanes.find("a.items")) is None or run.waiting is None:
        assert time.monotonic() < until
    began = time.monotonic()
    running.stop()
    assert time.monotonic() - began < 2 and not impatient
    world.log.extend(PARENTS)
    running, impatient = with_foreign_key(world)
    assert running.once() is ExitCode.OK
    assert len(world.targets["a.items"].rows) == 20 and not impatient


def test_long_call_of_a_sink_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its kind and its start."""
    monkeypatch.setattr(status, "LONG_CALL", timedelta(seconds=0.05))
    running = ReplicatedTuples([*PARENTS], lanes={"public.parents": [("a", "scd1")]}, logs=()).start()
    released = threading.Event()
    running.sinks["a"].before_apply = lambda writes: released.wait(10)
    running.in_background()
    report, until = StatusReporter([running.pipeline], running.shared), time.monotonic() + 10
    while (
        (lane := next(iter(report.report().lanes), None)) is None
        or lane.call is None
        or "applying" not in lane.call["doing"]
    ):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert lane.call["doing"] == "applying a.parents" and datetime.fromisoformat(lane.call["since"]) < datetime.now(UTC)
    released.set()
    while next(iter(report.report().lanes)).call is not None:
        assert time.monotonic() < until
    running.stop()
