"""Files are whole or absent, and a lock has one holder."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from replicator import local_files
from replicator.local_files import FileLock, FileLocked, create_file, remove_file, replace_file, write_whole


def test_file_is_replaced_at_the_end_of_the_block(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_text("old")
    with write_whole(path) as draft:
        draft.write_text("new")
        assert path.read_text() == "old" and draft.parent == tmp_path
    assert path.read_text() == "new" and [one.name for one in tmp_path.iterdir()] == ["rows"]


def test_error_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), write_whole(path) as draft:
        draft.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and [one.name for one in tmp_path.iterdir()] == ["rows"]


def test_draft_of_a_killed_process_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.with_name(".rows.partial").write_text("much of a longer file")
    with write_whole(path) as draft:
        draft.write_text("new")
    assert path.read_text() == "new" and [one.name for one in tmp_path.iterdir()] == ["rows"]


def test_secret_has_its_mode_despite_an_old_draft(tmp_path: Path) -> None:
    tmp_path.joinpath(".secret.partial").touch(0o666)
    replace_file(tmp_path / "secret", b"1", 0o600)
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    tmp_path.joinpath(".open.partial").touch(0o600)
    replace_file(tmp_path / "open", b"1", 0o644)
    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o644


def test_wait_for_a_stopped_writer_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_files, "WAIT_SECONDS", 0.1)
    with write_whole(tmp_path / "rows") as draft:
        draft.write_text("whole")
        with pytest.raises(OSError, match="another process keeps it locked"):
            replace_file(tmp_path / "rows", b"other")
    assert (tmp_path / "rows").read_text() == "whole"


def test_readers_see_whole_files_while_threads_replace_them(tmp_path: Path) -> None:
    path, ended = tmp_path / "rows", threading.Event()
    contents = [bytes([65 + number]) * 50_000 for number in range(4)]
    replace_file(path, contents[0])

    def read_often() -> set[bytes]:
        found = {path.read_bytes()}
        while not ended.is_set():
            found.add(path.read_bytes())
        return found

    with ThreadPoolExecutor() as pool:
        read = pool.submit(read_often)
        writes = [pool.submit(replace_file, path, content) for content in contents * 20]
        failed = [write.exception() for write in writes]
        ended.set()
        assert not any(failed) and read.result() <= set(contents)
    assert list(tmp_path.iterdir()) == [path]


def test_one_of_several_threads_creates_a_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"

    def create(number: int) -> str:
        create_file(path, str(number).encode(), 0o600)
        return path.read_text()

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(create, range(40)))) == 1
    assert list(tmp_path.iterdir()) == [path] and path.stat().st_mode & 0o777 == 0o600


def test_removed_file_leaves_no_draft(tmp_path: Path) -> None:
    for kept in ("draft only", "both"):
        (tmp_path / f".{kept}.partial").touch()
    (tmp_path / "both").touch()
    for name in ("draft only", "both", "neither"):
        remove_file(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_full_disk_can_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", fail)
    with FileLock(tmp_path / "lock"), pytest.raises(FileLocked, match="process unknown"):
        FileLock(tmp_path / "lock").acquire()


def test_lock_file_that_is_always_replaced_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "samestat", lambda *_: False)
    with pytest.raises(OSError, match="again and again"):
        FileLock(tmp_path / "lock").acquire()


def test_lock_has_one_holder_and_names_it(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    with first:
        with pytest.raises(FileLocked) as locked:
            second.acquire()
        assert locked.value.holder == str(os.getpid())
        with pytest.raises(FileLocked):
            first.acquire()
    with second:
        pass


def test_lock_file_removed_before_the_lock_is_created_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, lock = tmp_path / "lock", fcntl.flock

    def remove_first(handle: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        path.unlink()
        lock(handle, how)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with FileLock(path), pytest.raises(FileLocked):
        FileLock(path).acquire()


def test_link_is_not_locked(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic links"):
        FileLock(tmp_path / "lock").acquire()
    assert not (tmp_path / "other").exists()
