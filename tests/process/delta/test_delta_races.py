"""Concurrent commits by other programs, commits with an unknown outcome, and disks that are full or read-only."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from paths import TESTS
from support.delta_writes import ITEMS, PARTITION_0, make_item_changes, make_write

from adapters.delta import commits, merge, table_writer
from adapters.delta.commits import LaneLog
from adapters.delta.errors import FileGone
from adapters.delta.table_writer import TableWriter
from adapters.sinks.delta import lane
from adapters.sinks.delta.sink import DeltaRsSink
from replicator.domain.errors import EnvironmentProblem, Fatal, Fenced, Retryable
from replicator.domain.policy.plan import LaneState
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import Position
from replicator.domain.schema_evolution import SchemaVersion, TargetReshape
from replicator.domain.table import Column, TableSpec
from replicator.testing.delivery import make_lane
from replicator.testing.sink_base import refuse_rejects

LANE = make_lane("scd1")


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[DeltaRsSink]:
    made = DeltaRsSink({"path": str(tmp_path)})
    made.prepare(LANE, plan_for("scd1", ITEMS))
    yield made
    made.close()


def apply_rows(sink: DeltaRsSink, *rows: Any, start: int = 0) -> Any:
    return sink.apply([make_write(list(rows), start)], refuse_rejects)[LANE.id]


def read_values(sink: DeltaRsSink) -> dict[int, str]:
    return {row["id"]: row["v"] for row in sink.read("items").to_pylist()}


def run_before_commit(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None], times: int = 1) -> None:
    """Runs `act` between the staging of a batch and its commit."""
    left = [times]
    original = LaneLog.commit

    def commit(self: LaneLog, *args: Any) -> int:
        if left[0]:
            left[0] -= 1
            act()
        return original(self, *args)

    monkeypatch.setattr(LaneLog, "commit", commit)


def compact(table: Path) -> None:
    DeltaTable(str(table)).optimize.compact()


def test_write_is_repeated_after_an_optimize_by_another_program(
    sink: DeltaRsSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(3):
        apply_rows(sink, *make_item_changes(i), start=i)
    run_before_commit(monkeypatch, lambda: compact(tmp_path / "items"))
    assert apply_rows(sink, *make_item_changes(1, op="u", v="new"), start=3).counts.applied == 1
    assert read_values(sink) == {0: "v0", 1: "new", 2: "v2"}


def compact_and_vacuum(table: Path) -> None:
    compact(table)
    DeltaTable(str(table)).vacuum(0, enforce_retention_duration=False, dry_run=False)


def test_write_is_repeated_after_a_vacuum_by_another_program(
    sink: DeltaRsSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of the last snapshot are deleted: before a write, during it, and at the compaction after it."""
    for i in range(3):
        apply_rows(sink, *make_item_changes(i), start=i)
    compact_and_vacuum(tmp_path / "items")
    assert apply_rows(sink, *make_item_changes(1, op="u", v="new"), start=3).counts.applied == 1
    apply_rows(sink, *make_item_changes(3), start=4)
    run_before_commit(monkeypatch, lambda: compact_and_vacuum(tmp_path / "items"))
    assert apply_rows(sink, *make_item_changes(2, op="u", v="new"), start=5).counts.applied == 1
    assert read_values(sink) == {0: "v0", 1: "new", 2: "new", 3: "v3"}

    apply_rows(sink, *make_item_changes(4), start=6)
    stale = DeltaTable(str(tmp_path / "items"))
    compact_and_vacuum(tmp_path / "items")
    monkeypatch.setattr(table_writer, "FEWEST_FILES", 2)
    table_writer.TableMaintenance(1).after_commit(stale, 1)
    assert stale.version() == DeltaTable(str(tmp_path / "items")).version()


def test_rows_are_looked_up_again_after_a_vacuum_by_another_program(sink: DeltaRsSink, tmp_path: Path) -> None:
    for i in range(3):
        apply_rows(sink, *make_item_changes(i), start=i)
    compact_and_vacuum(tmp_path / "items")
    partial = ("u", {"id": 1, "v": None, "_unsent": ["v"]})
    assert apply_rows(sink, partial, start=3).counts.applied == 1
    assert read_values(sink) == {0: "v0", 1: "v1", 2: "v2"}


def test_maintenance_that_misses_a_file_fails_no_batch(
    sink: DeltaRsSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With either engine. Spark's errors are translated before."""

    misses = []

    def miss_file(*_: Any) -> None:
        misses.append(FileGone("a data file is gone"))
        raise misses[-1]

    monkeypatch.setattr(TableWriter, "vacuum", miss_file)
    apply_rows(sink, *make_item_changes(1))
    table = DeltaTable(str(tmp_path / "items"))
    compact(tmp_path / "items")
    apply_rows(sink, *make_item_changes(2), start=1)
    table_writer.TableMaintenance().vacuum(table)
    assert len(misses) == 1 and table.version() == DeltaTable(str(tmp_path / "items")).version()
    assert read_values(sink) == {1: "v1", 2: "v2"}


def test_compaction_during_a_schema_rewrite_doubles_no_row(
    sink: DeltaRsSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rewrite is repeated on a new snapshot."""
    for i in range(3):
        apply_rows(sink, *make_item_changes(i), start=i)
    renamed = TableSpec("public.items", (Column("id", pa.int64()), Column("title", pa.string())), ("id",), 1)
    reshaping = TargetReshape(renames=(("v", "title"),))
    version = SchemaVersion(2, renamed, renamed.columns, Position({PARTITION_0: 3}), datetime.now(UTC), reshaping=reshaping)
    plan = replace(plan_for("scd1", renamed), versions=(version,))
    original = TableWriter.rewrite
    turns = iter([lambda: compact(tmp_path / "items"), lambda: None])

    def rewrite(self: TableWriter, *args: Any) -> None:
        next(turns)()
        original(self, *args)

    monkeypatch.setattr(TableWriter, "rewrite", rewrite)
    with pytest.raises(Retryable, match="another writer changed table items first"):
        sink.prepare(LANE, plan)
    assert read_values(sink) == {0: "v0", 1: "v1", 2: "v2"}
    sink.prepare(LANE, plan)
    rows = sink.read("items").select(["id", "title"]).to_pylist()
    assert sorted(rows, key=itemgetter("id")) == [{"id": i, "title": f"v{i}"} for i in range(3)]


def test_deleted_data_file_is_reported(sink: DeltaRsSink, tmp_path: Path) -> None:
    apply_rows(sink, *make_item_changes(1))
    [file] = (tmp_path / "items").glob("*.parquet")
    file.unlink()
    with pytest.raises(Fatal, match="a data file of table items is gone") as gone:
        apply_rows(sink, *make_item_changes(1, op="u", v="new"), start=1)
    assert str(file) in gone.value.sentence and "lanes resync" in gone.value.next_step


def test_row_of_another_program_completes_a_partial_image(sink: DeltaRsSink, tmp_path: Path) -> None:
    """The last snapshot that the sink read does not have this row."""
    apply_rows(sink, *make_item_changes(1))
    foreign = pa.table({"id": pa.array([5], pa.int64()), "v": ["theirs"]})
    write_deltalake(str(tmp_path / "items"), foreign, mode="append", schema_mode="merge")
    partial = ("u", {"id": 5, "v": None, "_unsent": ["v"]})
    assert apply_rows(sink, partial, start=1).counts.applied == 1
    assert read_values(sink) == {1: "v1", 5: "theirs"}


def test_conflict_at_every_attempt_is_retryable(sink: DeltaRsSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = str(tmp_path / "items")
    run_before_commit(monkeypatch, lambda: DeltaTable(table).alter.set_table_description("x"), times=lane.ATTEMPTS)
    with pytest.raises(Retryable):
        apply_rows(sink, *make_item_changes(1))
    assert apply_rows(sink, *make_item_changes(1)).counts.applied == 1


def test_writer_without_the_lock_is_fenced_by_the_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicator.local_files.fcntl.flock", lambda *_: None)
    first, second = (DeltaRsSink({"path": str(tmp_path)}) for _ in range(2))
    for each in (first, second):
        each.prepare(LANE, plan_for("scd1", ITEMS))
    apply_rows(first, *make_item_changes(1))
    apply_rows(second, *make_item_changes(2), start=1)
    with pytest.raises(Fenced):
        apply_rows(first, *make_item_changes(3), start=1)
    run_before_commit(monkeypatch, lambda: apply_rows(first, *make_item_changes(4), start=2))
    with pytest.raises(Fenced):
        apply_rows(second, *make_item_changes(5, 6), start=2)
    assert read_values(second) == {1: "v1", 2: "v2", 4: "v4"}
    assert second.state(LANE) == LaneState(Position({PARTITION_0: 3}), (2,), rule="scd1 by id")


@pytest.mark.parametrize("error", [DeltaError("connection reset"), OSError(5, "Input/output error")])
def test_commit_that_succeeded_despite_an_error_counts(
    sink: DeltaRsSink, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, raised = merge.Merge.__call__, []

    def lost_answer(*args: Any) -> None:
        original(*args)
        if not raised:
            raised.append(True)
            raise error

    monkeypatch.setattr(merge.Merge, "__call__", lost_answer)
    assert apply_rows(sink, *make_item_changes(1)).counts.applied == 1
    assert apply_rows(sink, *make_item_changes(1, op="u", v="new"), start=1).position == Position({PARTITION_0: 2})
    assert read_values(sink) == {1: "new"}


def test_commit_that_failed_is_not_applied(sink: DeltaRsSink, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(merge.Merge, "__call__", refuse)
        with pytest.raises(Retryable, match="ENOSPC"):
            apply_rows(sink, *make_item_changes(1))
    assert sink.state(LANE) is None
    assert apply_rows(sink, *make_item_changes(1)).counts.applied == 1


def test_failed_lane_leaves_the_others_applied(sink: DeltaRsSink) -> None:
    other = make_lane("scd1", "other")
    sink.prepare(other, plan_for("scd1", ITEMS))
    writes = [
        make_write(make_item_changes(1), lane=LANE),
        make_write(make_item_changes(1), lane=make_lane("scd1", "unprepared")),
    ]
    with pytest.raises(Exception, match="not prepared") as failed:
        sink.apply(writes, refuse_rejects)
    assert failed.value.__notes__ == [f"lanes applied before it: {LANE.id}"]
    assert sink.state(LANE) == LaneState(Position({PARTITION_0: 1}), (0,), rule="scd1 by id")


def test_many_commits_stay_compact(sink: DeltaRsSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_writer, "EVERY_COMMITS", 20)
    for i in range(60):
        apply_rows(sink, *make_item_changes(i), start=i)
    table = DeltaTable(str(tmp_path / "items"))
    assert len(table.file_uris()) <= 20 + table_writer.FEWEST_FILES
    assert table.history(100) and any(entry["operation"] == "OPTIMIZE" for entry in table.history())
    assert read_values(sink) == {i: f"v{i}" for i in range(60)}
    assert len(list((tmp_path / "_replicator" / "positions" / "testing" / LANE.id).iterdir())) == 20


CHILD = """
import resource, signal, sys
sys.path.insert(0, sys.argv[2])
from support.delta_writes import *
from adapters.sinks.delta.sink import DeltaRsSink
from replicator.testing.sink_base import refuse_rejects
sink = DeltaRsSink({"path": sys.argv[1]})
write = make_write([("c", {"id": i, "v": "x" * 50 + str(i * 7919)}) for i in range(20000)], 1)
sink.prepare(write.lane, write.plan)
if sys.argv[3] == "limit":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60000, 60000))
try:
    sink.apply([write], refuse_rejects)
except Exception as error:
    print(type(error).__name__, error)
"""


def run_second_instance(lake: Path, how: str) -> str:
    command = [sys.executable, "-c", CHILD, str(lake), str(TESTS), how]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def test_file_size_limit_is_reported_and_loses_nothing(sink: DeltaRsSink, tmp_path: Path) -> None:
    apply_rows(sink, *make_item_changes(1))
    sink.close()
    assert run_second_instance(tmp_path, "limit").startswith(
        f"{EnvironmentProblem.__name__} table items cannot be reached: EFBIG"
    )
    assert sink.state(LANE) == LaneState(Position({PARTITION_0: 1}), (0,), rule="scd1 by id")
    assert read_values(sink) == {1: "v1"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = os.geteuid() == 0 and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if not mounted or mounted.returncode:
        pytest.skip("mounting a small disk needs rights this user has not")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_full_disk_is_retryable_and_loses_nothing(small_disk: Path) -> None:
    sink = DeltaRsSink({"path": str(small_disk)})
    sink.prepare(LANE, plan_for("scd1", ITEMS))
    apply_rows(sink, *make_item_changes(1))
    sink.close()
    filler = small_disk / "filler"
    filler.write_bytes(b"\0" * (os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize - 40_000))
    assert run_second_instance(small_disk, "disk").startswith(
        f"{Retryable.__name__} the disk under table items refuses to write: ENOSPC"
    )
    assert sink.state(LANE) == LaneState(Position({PARTITION_0: 1}), (0,), rule="scd1 by id")
    filler.unlink()
    sink.prepare(LANE, plan_for("scd1", ITEMS))
    apply_rows(sink, *make_item_changes(1, op="u", v="after"), start=1)
    assert read_values(sink) == {1: "after"}
    sink.close()


def test_read_only_disk_is_an_environment_problem(small_disk: Path) -> None:
    sink = DeltaRsSink({"path": str(small_disk)})
    sink.prepare(LANE, plan_for("scd1", ITEMS))
    apply_rows(sink, *make_item_changes(1))
    sink.close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(EnvironmentProblem, match="EROFS"):
        sink.prepare(LANE, plan_for("scd1", ITEMS))
    assert read_values(sink) == {1: "v1"}


def test_commit_has_one_dated_transaction(sink: DeltaRsSink, tmp_path: Path) -> None:
    """With the date, an engine can expire it; without one it would stay for ever."""
    apply_rows(sink, *make_item_changes(1))
    log = (tmp_path / "items" / "_delta_log" / f"{1:020}.json").read_text()
    assert '"appId":"replicator/testing/target.items","version":1,"lastUpdated":' in log
    assert commits.WRITER.compression == "SNAPPY"
