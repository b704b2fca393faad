"""One writer per lane on a local lake: a lock of the operating system, which is released when its holder dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from replicator.domain.errors import Fenced


class LaneLock:
    """Holds the lock from construction to `release`. Raises `Fenced`, with the holder, when another instance
    has it.

    The file stays: without it, two instances could lock two files of the same name.
    """

    def __init__(self, path: Path, lane: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._handle: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as taken:
            holder = os.pread(self._handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
            self.release()
            raise Fenced(
                f"lane {lane} is already written by another instance (process {holder})",
                next_step=f"Stop that instance first: it holds the lock {path.name}.",
            ) from taken
        try:
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, str(os.getpid()).encode(), 0)
        except OSError:
            self.release()
            raise

    def expect(self, version: int) -> None:
        """Does nothing: the lock keeps others out."""

    def note_commit(self, version: int) -> None:
        """Does nothing."""

    def doubt(self, version: int) -> None:
        """Does nothing."""

    def release(self) -> None:
        """Releases the lock; may be called twice."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
