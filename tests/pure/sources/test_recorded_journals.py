"""Journals of earlier versions are read and continued."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from support.exported_records import write_parquet_snapshot
from support.queried_database import QueriedDatabase
from support.recorded_journals import ADDED, OPEN, RECORDS, copy_journal, open_query, open_snapshots, read_records

from adapters.sources.backfill.journal import BackfillFolder
from replicator.domain.errors import DataLoss


def read_news(source: Any) -> list[dict[str, Any]]:
    """The rows after the recorded ones, with what one poll adds."""
    found: list[dict[str, Any]] = []

    def take(batch: Any) -> None:
        found.extend(json.loads(value)["payload"] for value in batch.frame["value"].to_pylist())

    source.run(source.end(), take, threading.Event(), once=True)
    return found


@pytest.mark.parametrize("name", OPEN)
def test_records_of_a_journal_are_read(tmp_path: Path, name: str) -> None:
    copy_journal(name, tmp_path)
    assert read_records(OPEN[name](tmp_path)) == RECORDS[name]


def test_next_snapshot_is_compared_with_the_last_one(tmp_path: Path) -> None:
    copy_journal("snapshots", tmp_path)
    write_parquet_snapshot(tmp_path, 3, [(1, "a", "x", 2.5), (3, "a", "z", 9.0), (4, "a", "new", None)])
    news = read_news(open_snapshots(tmp_path))
    found = sorted((row["id"], row["_change"], row["_snapshot"], row["name"], row["price"]) for row in news)
    assert found == [(3, "u", 3, "*", 9.0), (4, "c", 3, "*", None)]
    assert read_records(open_snapshots(tmp_path))[:5] == RECORDS["snapshots"]
    assert {file.name for file in (tmp_path / "state").iterdir()} == {
        "3.parquet",
        "items",
        "keys.json",
        "lock",
        "taken.json",
    }


def test_next_query_starts_at_the_last_value(tmp_path: Path) -> None:
    copy_journal("query", tmp_path)
    database = QueriedDatabase(f"sqlite:///{tmp_path / 'asked.db'}")
    database.make_sales()
    database.add_sales(ADDED, (6, "2019-11-15", "Ada", "8.00", "2019-11-15 08:00:00"))
    before = json.loads(RECORDS["query"][-1][1])["payload"]
    (row,) = read_news(open_query(tmp_path))
    assert (row["id"], row["name"]) == (6, before["name"])
    assert row["_snapshot"] > before["_snapshot"]
    assert read_records(open_query(tmp_path))[:5] == RECORDS["query"]


def test_compacted_journal_is_continued(tmp_path: Path) -> None:
    """Its newest commit has no progress."""
    table = DeltaTable(str(copy_journal("query", tmp_path) / "sales"))
    assert table.optimize.compact()["numFilesRemoved"] == 2
    database = QueriedDatabase(f"sqlite:///{tmp_path / 'asked.db'}")
    database.make_sales()
    database.add_sales(ADDED)
    assert read_news(open_query(tmp_path)) == []


@pytest.mark.parametrize("name", ["snapshots", "query"])
def test_other_masks_are_refused(tmp_path: Path, name: str) -> None:
    copy_journal(name, tmp_path)
    with pytest.raises(DataLoss, match="another mask of 'name', or none"):
        read_news(OPEN[name](tmp_path, private={}))


def test_next_run_continues_the_offsets(tmp_path: Path) -> None:
    copy_journal("backfills", tmp_path)
    kept = BackfillFolder(tmp_path / "state", "public.items")
    kept.lock()
    last = kept.read_state()
    assert last is not None and (last.run, last.stage, last.below, last.begun) == (2, "rows", (2,), "t2")
    assert len(kept.list_run_files(2)) == 2
    state = kept.begin_run((3,), "t3", last.system, last.form)
    assert (state.run, state.next) == (3, RECORDS["backfills"][-1][0] + 1)
    kept.append(kept.build_records([b"k"], [b"run 3"]), {"run": 3, "stage": "rows", "micros": 1})
    kept.unlock()
    assert read_records(OPEN["backfills"](tmp_path)) == [*RECORDS["backfills"], [state.next, "run 3"]]
