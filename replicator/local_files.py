"""Files on local disks: each is complete and durable, or absent; and locks that end with their process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Self


def make_folder(path: Path) -> None:
    """Create the folder and its parents, durably. OSError if that fails."""
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in new:
        sync_path(folder.parent)


def replace_file(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write the file, or replace it, atomically and durably. Several processes may do so at once. OSError if that
    fails."""
    with write_whole(path, str(os.getpid())) as draft:
        _write_file(draft, data, mode)


@contextlib.contextmanager
def write_whole(path: Path, suffix: str = "partial") -> Iterator[Path]:
    """The path of a draft in the same folder. At the end of the block the draft replaces the file, atomically and durably.
    After an error it is removed. OSError if that fails.

    A killed process leaves its draft, which the next draft with the same suffix overwrites. Processes that may write the
    file at once need different suffixes.
    """
    draft = path.with_name(f".{path.name}.{suffix}")
    try:
        yield draft
        sync_path(draft)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_path(path.parent)


def create_file(path: Path, data: bytes, mode: int) -> None:
    """Write the file unless it exists: of several writers, one is first. OSError if that fails."""
    new = path.with_suffix(f"{path.suffix}.{secrets.token_hex(8)}")
    try:
        _write_file(new, data, mode)
        sync_path(new)
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(new)
    finally:
        new.unlink(missing_ok=True)
    sync_path(path.parent)


def _write_file(path: Path, data: bytes, mode: int) -> None:
    path.unlink(missing_ok=True)  # The draft of a killed process may have another mode.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(data)


def sync_path(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class FileLocked(Exception):
    """Another `FileLock` has locked the file. `holder`: the id of its process, or "unknown"."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"locked by process {holder}")
        self.holder = holder


class FileLock:
    """A lock of the operating system on a file, which is released when its process ends or dies. The file has the id of
    that process. Not locked before `acquire`.

    Only the process that has locked the file may remove it, or its folder: otherwise two processes could lock two files
    of the same name.
    """

    def __init__(self, path: Path, mode: int = 0o644) -> None:
        self._path, self._mode = path, mode
        self._handle: int | None = None

    def acquire(self) -> None:
        """Lock the file, and create it if needed; its folder exists. Does not wait: raises FileLocked if the file is
        locked, also by this process. OSError if it cannot be written."""
        while (handle := self._lock_file()) is None:
            pass
        self._handle = handle

    def _lock_file(self) -> int | None:
        """The locked file; None if it was removed before it was locked."""
        handle, is_mine = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, self._mode), False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(handle, 0)
            os.pwrite(handle, str(os.getpid()).encode(), 0)
            with contextlib.suppress(FileNotFoundError):
                is_mine = os.path.samestat(self._path.stat(), os.fstat(handle))
        except BlockingIOError as taken:
            raise FileLocked(os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "unknown") from taken
        finally:
            if not is_mine:
                os.close(handle)
        return handle if is_mine else None

    def release(self) -> None:
        """Unlock the file. May be called twice."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
