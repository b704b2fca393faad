"""Journals that version 0.1.0 wrote, in `golden/journals`, and their records.

- `snapshots`: of two files, `1.parquet` and `2.parquet`.
- `query`: of two reads of `QueriedDatabase.make_sales`, with a row added between them.
- `backfills`: the second of two runs, which is not finished.
"""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

from paths import GOLDEN

from adapters.sources.backfill import JournalSource
from adapters.sources.query.source import QuerySource
from adapters.sources.snapshot_diff.source import SnapshotsSource
from replicator.domain.position import Span
from support.masked_records import FIXED, HMAC
from support.queried_database import QueriedDatabase
from support.queried_database import make_query_source as query_source

JOURNALS = GOLDEN / "journals"
RECORDS = json.loads((JOURNALS / "records.json").read_text())
ADDED = (5, "2019-11-14", "Ada", "7.50", "2019-11-14 08:00:00")


def copy_journal(name: str, folder: Path) -> Path:
    """A state folder that a source can continue."""
    return Path(shutil.copytree(JOURNALS / name, folder / "state"))


def open_snapshots(folder: Path, **options: Any) -> SnapshotsSource:
    items, state = str(folder / "items"), str(folder / "state")
    return SnapshotsSource({"path": items, "state": state, "keys": ("id", "Part"), "private": {"name": FIXED}, **options})


def open_query(folder: Path, **options: Any) -> QuerySource:
    database = QueriedDatabase(f"sqlite:///{folder / 'asked.db'}")
    return query_source(database, folder, **{"private": {"name": HMAC}, **options})


def open_backfills(folder: Path, **options: Any) -> JournalSource:
    return JournalSource({"state": str(folder / "state"), "batch_bytes": 1000, **options})


OPEN = {"snapshots": open_snapshots, "query": open_query, "backfills": open_backfills}


def read_records(source: Any, to_arrow: Any = lambda frame: frame) -> list[list[Any]]:
    """The offsets and values of all records."""
    found: list[list[Any]] = []

    def take(batch: Any) -> None:
        rows = to_arrow(batch.frame).to_pylist()
        found.extend([row["offset"], row["value"].decode()] for row in rows)

    stored = source.span() if isinstance(source, JournalSource) else Span(source.beginning(), source.end())
    source.read(stored.start, stored.end, take, threading.Event())
    return found
