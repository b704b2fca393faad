"""Retention of soft-deleted rows in a lake: they are removed in the commit of the floor, despite later failures."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from support.delta_writes import ITEMS, make_changes, make_item_changes, make_write

from adapters.delta.lake import Lake
from adapters.delta.tables import open_table
from adapters.engines.local import LocalEngine
from adapters.sinks.delta import side_tables as ledgers
from adapters.sinks.delta.sink import DeltaRsSink
from replicator.domain.errors import Retryable
from replicator.domain.policy.late_changes import HORIZON_COUNT
from replicator.domain.policy.policies import plan_for
from replicator.domain.transform.rows import RowTransforms
from replicator.testing.delivery import make_lane
from replicator.testing.sink_base import refuse_rejects

LANE = replace(make_lane("scd1"), options={"change_data_feed": True})
HOUR = timedelta(hours=1)
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
SOFT = plan_for("scd1", ITEMS, None, RowTransforms(soft_deletes=True), retention=HORIZON_COUNT * HOUR)


def apply_rows(folder: Path, rows: list, start: int, hour: float) -> None:
    """A new instance applies the rows."""
    sink, engine = DeltaRsSink({"path": str(folder)}), LocalEngine()
    try:
        sink.prepare(LANE, SOFT)
        for number, row in enumerate(rows, start):
            write = make_write([row], number, lane=LANE)
            folded = engine.fold(engine.transform_rows(make_changes([row], number), SOFT).frame, SOFT)
            write = replace(write, plan=SOFT, folded=folded, at=BEGINNING + hour * HOUR)
            sink.apply([write], refuse_rejects)
    finally:
        sink.close()


def read_delete_flags(folder: Path) -> dict[int, bool]:
    rows = DeltaRsSink({"path": str(folder)}).read("items").to_pylist()
    return {row["id"]: row["_cdc_deleted"] for row in rows}


def read_feed(folder: Path) -> list[tuple[int, str]]:
    table = open_table(Lake.from_path(str(folder)).table("items"))
    changes = pa.RecordBatchReader.from_stream(table.load_cdf(starting_version=0)).read_all().to_pylist()
    return [(row["id"], row["_change_type"]) for row in sorted(changes, key=lambda row: row["_commit_version"])]


def test_expired_row_is_a_delete_in_the_change_data_feed(tmp_path: Path) -> None:
    apply_rows(tmp_path, [*make_item_changes(1, 2), *make_item_changes(1, op="d")], 0, hour=0)
    apply_rows(tmp_path, make_item_changes(3), 3, hour=10)
    assert read_delete_flags(tmp_path) == {1: True, 2: False, 3: False}
    assert "delete" not in {kind for _, kind in read_feed(tmp_path)}
    apply_rows(tmp_path, make_item_changes(4), 4, hour=20)
    assert read_delete_flags(tmp_path) == {2: False, 3: False, 4: False}
    assert [key for key, kind in read_feed(tmp_path) if kind == "delete"] == [1]


def test_killed_instance_resumes_after_the_rows_were_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows were removed with the floor. The next instance resumes there; rows marked later stay."""
    apply_rows(tmp_path, [*make_item_changes(1, 2), *make_item_changes(1, op="d")], 0, hour=0)

    def kill(*_) -> None:
        raise Retryable("killed")

    with monkeypatch.context() as patched:
        patched.setattr(ledgers, "delete_entries", kill)
        with pytest.raises(Retryable, match="killed"):
            apply_rows(tmp_path, make_item_changes(3), 3, hour=20)
    assert read_delete_flags(tmp_path) == {2: False}
    apply_rows(tmp_path, [*make_item_changes(3), *make_item_changes(2, op="d")], 3, hour=20)
    apply_rows(tmp_path, make_item_changes(4), 5, hour=30)
    assert read_delete_flags(tmp_path) == {2: True, 3: False, 4: False}


def test_purge_tolerates_a_row_deleted_by_another_writer(tmp_path: Path) -> None:
    """Another writer deletes the marked row first. The lane then removes the remaining ones."""
    apply_rows(
        tmp_path, [*make_item_changes(1, 2, 5), *make_item_changes(1, op="d"), *make_item_changes(5, op="d")], 0, hour=0
    )
    open_table(Lake.from_path(str(tmp_path)).table("items")).delete("id = 1")
    apply_rows(tmp_path, make_item_changes(3), 5, hour=20)
    assert read_delete_flags(tmp_path) == {2: False, 3: False}
