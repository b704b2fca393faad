"""Files on local disks: each is complete and durable, or absent; and locks that end with their process."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

DRAFT = ".partial"


def make_folder(path: Path) -> None:
    """Create the folder and its parents, durably. OSError if that fails."""
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in new:
        sync_path(folder.parent)


def replace_file(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write the file, or replace it, atomically and durably, also while others do so. OSError if that fails."""
    with write_whole(path, mode) as draft:
        draft.write_bytes(data)


@contextlib.contextmanager
def write_whole(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """The path of the only draft of a file, empty, in the same folder. Its writer locks it, others wait. At the end of the
    block it replaces the file, atomically and durably. After an error it is removed. OSError if that fails."""
    draft = _get_draft_path(path)
    _remove_draft(draft)
    handle = _open_locked(draft, mode, waits=True)
    try:
        os.ftruncate(handle, 0)
        yield draft
        sync_path(draft)
        draft.replace(path)
        sync_path(path.parent)
    finally:
        if _has_name(handle, draft):
            draft.unlink()
        os.close(handle)


def create_file(path: Path, data: bytes, mode: int) -> None:
    """Write the file unless it exists: of several writers, one is first. OSError if that fails."""
    with contextlib.suppress(FileExistsError), write_whole(path, mode) as draft:
        if os.path.lexists(path):
            raise FileExistsError(path)
        draft.write_bytes(data)
    sync_path(path.parent)


def remove_file(path: Path) -> None:
    """Remove the file, and the draft that a killed process has left. OSError if that fails."""
    _remove_draft(_get_draft_path(path))
    path.unlink(missing_ok=True)


def remove_drafts(folder: Path) -> None:
    """Remove the drafts that killed processes have left in a folder. OSError if that fails."""
    for draft in folder.glob(f".*{DRAFT}"):
        _remove_draft(draft)


def _remove_draft(draft: Path) -> None:
    """Remove the draft of a killed process: it may have another mode, or another owner."""
    try:
        handle = os.open(draft, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    except PermissionError:
        draft.unlink(missing_ok=True)
        return
    try:
        _lock_handle(handle, draft, 0.0)
        if _has_name(handle, draft):
            draft.unlink()
    except BlockingIOError:
        return  # Its writer lives.
    finally:
        os.close(handle)


def _get_draft_path(path: Path) -> Path:
    return path.with_name(f".{path.name}{DRAFT}")


def sync_path(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


WAIT_SECONDS = 60.0
"""Seconds to wait for another process that writes the same file. It may be stopped."""


class FileLocked(Exception):
    """Another `FileLock` has locked the file. `holder`: the id of its process, or "unknown"."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"locked by process {holder}")
        self.holder = holder


class FileLock:
    """A lock of the operating system on a file, which is released when its process ends or dies. The file has the id of
    that process, unless the disk is full. Not locked before `acquire`.

    Only the process that has locked the file may remove it, or its folder: otherwise two processes could lock two files
    of the same name. `waits`: `WAIT_SECONDS` for another process, instead of raising FileLocked at once; then OSError.
    """

    def __init__(self, path: Path, mode: int = 0o644, *, waits: bool = False) -> None:
        self._path, self._mode, self._waits = path, mode, waits
        self._handle: int | None = None
        self._holder = 0

    def acquire(self) -> None:
        """Lock the file, and create it if needed; its folder exists. Raises FileLocked if the file is locked, also by
        this process. OSError if it cannot be created."""
        self._handle, self._holder = _open_locked(self._path, self._mode, waits=self._waits), os.getpid()
        with contextlib.suppress(OSError):  # Who frees a full disk needs the lock, too.
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, str(self._holder).encode(), 0)

    def release(self) -> None:
        """Unlock the file. May be called twice. In a forked child, the lock stays with the parent."""
        if self._handle is not None:
            if self._holder == os.getpid():
                fcntl.flock(self._handle, fcntl.LOCK_UN)  # A child may keep a copy of the handle open.
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _open_locked(path: Path, mode: int, *, waits: bool) -> int:
    """A handle of the file, locked. OSError if the file loses its name each time before it is locked."""
    for _ in range(1000):  # Some file systems change the identity of an open file.
        handle, is_mine = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode), False
        try:
            _lock_handle(handle, path, WAIT_SECONDS if waits else 0.0)
            is_mine = _has_name(handle, path)
            if is_mine:
                return handle
        except BlockingIOError as locked:
            raise FileLocked(os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "unknown") from locked
        finally:
            if not is_mine:
                os.close(handle)
    raise OSError(errno.ESTALE, "the file is replaced again and again", str(path))


def _lock_handle(handle: int, path: Path, seconds: float) -> None:
    until = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not seconds:
                raise
            if time.monotonic() >= until:
                raise OSError(errno.ETIMEDOUT, "another process keeps it locked", str(path)) from None
            time.sleep(0.01)
        else:
            return


def _has_name(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(handle))
    except FileNotFoundError:
        return False
