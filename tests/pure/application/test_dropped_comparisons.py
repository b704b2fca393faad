"""A lane is compared with its event log, killed during the next comparison, and dropped."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from paths import GOLDEN
from support.lane_diffs import make_diff

from replicator.application.operations.diff import compare_with_log
from replicator.application.operations.diff_runs import (
    DiffProgressFile,
    UnfinishedDiff,
    keep_run,
    read_last_run,
    remove_runs,
)
from replicator.application.operations.drop import drop_lane
from replicator.domain.errors import EnvironmentProblem
from replicator.domain.position import Position
from replicator.settings import load_settings
from replicator.wiring.components import ConfiguredComponents

TOPIC = GOLDEN / "decoders" / "debezium" / "postgres" / "cdc.public.order_items.jsonl"
CONFIG = """\
pipeline: shop
sources:
  recorded: {format: debezium_json, transport: archive, path: ./archive}
sinks:
  lake: {kind: delta, path: ./lake}
  raw: {kind: event_log, path: ./lake/cdc_events}
tables:
  - match: public.order_items
    source: recorded
    to: [{sink: raw}, {sink: lake}, {sink: lake, into: other}, {sink: lake, into: marked, deletes: soft}]
"""


class Parts(ConfiguredComponents):
    """No daemon runs."""

    def ask_daemon(self) -> dict[str, Any] | None:
        return None


def make_parts(tmp_path: Path, config: str = CONFIG) -> Parts:
    (tmp_path / "config" / "replicator.yaml").write_text(config)
    return Parts(load_settings(tmp_path / "config" / "replicator.yaml"))


def make_shop(tmp_path: Path) -> Parts:
    """A shop that has caught up."""
    for name in ("config", "archive"):
        (tmp_path / name).mkdir()
    shutil.copy(TOPIC, tmp_path / "archive")
    parts = make_parts(tmp_path)
    parts.catch_up()
    return parts


def test_marked_rows_are_not_compared(tmp_path: Path) -> None:
    """A purge has removed them, but the event log has their records. Other rows are compared."""
    parts = make_shop(tmp_path)
    (lane,) = [lane for lane in parts.resolve_lanes("public.order_items") if lane.into == "marked"]
    target = DeltaTable(tmp_path / "lake" / lane.into)
    living = target.to_pyarrow_table(filters=[("_cdc_deleted", "!=", True)]).num_rows
    assert target.delete("_cdc_deleted")["num_deleted_rows"]
    diff = compare_with_log(parts, lane, lambda _: None, patience=0, show=1)
    assert diff.equal and diff.rows == living
    target.delete()
    assert compare_with_log(parts, lane, lambda _: None, patience=0, show=1).missing == living


def test_partition_of_which_the_lane_has_applied_nothing_is_named(tmp_path: Path) -> None:
    """The event log is ahead of the lane, not behind it."""
    parts = make_shop(tmp_path)
    record = json.loads(TOPIC.read_text().splitlines()[0])
    (tmp_path / "archive" / "more.jsonl").write_text(json.dumps(record | {"partition": 1, "offset": 0}) + "\n")
    make_parts(tmp_path, CONFIG.partition(", {sink: lake}")[0] + "]\n").catch_up()
    lane = parts.resolve_lanes("public.order_items")[-1]
    with pytest.raises(EnvironmentProblem, match=r"lake.marked has applied no record .* no offset for .*items\[1\]"):
        compare_with_log(parts, lane, lambda _: None, patience=0, show=1)


def test_drop_removes_the_comparisons_of_its_lane_only(tmp_path: Path) -> None:
    parts = make_shop(tmp_path)
    lanes = [lane for lane in parts.resolve_lanes("public.order_items") if lane.sink == "lake"][:2]
    folder = parts.folder / "diffs"
    for lane in lanes:
        keep_run(parts.folder, make_diff(lane=lane.id))
        progress = UnfinishedDiff(Position(), 1, 1, pa.table({"id": [1]}), "0/1", datetime.now(UTC), "")
        with DiffProgressFile(parts.folder, lane) as file:
            file.write(progress)
        (folder / f".{lane.id}.unfinished.partial").touch()
    (folder / "temporary" / "killed").mkdir(parents=True)
    (folder / "temporary" / "killed.lock").touch()

    drop_lane(parts, lanes[0])
    assert read_last_run(parts.folder, lanes[0].id) is None
    assert read_last_run(parts.folder, lanes[1].id) is not None
    assert {path.name for path in folder.iterdir()} == {
        "temporary", lanes[1].id, f"{lanes[1].id}.lock", f"{lanes[1].id}.unfinished", f".{lanes[1].id}.unfinished.partial"
    }  # fmt: skip
    assert not list((folder / "temporary").iterdir())

    with DiffProgressFile(parts.folder, lanes[1]):
        remove_runs(parts.folder, lanes[1].id)
        assert {path.name for path in folder.iterdir()} == {"temporary", f"{lanes[1].id}.lock"}, "A lock in use stays."

    assert compare_with_log(parts, lanes[1], lambda _: None, patience=20, show=1).equal
    assert not list((folder / "temporary").iterdir())
