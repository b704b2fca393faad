"""Temporary folders: those of killed processes are removed, and those in use are not."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from replicator.application.operations.diff_runs import open_temporary_folder, open_work_folder, remove_abandoned_folders


def leave(parent: Path, name: str) -> None:
    """What a killed process leaves: nothing locks the file any more."""
    (parent / name / "rows").mkdir(parents=True)
    (parent / name / "rows" / "0.parquet").write_text("rows")
    (parent / f"{name}.lock").touch()


def test_next_folder_removes_those_of_killed_processes(tmp_path: Path) -> None:
    leave(tmp_path, "killed")
    (tmp_path / "killed before it had a folder.lock").touch()
    with open_temporary_folder(tmp_path) as folder:
        assert sorted(tmp_path.iterdir()) == [folder, folder.with_suffix(".lock")]
        (folder / "rows").mkdir()
    assert not list(tmp_path.iterdir())


def test_folders_in_use_stay(tmp_path: Path) -> None:
    """Two comparisons may run at once, also in one process."""
    with open_temporary_folder(tmp_path) as first, open_temporary_folder(tmp_path) as second:
        remove_abandoned_folders(tmp_path)
        assert first != second and first.is_dir() and second.is_dir()
    assert not list(tmp_path.iterdir())


def test_folders_of_killed_processes_are_removed_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    leave(tmp_path, "killed")
    monkeypatch.setattr(os, "pwrite", fail)
    remove_abandoned_folders(tmp_path)
    assert not list(tmp_path.iterdir())


def test_folder_opens_while_another_process_checks_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = fcntl.flock

    def remove_first(handle: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        (path,) = tmp_path.glob("*.lock")
        with path.open() as other:
            lock(other, fcntl.LOCK_EX)
            if how & fcntl.LOCK_NB:
                lock(handle, how)
            path.unlink()
        lock(handle, how)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with open_temporary_folder(tmp_path) as folder:
        remove_abandoned_folders(tmp_path)
        assert folder.is_dir()
    assert not list(tmp_path.iterdir())


def test_folder_that_failed_is_removed(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), open_temporary_folder(tmp_path) as folder:
        (folder / "rows").mkdir()
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_comparison_works_without_a_state_folder_that_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "diffs").write_text("a file")
    with open_work_folder(tmp_path) as folder:
        assert folder.is_dir() and tmp_path not in folder.parents
    assert not folder.exists()
