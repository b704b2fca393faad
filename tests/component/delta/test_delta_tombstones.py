"""The published contract of tombstones, and the rules for tombstones that are written before their target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from support.delta_writes import PARTITION_0, make_item_changes, make_write

from adapters.delta.commits import PositionFiles
from adapters.delta.lake import Lake
from adapters.engines.local import LocalEngine
from adapters.sinks.delta.side_tables import DeltaSideTables, exclude_rows
from adapters.sinks.delta.sink import DeltaRsSink
from replicator.domain.policy.plan import EVENT_ID, LaneState
from replicator.domain.position import Position
from replicator.ports.engine import Engine
from replicator.testing.delivery import make_lane
from replicator.testing.sink_base import refuse_rejects
from replicator.testing.sink_contract import TombstoneContract

LANE = make_lane("scd1")


class TestDeltaTombstones(TombstoneContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.lake = Lake.from_path(str(tmp_path))

    def new_tombstones(self) -> DeltaSideTables:
        return DeltaSideTables(self.lake)

    def new_engine(self) -> Engine[Any]:
        return LocalEngine()


def open_at(path: Path) -> DeltaRsSink:
    sink = DeltaRsSink({"path": str(path)})
    sink.prepare(LANE, make_write(make_item_changes(1)).plan)
    return sink


def kill(*_: Any) -> None:
    raise KeyboardInterrupt


def list_ids(sink: DeltaRsSink) -> list[int]:
    return sorted(sink.read("items")["id"].to_pylist())


def test_older_update_does_not_restore_a_deleted_row(tmp_path: Path) -> None:
    """This holds for the next instance too. The same delete at another offset is a duplicate."""
    sink = open_at(tmp_path)
    sink.apply([make_write([*make_item_changes(1, 2), *make_item_changes(1, op="d")])], refuse_rejects)
    sink.close()
    sink = open_at(tmp_path)
    late = make_write([("u", {"id": 1, "v": "late", "_seq_1": 1}), ("d", {"id": 1, "_seq_1": 2})], 3)
    counts = sink.apply([late], refuse_rejects)[LANE.id].counts
    assert counts.applied == 0
    assert list_ids(sink) == [2]
    assert sink.state(LANE) == LaneState(late.span.end, (2,), None, (2,), rule="scd1 by id")
    sink.close()


def test_delete_of_a_failed_commit_is_applied_when_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failed attempt left its tombstone; it must not count against its own delete."""
    sink = open_at(tmp_path)
    sink.apply([make_write([*make_item_changes(1, 2, 3), *make_item_changes(3, op="d")])], refuse_rejects)
    delete = make_write([("d", {"id": 1, "_seq_1": 1})], 4)

    with monkeypatch.context() as dying, pytest.raises(KeyboardInterrupt):
        dying.setattr(PositionFiles, "announce", kill)
        sink.apply([delete], refuse_rejects)
    sink.close()
    assert DeltaTable(str(tmp_path / "_replicator" / "tombstones" / "items")).count() == 2
    sink = open_at(tmp_path)
    assert list_ids(sink) == [1, 2]
    assert sink.apply([delete], refuse_rejects)[LANE.id].counts.applied == 1
    assert list_ids(sink) == [2]
    sink.close()


def test_tombstone_of_a_failed_commit_does_not_hide_an_update(tmp_path: Path, monkeypatch: Any) -> None:
    sink = open_at(tmp_path)
    sink.apply([make_write([*make_item_changes(1, 2), ("d", {"id": 2, "_seq_1": 9})])], refuse_rejects)
    update, delete = ("u", {"id": 1, "v": "newer", "_seq_1": 7}), ("d", {"id": 1, "_seq_1": 8})
    with monkeypatch.context() as dying, pytest.raises(KeyboardInterrupt):
        dying.setattr(PositionFiles, "announce", kill)
        sink.apply([make_write([update, delete], 3)], refuse_rejects)
    sink.close()
    sink = open_at(tmp_path)
    sink.apply([make_write([update], 3)], refuse_rejects)
    assert [row["v"] for row in sink.read("items").to_pylist()] == ["newer"]
    sink.apply([make_write([delete], 4)], refuse_rejects)
    assert list_ids(sink) == []
    sink.close()


def test_older_update_of_a_topic_that_was_made_again_does_not_restore_a_deleted_row(tmp_path: Path) -> None:
    """A skip then lowers the position, and the offsets below are those of other records."""
    sink = open_at(tmp_path)
    sink.apply([make_write([*make_item_changes(1, 2), ("d", {"id": 1, "_seq_1": 20})])], refuse_rejects)
    state = sink.state(LANE)
    assert state is not None
    sink.skip(LANE, replace(state, position=Position({PARTITION_0: 0}), identity=()))
    late = make_write([("u", {"id": 1, "v": "late", "_seq_1": 15}), ("u", {"id": 2, "v": "new", "_seq_1": 16})])
    assert sink.apply([late], refuse_rejects)[LANE.id].counts.applied == 1
    assert list_ids(sink) == [2]
    sink.close()


def test_batch_without_deletes_writes_no_tombstones(tmp_path: Path) -> None:
    sink = open_at(tmp_path)
    sink.apply([make_write(make_item_changes(1, 2))], refuse_rejects)
    assert not (tmp_path / "_replicator" / "tombstones").exists()
    sink.close()


def test_rows_without_a_record_do_not_exclude_entries_without_one() -> None:
    """Tombstones restored from a checkpoint name no record, and neither do rows read from the target."""
    entries, rows = (pa.table({EVENT_ID: pa.array(ids, pa.string())}) for ids in ([None, "t-0-1", "t-0-2"], [None, "t-0-2"]))
    assert exclude_rows(entries, rows)[EVENT_ID].to_pylist() == [None, "t-0-1"]
