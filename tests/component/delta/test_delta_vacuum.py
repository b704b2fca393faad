"""Compaction and vacuum of Delta tables: beside the lane, in its turn, and what they leave alone."""

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
from support.delta_writes import ITEMS, PARTITION_0, items, write_of

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
    made = DeltaRsSink({"path": str(tmp_path)})
    yield made
    made.close()


def put(sink: DeltaRsSink, rows: list[Any], of: Any = LANE) -> None:
    state = sink.state(of)
    write = write_of(rows, state.position[PARTITION_0] if state else 0, table=ITEMS, lane=of)
    sink.prepare(of, write.plan)
    sink.apply([write], refuse_rejects)


def parquet(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*.parquet") if "_delta_log" not in path.parts}


def list_needed_files(folder: Path) -> set[str]:
    return {Path(uri).name for uri in DeltaTable(str(folder)).file_uris()}


def made_old(folder: Path) -> None:
    """As if every file there had been written ten days ago."""
    then = time.time() - 10 * DAY
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (then, then))


def test_a_lane_goes_on_when_its_files_were_compacted_and_deleted(sink: DeltaRsSink, tmp_path: Path) -> None:
    for number in range(5):
        put(sink, items(number))
    other = DeltaRsSink({"path": str(tmp_path)})
    done = other.compact(LANE)
    assert done is not None and (done.before, done.after) == (5, 1)
    assert other.vacuum(LANE, NOW, dry_run=True) == other.vacuum(LANE, NOW, dry_run=False)
    assert parquet(tmp_path / "items") == list_needed_files(tmp_path / "items")
    put(sink, items(0))
    assert sorted(DeltaTable(str(tmp_path / "items")).to_pyarrow_table()["id"].to_pylist()) == [0, 1, 2, 3, 4]
    other.close()


def test_a_dry_run_deletes_nothing(sink: DeltaRsSink, tmp_path: Path) -> None:
    put(sink, items(1))
    put(sink, items(1))
    before = parquet(tmp_path / "items")
    found = sink.vacuum(LANE, NOW, dry_run=True)
    assert found is not None and found.files == len(before - list_needed_files(tmp_path / "items")) > 0
    assert parquet(tmp_path / "items") == before
    found = sink.vacuum(LANE, None, dry_run=False)
    assert found is not None and not found.files and parquet(tmp_path / "items") == before, "they are retained for 7 days"


def test_parts_of_hours_are_retained_whole(sink: DeltaRsSink, tmp_path: Path) -> None:
    """Rounded down, a vacuum that is to retain half an hour would delete files that are being written."""
    put(sink, items(1))
    put(sink, items(1))
    found = sink.vacuum(LANE, timedelta(minutes=30), dry_run=False)
    assert found is not None and not found.files


def test_files_that_the_log_does_not_name_go_too(tmp_path: Path) -> None:
    """Those of attempts that died, and those whose removal a checkpoint has left out, as it does after the retention."""
    folder = tmp_path / "items"
    write_deltalake(folder, pa.table({"a": [1]}), configuration={"delta.deletedFileRetentionDuration": "interval 0 seconds"})
    write_deltalake(folder, pa.table({"a": [2]}), mode="overwrite")
    time.sleep(1.1)
    DeltaTable(str(folder)).create_checkpoint()
    (folder / "part-of-one-that-died.parquet").write_bytes(b"rows")
    assert len(parquet(folder)) == 3
    assert end_versions(LocalFolder(folder), open_table(LocalFolder(folder))) == ""
    assert parquet(folder) == list_needed_files(folder)


def test_files_that_are_being_written_stay(sink: DeltaRsSink, tmp_path: Path) -> None:
    put(sink, items(1))
    (tmp_path / "items" / "part-not-committed.parquet").write_bytes(b"rows")
    found = sink.vacuum(LANE, timedelta(hours=1), dry_run=False)
    assert found is not None and not found.files
    assert "part-not-committed.parquet" in parquet(tmp_path / "items")


@pytest.mark.parametrize("foreign", ["inner/part-0.parquet", "notes.txt"])
def test_what_others_keep_in_the_folder_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture, foreign: str) -> None:
    """A table in the folder of another, such as an event log's at the root of a lake, must not lose its files."""
    folder = tmp_path / "lake"
    for number in range(2):
        write_deltalake(folder, pa.table({"a": [number]}), mode="overwrite")
    (folder / foreign).parent.mkdir(exist_ok=True)
    (folder / foreign).write_bytes(b"of others")
    made_old(folder)
    removed = parquet(folder) - list_needed_files(folder) - {foreign}
    assert vacuum_files(DeltaTable(str(folder)), 0) == 1 and (folder / foreign).exists()
    assert len(removed) == 1 and not removed & parquet(folder)
    assert foreign in caplog.text


def test_partitions_and_change_data_are_of_the_table(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "items"
    rows = pa.table({"a": [1, 2], "day": ["2026-01-01", "é x"]})
    feed = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(folder, rows, partition_by=["day"], configuration=feed)
    DeltaTable(str(folder)).update({"a": "a + 1"})
    assert any(name.startswith("_change_data/") for name in parquet(folder))
    made_old(folder)
    assert vacuum_files(DeltaTable(str(folder)), 0) > 2 and not caplog.text
    assert {Path(name).name for name in parquet(folder)} == list_needed_files(folder)


def test_a_table_of_which_not_all_files_are_known_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "items"
    write_deltalake(folder, pa.table({"a": [1]}))
    marks = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    log = f'{{"protocol": {{"minReaderVersion": 3, "minWriterVersion": 7, {str(marks)[1:-1]}}}}}'.replace("'", '"')
    (folder / "_delta_log" / f"{1:020}.json").write_text(log + "\n")
    with pytest.raises(SparkNeeded, match="deletion vectors"):
        vacuum_files(DeltaTable(str(folder)), 0)


class Clock:
    """Stands for `time` in the modules that it is given to."""

    def __init__(self) -> None:
        self.now = time.time()

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(table_writer, "time", made)
    return made


def vacuums(folder: Path) -> int:
    return sum(entry["operation"] == "VACUUM END" for entry in DeltaTable(str(folder)).history())


def test_a_lane_vacuums_its_table_when_that_is_due(tmp_path: Path, clock: Clock) -> None:
    """By the table's log, so that a program that is started every hour does not do so every hour."""
    folder = tmp_path / "items"
    for number in range(4):
        made = DeltaRsSink({"path": str(tmp_path), "vacuum_every": "1 day", "vacuum_retain": "8 days"})
        if number:
            made_old(folder)
            stale = folder / f"part-that-died-{number}.parquet"
            stale.write_bytes(b"rows")
            os.utime(stale, (time.time() - 10 * DAY,) * 2)
        put(made, items(number))
        put(made, items(number))
        made.close()
        clock.now += DAY / 2
    # The first run found nothing, the second one deleted a file, the third one was too early.
    assert vacuums(folder) == 2, [entry["operation"] for entry in DeltaTable(str(folder)).history()]
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
def test_the_entry_speaks_before_the_sink(
    tmp_path: Path, options: dict[str, str], entry: dict[str, float], expected: int
) -> None:
    made = DeltaRsSink({"path": str(tmp_path), **options})
    of = replace(LANE, options=entry)
    stale = tmp_path / "items" / "part-that-died.parquet"
    put(made, [], of)
    stale.write_bytes(b"rows")
    os.utime(stale, (time.time() - 10 * DAY,) * 2)
    time.sleep(1.1)
    put(made, items(1), of)
    made.close()
    assert (vacuums(tmp_path / "items"), stale.exists()) == (expected, not expected)


def test_versions_behind_a_vacuum_stand_where_the_lane_does(sink: DeltaRsSink, tmp_path: Path) -> None:
    put(sink, items(1))
    put(sink, items(1))
    sink.vacuum(LANE, NOW, dry_run=False)
    newest = DeltaTable(str(tmp_path / "items")).version()
    state = sink.state(LANE)
    assert state is not None and next(iter(sink.read_version_positions(LANE))) == (newest, state.position)


def test_dead_letters_go_on_when_their_files_were_compacted_and_deleted(tmp_path: Path) -> None:
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


def test_dead_letters_whose_file_is_lost_are_an_error(tmp_path: Path) -> None:
    store = DeltaDeadLetters({"path": str(tmp_path / "letters")})
    store.write([make_dead_letter(1)])
    for path in (tmp_path / "letters").glob("*.parquet"):
        path.unlink()
    with pytest.raises(Fatal, match="is gone"):
        store.write([make_dead_letter(1)])
    store.close()
