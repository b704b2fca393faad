"""Retention of tombstones in a lake: the floor is committed first, then older tombstones are removed, despite failures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.delta_writes import make_item_changes, make_write

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
    """A lane that deleted row 1 at sequence 1, in the first hour."""
    apply_rows(tmp_path, [*make_item_changes(1), *make_item_changes(1, op="d"), *make_item_changes(2)], 0, hour=0)
    yield tmp_path


def apply_rows(folder: Path, rows: list, start: int, hour: float) -> list:
    """A new instance applies the rows. Returns its rejects."""
    sink = DeltaRsSink({"path": str(folder)})
    write = make_write(rows, start)
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
    apply_rows(lake, make_item_changes(2, op="d"), 3, hour=2)
    apply_rows(lake, make_item_changes(7, op="d"), 4, hour=9)
    assert read_tombstones(lake) == [1, 3, 4]
    apply_rows(lake, make_item_changes(5), 5, hour=19.5)
    assert read_tombstones(lake) == [4]
    assert state(lake).purged_up_to.max_sequence == (3,)


@pytest.mark.parametrize("removed", [False, True])
def test_purge_killed_after_its_commit_is_finished_once(lake: Path, monkeypatch: pytest.MonkeyPatch, removed: bool) -> None:
    """The next instance finishes the purge before it compares anything, and only once: later tombstones stay."""
    apply_rows(lake, make_item_changes(2, op="d"), 3, hour=0)
    real = ledgers.delete_entries

    def kill(*entries) -> None:
        if removed:
            real(*entries)
        raise Retryable("killed")

    with monkeypatch.context() as patched:
        patched.setattr(ledgers, "delete_entries", kill)
        with pytest.raises(Retryable, match="killed"):
            apply_rows(lake, make_item_changes(5), 4, hour=20)
    assert state(lake).purge_pending
    assert read_tombstones(lake) == ([] if removed else [1, 3])
    old = ("u", {"id": 2, "v": "late", "_seq_1": 2})
    rejects = apply_rows(lake, [*make_item_changes(5), old], 4, hour=20)
    assert [row["_seq_1" if "_seq_1" in row else "_cdc_seq_1"] for row in rejects] == [2]
    assert not state(lake).purge_pending
    assert read_tombstones(lake) == []


def test_tombstones_stored_after_a_purge_stay(lake: Path) -> None:
    """A delete at or below the floor whose row existed. A newer change of its key is compared with it in any later
    commit."""
    apply_rows(lake, [("d", {"id": 9, "_seq_1": 50})], 3, hour=0)
    assert not apply_rows(lake, [("d", {"id": 2, "_seq_1": 40})], 4, hour=20)
    assert read_tombstones(lake) == [40]
    assert not apply_rows(lake, [("c", {"id": 2, "v": "back", "_seq_1": 45})], 5, hour=20)
    assert len(apply_rows(lake, [("c", {"id": 8, "v": "new", "_seq_1": 45})], 6, hour=20)) == 1


def test_lane_without_retention_starts_without_horizons(lake: Path) -> None:
    sink = DeltaRsSink({"path": str(lake)})
    sink.reset(LANE)
    write = make_write([*make_item_changes(1), *make_item_changes(4, op="d")])
    sink.prepare(LANE, write.plan)
    sink.apply([write], refuse_rejects)
    sink.close()
    assert (state(lake).purged_up_to, state(lake).delete_horizons) == (None, ())
    assert not apply_rows(lake, [("u", {"id": 3, "v": "x", "_seq_1": 0})], 2, hour=99)
