"""What a power failure must not lose: dead letters, positions, known schemas, events and journals."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from stat import S_ISDIR

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from adapters.sources.backfill.journal import BackfillFolder
from replicator.application.delivery.bounded_queue import RecordFrame
from replicator.application.delivery.bulk_load import SpillFiles, SpillSlice
from replicator.cli import main
from replicator.domain.policy.plan import Counts
from replicator.domain.position import Position, Span

CONFIG = """\
pipeline: shop
sources: {shop: {format: debezium_json, transport: archive, path: ./none.jsonl}}
sinks: {lake: {kind: delta, path: ./lake}}
tables: [{match: "public.*", source: shop, to: [{sink: lake}]}]
"""
JOURNALS = """\
pipeline: shop
sources:
  asked: {format: rows, transport: query, dsn: "sqlite:///FOLDER/asked.db", table: asked, cursor_column: modified}
  empty: {format: rows, transport: query, dsn: "sqlite:///FOLDER/asked.db", table: empty, cursor_column: modified}
  people: {format: rows, transport: snapshots, path: ./people}
  outbox: {format: debezium_outbox, transport: archive, path: ./archive}
sinks: {lake: {kind: delta, path: ./lake}}
event_store: {path: ./lake/events}
projections: {totals: {sql: ./config/totals.sql, inputs: {asked: lake.asked}, sink: lake}}
tables:
  - {match: asked, source: asked, keys: [id], deletes: ignore, to: [{sink: lake}]}
  - {match: empty, source: empty, keys: [id], deletes: ignore, to: [{sink: lake}]}
  - {match: people, source: people, keys: [id], deletes: ignore, to: [{sink: lake}]}
  - {match: "outbox.event.*", source: outbox, to: [{sink: event_store}]}
http: {address: "127.0.0.1:0"}
"""
TOTALS = "SELECT id, count(*) AS count FROM asked GROUP BY id"
EVENT = {
    "topic": "outbox.event.order", "partition": 0, "offset": 0, "timestamp": [1, 1_700_000_000_500],
    "headers": [["id", "e1"], ["eventType", "Paid"]], "key": "1", "value": '{"total": 3}',
}  # fmt: skip


class Disk:
    """The syncs that the program has requested. `written`: file number -> time. `named`: the files that a folder
    contained."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.written: dict[int, int] = {}
        self.named: set[tuple[int, int]] = set()
        sync = os.fsync

        def record_sync(handle: int) -> None:
            sync(handle)
            status = os.fstat(handle)
            self.written[status.st_ino] = time.time_ns()
            if S_ISDIR(status.st_mode):
                with os.scandir(handle) as entries:
                    self.named |= {(status.st_ino, entry.inode()) for entry in entries}

        monkeypatch.setattr(os, "fsync", record_sync)

    def is_on(self, path: Path) -> bool:
        """Its folder names it, and no byte was written later."""
        status = path.stat()
        is_named = (path.parent.stat().st_ino, status.st_ino) in self.named
        return is_named and (path.is_dir() or status.st_mtime_ns <= self.written.get(status.st_ino, 0))

    def lose_unsynced(self, folder: Path, *patterns: str) -> list[str]:
        """Files that a power cut may take, with the folders that name them up to this one. Each pattern finds some."""
        found = [[*folder.glob(pattern)] for pattern in patterns]
        assert all(found), [pattern for pattern, files in zip(patterns, found, strict=True) if not files]
        ways = {way for files in found for path in files for way in (path, *path.parents) if way.is_relative_to(folder)}
        return sorted(str(way.relative_to(folder)) for way in ways - {folder} if not self.is_on(way))


def test_power_failure_loses_no_rejects_and_no_positions(
    project: Path, run_cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    shutil.rmtree(project / "lake")
    shutil.rmtree(project / "state")
    done = run_cli("run", "--until-caught-up", "--json", "-q")
    assert done.exit_code == 0, done.output
    letters = "lake/_replicator/dead_letters"
    kept = (f"{letters}/_delta_log/*.json", f"{letters}/**/*.parquet", "lake/_replicator/schemas/**/*.json")
    assert disk.lose_unsynced(project, *kept, "lake/_replicator/positions/**/*.json", "state/**/*.json") == []
    for name in ("out.jsonl", "out.jsonl.gz", "out.parquet"):
        done = run_cli("dlq", "export", name)
        assert done.exit_code == 0 and disk.lose_unsynced(project, name) == [], done.output


def test_power_failure_loses_no_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "replicator.yaml").write_text(CONFIG + "event_store: {path: ./lake/events}\n")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["emit", "Order", "1", "OrderPaid", "--data", '{"total": 3}'])
    assert done.exit_code == 0, done.output
    assert disk.lose_unsynced(tmp_path, "lake/events/_delta_log/*.json", "lake/events/**/*.parquet") == []


def test_power_failure_loses_no_journal_and_no_table_of_a_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor events from a topic. A queried source returns each change only once."""
    disk = Disk(monkeypatch)
    for name in ("config", "people", "archive"):
        (tmp_path / name).mkdir()
    (tmp_path / "config" / "replicator.yaml").write_text(JOURNALS.replace("FOLDER", str(tmp_path)))
    (tmp_path / "config" / "totals.sql").write_text(TOTALS)
    (tmp_path / "archive" / "a.jsonl").write_text(json.dumps(EVENT) + "\n")
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "people" / "1.parquet")
    with sqlite3.connect(tmp_path / "asked.db") as database:
        database.execute("CREATE TABLE asked (id bigint PRIMARY KEY, modified timestamp NOT NULL)")
        database.execute("CREATE TABLE empty (id bigint PRIMARY KEY, modified timestamp NOT NULL)")
        database.execute("INSERT INTO asked VALUES (1, '2024-01-01 00:00:00')")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["run", "--until-caught-up", "-q"])
    assert done.exit_code == 0, done.output
    folders = ("lake/events", "lake/totals", "state/shop/kept/asked", "state/shop/kept/people")
    kept = [f"{folder}/**/*.{ending}" for folder in folders for ending in ("json", "parquet")]
    assert disk.lose_unsynced(tmp_path, *kept, "state/shop/kept/empty/**/*.json") == []


def test_power_failure_loses_no_row_read_for_a_backfill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, kept = Disk(monkeypatch), BackfillFolder(tmp_path / "state" / "kept", "public.items")
    kept.lock()
    kept.begin_run((1,), "2024-01-01", "1", "")
    kept.append(kept.build_records([b"1"], [b"{}"]), {"run": 1, "stage": "rows"})
    kept.unlock()
    assert disk.lose_unsynced(tmp_path, "state/**/*.json", "state/**/*.parquet") == []


def test_power_failure_loses_no_recorded_spill_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, spilled = Disk(monkeypatch), SpillFiles(tmp_path / "state" / "lane", "tests")
    rows = pa.table({"id": [1, 2]})
    for number in range(2):
        piece = SpillSlice(number, Span(Position(), Position()), 2, Counts(), (), (), has_unchanged=False, deletes=False)
        spilled.add_slice(piece, [rows], [RecordFrame(rows, rows.nbytes)])
    assert disk.lose_unsynced(tmp_path, "state/lane/*.json", "state/lane/*/*") == []
