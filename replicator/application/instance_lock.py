"""The instance lock: one running instance per pipeline and state folder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from replicator.domain.errors import EnvironmentProblem, Fenced

from .durable import make_folder


class InstanceLock:
    """An OS lock on `<folder>/lock`, which the kernel frees when its process dies. Not locked before `acquire`.

    A second instance fails at once, before it has written anything. Instances with different state folders are
    detected by the targets, at their next commit.
    """

    def __init__(self, folder: Path, pipeline: str) -> None:
        self._path = folder / "lock"
        self._pipeline = pipeline
        self._handle: int | None = None

    def acquire(self) -> None:
        """Lock the file. `Fenced`, with the other process id, if another instance has locked it."""
        try:
            make_folder(self._path.parent)
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            try:
                self._lock_file(handle)
            except BaseException:
                os.close(handle)
                raise
        except OSError as error:
            raise EnvironmentProblem(
                f"{self._path} cannot be written ({error.strerror}).",
                next_step="Make the folder named by `state` writable.",
            ) from error
        self._handle = handle

    def _lock_file(self, handle: int) -> None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as taken:
            holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise Fenced(
                f"Another instance of pipeline {self._pipeline} runs (process {holder}).",
                next_step="Stop it first, or give this one another `pipeline` name and other targets.",
            ) from taken
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        """Free the lock. May be called twice."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
