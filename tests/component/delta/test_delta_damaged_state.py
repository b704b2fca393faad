"""Recovery of a lane whose state or table was damaged from outside."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.delta_writes import ITEMS, make_item_changes, make_write

from adapters.sinks.delta.sink import DeltaRsSink
from replicator.domain.errors import DataLoss
from replicator.domain.policy.policies import plan_for
from replicator.testing.delivery import make_lane
from replicator.testing.sink_base import refuse_rejects

LANE = make_lane("scd1")
DAMAGE: dict[str, Callable[[Path], object]] = {
    "removed": Path.unlink,
    "emptied": lambda file: file.write_bytes(b""),
    "cut": lambda file: file.write_bytes(file.read_bytes()[:40]),
    "another": lambda file: file.write_text("{}"),
}


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[DeltaRsSink]:
    opened = DeltaRsSink({"path": str(tmp_path)})
    apply_rows(opened, 0)
    apply_rows(opened, 3)
    yield opened
    opened.close()


def apply_rows(sink: DeltaRsSink, start: int) -> None:
    sink.prepare(LANE, plan_for("scd1", ITEMS))
    sink.apply([make_write(make_item_changes(start, start + 1, start + 2), start)], refuse_rejects)


def list_ids(sink: DeltaRsSink) -> list[int]:
    return sorted(sink.read("items")["id"].to_pylist())


def reopen(sink: DeltaRsSink, tmp_path: Path) -> DeltaRsSink:
    sink.close()
    return DeltaRsSink({"path": str(tmp_path)})


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("damage", DAMAGE)
def test_lane_with_damaged_positions_is_loaded_again_after_a_reset(
    sink: DeltaRsSink, tmp_path: Path, damage: str, stopped: bool
) -> None:
    for file in (tmp_path / "_replicator" / "positions").glob("*/*/*.json"):
        DAMAGE[damage](file)
    with pytest.raises(DataLoss, match=rf"lanes resync {LANE.id}") as lost:
        apply_rows(sink, 6)
    assert lost.value.exit_code == 4
    assert "positions" in lost.value.sentence
    with pytest.raises(DataLoss):
        sink.state(LANE)
    assert list_ids(sink) == [0, 1, 2, 3, 4, 5]
    sink = reopen(sink, tmp_path) if stopped else sink
    sink.reset(LANE)
    assert sink.state(LANE) is None
    assert list_ids(sink) == []
    apply_rows(sink, 0)
    assert list_ids(sink) == [0, 1, 2]
    sink.close()


@pytest.mark.parametrize("stopped", [False, True])
def test_damaged_table_can_be_removed_and_loaded_again(sink: DeltaRsSink, tmp_path: Path, stopped: bool) -> None:
    newest = max((tmp_path / "items" / "_delta_log").glob("*.json"))
    newest.write_bytes(newest.read_bytes()[:100])
    other = reopen(sink, tmp_path)
    for act in (lambda: apply_rows(other, 6), lambda: other.state(LANE), lambda: other.reset(LANE)):
        with pytest.raises(DataLoss, match="is damaged") as lost:
            act()
        assert f"remove the folder {tmp_path / 'items'}," in lost.value.next_step
        assert f"lanes resync {LANE.id}" in lost.value.next_step
    shutil.rmtree(tmp_path / "items")
    other = reopen(other, tmp_path) if stopped else other
    other.reset(LANE)
    assert other.state(LANE) is None
    for start in (0, 3):
        apply_rows(other, start)
    assert list_ids(other) == [0, 1, 2, 3, 4, 5]
    other.close()


def test_removed_table_is_created_again_after_a_reset(sink: DeltaRsSink, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "items")
    sink.reset(LANE)
    apply_rows(sink, 0)
    assert list_ids(sink) == [0, 1, 2]
