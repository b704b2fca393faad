"""What a power cut may not take: dead letters, positions, known schemas, events and the pipeline's own files."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from stat import S_ISDIR

import pytest
from click.testing import CliRunner, Result

from replicator.cli import main

CONFIG = """\
pipeline: shop
sources: {shop: {format: debezium_json, transport: archive, path: ./none.jsonl}}
sinks: {lake: {kind: delta, path: ./lake}}
tables: [{match: "public.*", source: shop, to: [{sink: lake}]}]
"""


class Disk:
    """What the program has asked to be on the disk: of files, by number, the time; of folders, which files they named."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.written: dict[int, int] = {}
        self.named: set[tuple[int, int]] = set()
        sync = os.fsync

        def seen(handle: int) -> None:
            sync(handle)
            status = os.fstat(handle)
            self.written[status.st_ino] = time.time_ns()
            if S_ISDIR(status.st_mode):
                with os.scandir(handle) as entries:
                    self.named |= {(status.st_ino, entry.inode()) for entry in entries}

        monkeypatch.setattr(os, "fsync", seen)

    def is_on(self, path: Path) -> bool:
        """Its folder names it, and no byte was written later."""
        status = path.stat()
        is_named = (path.parent.stat().st_ino, status.st_ino) in self.named
        return is_named and (path.is_dir() or status.st_mtime_ns <= self.written.get(status.st_ino, 0))

    def lost(self, folder: Path, *patterns: str) -> list[str]:
        """Files that a power cut may take, with the folders that name them up to this one. Each pattern finds some."""
        found = [[*folder.glob(pattern)] for pattern in patterns]
        assert all(found), [pattern for pattern, files in zip(patterns, found, strict=True) if not files]
        ways = {way for files in found for path in files for way in (path, *path.parents) if way.is_relative_to(folder)}
        return sorted(str(way.relative_to(folder)) for way in ways - {folder} if not self.is_on(way))


def test_a_power_cut_takes_neither_rejects_nor_positions(
    project: Path, ask: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    shutil.rmtree(project / "lake")
    shutil.rmtree(project / "state")
    done = ask("run", "--until-caught-up", "--json", "-q")
    assert done.exit_code == 0, done.output
    letters = "lake/_replicator/dead_letters"
    kept = (f"{letters}/_delta_log/*.json", f"{letters}/**/*.parquet", "lake/_replicator/schemas/**/*.json")
    assert disk.lost(project, *kept, "lake/_replicator/positions/**/*.json", "state/**/*.json") == []


def test_a_power_cut_takes_no_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "replicator.yaml").write_text(CONFIG + "event_store: {path: ./lake/events}\n")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["emit", "Order", "1", "OrderPaid", "--data", '{"total": 3}'])
    assert done.exit_code == 0, done.output
    assert disk.lost(tmp_path, "lake/events/_delta_log/*.json", "lake/events/**/*.parquet") == []
