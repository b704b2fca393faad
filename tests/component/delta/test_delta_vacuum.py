"""Compaction and vacuum of Delta tables: by another instance, by the lane itself, and which files they keep."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from support.delta_writes import ITEMS, PARTITION_0, make_item_changes, make_write

from adapters.delta import table_writer
from adapters.delta.folders import LocalFolder
from adapters.delta.table_writer import SparkNeeded, end_versions, vacuum_files
from adapters.delta.tables import open_table
from adapters.sinks.delta.dead_letters import DeltaDeadLetters
from adapters.sinks.delta.sink import DeltaRsSink
from replicator.domain.errors import Fatal
from replicator.ports.stores import DeadLetter
from replicator.testing.delivery import make_lane
from replicator.testing.sink_base import refuse_rejects

LANE = make_lane("scd1")
NOW = timedelta(0)
DAY = 86_400.0


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[DeltaRsSink]:
    opened = DeltaRsSink({"path": str(tmp_path)})
    yield opened
    opened.close()


def apply_rows(sink: DeltaRsSink, rows: list[Any], of: Any = LANE) -> None:
    state = sink.state(of)
    write = make_write(rows, state.position[PARTITION_0] if state else 0, table=ITEMS, lane=of)
    sink.prepare(of, write.plan)
    sink.apply([write], refuse_rejects)


def list_parquet_files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*.parquet") if "_delta_log" not in path.parts}


def list_needed_files(folder: Path) -> set[str]:
    return {Path(uri).name for uri in DeltaTable(str(folder)).file_uris()}


def make_files_old(folder: Path) -> None:
    """Sets the age of every file to ten days."""
    then = time.time() - 10 * DAY
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (then, then))


def test_lane_continues_after_its_files_were_compacted_and_deleted(sink: DeltaRsSink, tmp_path: Path) -> None:
    for number in range(5):
        apply_rows(sink, make_item_changes(number))
    other = DeltaRsSink({"path": str(tmp_path)})
    done = other.compact(LANE)
    assert done is not None and (done.before, done.after) == (5, 1)
    assert other.vacuum(LANE, NOW, dry_run=True) == other.vacuum(LANE, NOW, dry_run=False)
    assert list_parquet_files(tmp_path / "items") == list_needed_files(tmp_path / "items")
    apply_rows(sink, make_item_changes(0))
    assert sorted(DeltaTable(str(tmp_path / "items")).to_pyarrow_table()["id"].to_pylist()) == [0, 1, 2, 3, 4]
    other.close()


def test_dry_run_deletes_nothing(sink: DeltaRsSink, tmp_path: Path) -> None:
    apply_rows(sink, make_item_changes(1))
    apply_rows(sink, make_item_changes(1))
    before = list_parquet_files(tmp_path / "items")
    found = sink.vacuum(LANE, NOW, dry_run=True)
    assert found is not None and found.files == len(before - list_needed_files(tmp_path / "items")) > 0
    assert list_parquet_files(tmp_path / "items") == before
    found = sink.vacuum(LANE, None, dry_run=False)
    assert found is not None and not found.files and list_parquet_files(tmp_path / "items") == before, (
        "files are retained for 7 days"
    )


def test_retention_is_rounded_up_to_whole_hours(sink: DeltaRsSink, tmp_path: Path) -> None:
    """If half an hour were rounded down, a vacuum would delete files that are being written."""
    apply_rows(sink, make_item_changes(1))
    apply_rows(sink, make_item_changes(1))
    found = sink.vacuum(LANE, timedelta(minutes=30), dry_run=False)
    assert found is not None and not found.files


def test_files_unknown_to_the_log_are_deleted(tmp_path: Path) -> None:
    """Files of failed attempts, and files whose removal a checkpoint omits, as it does after the retention."""
    folder = tmp_path / "items"
    write_deltalake(folder, pa.table({"a": [1]}), configuration={"delta.deletedFileRetentionDuration": "interval 0 seconds"})
    write_deltalake(folder, pa.table({"a": [2]}), mode="overwrite")
    time.sleep(1.1)
    DeltaTable(str(folder)).create_checkpoint()
    (folder / "part-of-one-that-died.parquet").write_bytes(b"rows")
    make_files_old(folder)
    assert len(list_parquet_files(folder)) == 3
    assert end_versions(LocalFolder(folder), open_table(LocalFolder(folder))) == ""
    assert list_parquet_files(folder) == list_needed_files(folder)


def test_end_of_versions_keeps_files_of_other_writers(tmp_path: Path) -> None:
    """Files of a commit after the snapshot, and of a commit that is about to come."""
    folder = tmp_path / "items"
    for number in range(2):
        write_deltalake(folder, pa.table({"a": [number]}), mode="overwrite")
    (removed,) = {Path(name).name for name in list_parquet_files(folder)} - list_needed_files(folder)
    table = open_table(LocalFolder(folder))
    write_deltalake(folder, pa.table({"a": [2]}), mode="append")
    (folder / "part-not-committed.parquet").write_bytes(b"rows")
    assert end_versions(LocalFolder(folder), table) == ""
    assert sorted(DeltaTable(str(folder)).to_pyarrow_table()["a"].to_pylist()) == [1, 2]
    assert (folder / "part-not-committed.parquet").exists() and not (folder / removed).exists()


def test_files_that_are_being_written_are_kept(sink: DeltaRsSink, tmp_path: Path) -> None:
    apply_rows(sink, make_item_changes(1))
    (tmp_path / "items" / "part-not-committed.parquet").write_bytes(b"rows")
    found = sink.vacuum(LANE, timedelta(hours=1), dry_run=False)
    assert found is not None and not found.files
    assert "part-not-committed.parquet" in list_parquet_files(tmp_path / "items")


@pytest.mark.parametrize("foreign", ["inner/part-0.parquet", "notes.txt"])
def test_foreign_files_in_the_folder_are_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture, foreign: str) -> None:
    """A table inside the folder of another one must not lose its files, for example of an event log at a lake's root."""
    folder = tmp_path / "lake"
    for number in range(2):
        write_deltalake(folder, pa.table({"a": [number]}), mode="overwrite")
    (folder / foreign).parent.mkdir(exist_ok=True)
    (folder / foreign).write_bytes(b"of others")
    make_files_old(folder)
    removed = list_parquet_files(folder) - list_needed_files(folder) - {foreign}
    assert vacuum_files(DeltaTable(str(folder)), 0) == 1 and (folder / foreign).exists()
    assert len(removed) == 1 and not removed & list_parquet_files(folder)
    assert foreign in caplog.text


def test_files_of_partitions_and_change_data_belong_to_the_table(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "items"
    rows = pa.table({"a": [1, 2], "day": ["2026-01-01", "é x"]})
    feed = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(folder, rows, partition_by=["day"], configuration=feed)
    DeltaTable(str(folder)).update({"a": "a + 1"})
    assert any(name.startswith("_change_data/") for name in list_parquet_files(folder))
    make_files_old(folder)
    assert vacuum_files(DeltaTable(str(folder)), 0) > 2 and not caplog.text
    assert {Path(name).name for name in list_parquet_files(folder)} == list_needed_files(folder)


def test_table_with_deletion_vectors_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "items"
    write_deltalake(folder, pa.table({"a": [1]}))
    marks = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    log = f'{{"protocol": {{"minReaderVersion": 3, "minWriterVersion": 7, {str(marks)[1:-1]}}}}}'.replace("'", '"')
    (folder / "_delta_log" / f"{1:020}.json").write_text(log + "\n")
    with pytest.raises(SparkNeeded, match="deletion vectors"):
        vacuum_files(DeltaTable(str(folder)), 0)


class Clock:
    """Replaces `time` in the modules under test."""

    def __init__(self) -> None:
        self.now = time.time()

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(table_writer, "time", fake)
    return fake


def count_vacuums(folder: Path) -> int:
    return sum(entry["operation"] == "VACUUM END" for entry in DeltaTable(str(folder)).history())


def test_lane_vacuums_its_table_when_due(tmp_path: Path, clock: Clock) -> None:
    """The table's log decides, so that a program started every hour does not vacuum every hour."""
    folder = tmp_path / "items"
    for number in range(4):
        sink = DeltaRsSink({"path": str(tmp_path), "vacuum_every": "1 day", "vacuum_retain": "8 days"})
        if number:
            make_files_old(folder)
            stale = folder / f"part-that-died-{number}.parquet"
            stale.write_bytes(b"rows")
            os.utime(stale, (time.time() - 10 * DAY,) * 2)
        apply_rows(sink, make_item_changes(number))
        apply_rows(sink, make_item_changes(number))
        sink.close()
        clock.now += DAY / 2
    # The first run finds nothing, the second one deletes a file, the third one is too early.
    assert count_vacuums(folder) == 2, [entry["operation"] for entry in DeltaTable(str(folder)).history()]
    assert sorted(DeltaTable(str(folder)).to_pyarrow_table()["id"].to_pylist()) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("options", "entry", "expected"),
    [
        ({}, {}, 0),
        ({"vacuum_every": "1 second"}, {}, 1),
        ({"vacuum_every": "1 second"}, {"vacuum_every": 0.0}, 0),
        ({}, {"vacuum_every": 1.0}, 1),
    ],
)
def test_entry_overrides_the_vacuum_interval_of_the_sink(
    tmp_path: Path, options: dict[str, str], entry: dict[str, float], expected: int
) -> None:
    sink = DeltaRsSink({"path": str(tmp_path), **options})
    of = replace(LANE, options=entry)
    stale = tmp_path / "items" / "part-that-died.parquet"
    apply_rows(sink, [], of)
    stale.write_bytes(b"rows")
    os.utime(stale, (time.time() - 10 * DAY,) * 2)
    time.sleep(1.1)
    apply_rows(sink, make_item_changes(1), of)
    sink.close()
    assert (count_vacuums(tmp_path / "items"), stale.exists()) == (expected, not expected)


def test_versions_of_a_vacuum_have_the_position_of_the_lane(sink: DeltaRsSink, tmp_path: Path) -> None:
    apply_rows(sink, make_item_changes(1))
    apply_rows(sink, make_item_changes(1))
    sink.vacuum(LANE, NOW, dry_run=False)
    newest = DeltaTable(str(tmp_path / "items")).version()
    state = sink.state(LANE)
    assert state is not None and next(iter(sink.read_version_positions(LANE))) == (newest, state.position)


def test_dead_letters_work_after_compaction_and_vacuum(tmp_path: Path) -> None:
    store, other = (DeltaDeadLetters({"path": str(tmp_path / "letters")}) for _ in range(2))
    assert other.compact() is None and other.vacuum(NOW, dry_run=False) is None
    for number in range(3):
        store.write([make_dead_letter(number)])
    done = other.compact()
    assert done is not None and done.before > done.after == 1
    removed = other.vacuum(NOW, dry_run=False)
    assert removed is not None and removed.files
    store.write([make_dead_letter(0)])
    assert sorted((one.event_id, one.attempts) for one in store.read()) == [("0", 2), ("1", 1), ("2", 1)]
    store.close()


def make_dead_letter(number: int) -> DeadLetter:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return DeadLetter(
        str(number), "lake.items", "sink", "CODE", "It does not fit.", "items", "", b"record", at, at, 1, "open"
    )


def test_lost_file_of_dead_letters_is_an_error(tmp_path: Path) -> None:
    store = DeltaDeadLetters({"path": str(tmp_path / "letters")})
    store.write([make_dead_letter(1)])
    for path in (tmp_path / "letters").glob("*.parquet"):
        path.unlink()
    with pytest.raises(Fatal, match="is gone"):
        store.write([make_dead_letter(1)])
    store.close()
