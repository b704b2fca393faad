"""Deletes that are forgotten in a lake: the floor is committed first, then what is below it goes, whatever fails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.delta_writes import items, write_of

from adapters.delta.lake import Lake
from adapters.delta.tables import open_table
from adapters.sinks.delta import side_tables as ledgers
from adapters.sinks.delta.sink import DeltaRsSink
from replicator.domain.errors import Retryable
from replicator.domain.policy.late_changes import HORIZON_COUNT
from replicator.domain.policy.policies import plan_for
from replicator.testing.delivery import make_lane
from replicator.testing.sink_base import refuse_rejects

LANE = make_lane("scd1")
HOUR = timedelta(hours=1)
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Path]:
    """A lane that has deleted row 1 at sequence 1, in the first hour."""
    with_sink(tmp_path, [*items(1), *items(1, op="d"), *items(2)], 0, hour=0)
    yield tmp_path


def with_sink(folder: Path, rows: list, start: int, hour: float) -> list:
    """A new instance applies the rows; what it rejects."""
    sink = DeltaRsSink({"path": str(folder)})
    write = write_of(rows, start)
    plan = plan_for("scd1", write.plan.table, retention=HORIZON_COUNT * HOUR)
    write = replace(write, plan=plan, at=BEGINNING + hour * HOUR)
    rejects: list = []
    try:
        sink.prepare(LANE, plan)
        sink.apply([write], lambda _, frame: rejects.extend(frame.to_pylist()))
    finally:
        sink.close()
    return rejects


def read_tombstones(folder: Path) -> list[int]:
    table = open_table(Lake.from_path(str(folder)).tombstones("items"))
    return sorted(row["_cdc_seq_1"] for row in table.to_pyarrow_table().to_pylist())


def state(folder: Path):
    return DeltaRsSink({"path": str(folder)}).state(LANE)


def test_purged_tombstones_are_removed(lake: Path) -> None:
    assert read_tombstones(lake) == [1]
    with_sink(lake, items(2, op="d"), 3, hour=2)
    with_sink(lake, items(7, op="d"), 4, hour=9)
    assert read_tombstones(lake) == [1, 3, 4]
    with_sink(lake, items(5), 5, hour=19.5)
    assert read_tombstones(lake) == [4]
    assert state(lake).purged_up_to.max_sequence == (3,)


@pytest.mark.parametrize("removed", [False, True])
def test_killed_between_purge_commit_and_purge(lake: Path, monkeypatch: pytest.MonkeyPatch, removed: bool) -> None:
    """The next instance removes it, before it judges anything; and only once: what comes to be remembered then stays."""
    with_sink(lake, items(2, op="d"), 3, hour=0)
    real = ledgers.delete_entries

    def kill(*entries) -> None:
        if removed:
            real(*entries)
        raise Retryable("killed")

    with monkeypatch.context() as patched:
        patched.setattr(ledgers, "delete_entries", kill)
        with pytest.raises(Retryable, match="killed"):
            with_sink(lake, items(5), 4, hour=20)
    assert state(lake).purge_pending
    assert read_tombstones(lake) == ([] if removed else [1, 3])
    old = ("u", {"id": 2, "v": "late", "_seq_1": 2})
    rejects = with_sink(lake, [*items(5), old], 4, hour=20)
    assert [row["_seq_1" if "_seq_1" in row else "_cdc_seq_1"] for row in rejects] == [2]
    assert not state(lake).purge_pending
    assert read_tombstones(lake) == []


def test_tombstones_stored_after_a_purge_stay(lake: Path) -> None:
    """A delete at or below the floor whose row was there: a newer change of its key is judged by it, at whichever commit."""
    with_sink(lake, [("d", {"id": 9, "_seq_1": 50})], 3, hour=0)
    assert not with_sink(lake, [("d", {"id": 2, "_seq_1": 40})], 4, hour=20)
    assert read_tombstones(lake) == [40]
    assert not with_sink(lake, [("c", {"id": 2, "v": "back", "_seq_1": 45})], 5, hour=20)
    assert len(with_sink(lake, [("c", {"id": 8, "v": "new", "_seq_1": 45})], 6, hour=20)) == 1


def test_a_lane_that_was_written_before_there_was_a_retention_begins_with_nothing_known(lake: Path) -> None:
    sink = DeltaRsSink({"path": str(lake)})
    sink.reset(LANE)
    write = write_of([*items(1), *items(4, op="d")])
    sink.prepare(LANE, write.plan)
    sink.apply([write], refuse_rejects)
    sink.close()
    assert (state(lake).purged_up_to, state(lake).delete_horizons) == (None, ())
    assert not with_sink(lake, [("u", {"id": 3, "v": "x", "_seq_1": 0})], 2, hour=99)
