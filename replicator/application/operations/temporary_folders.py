"""Temporary folders that do not outlive their processes for long: the next process removes those of killed ones."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = ".lock"
"""The suffix of the file of each folder, which is locked as long as the folder is used."""


@contextmanager
def open_temporary_folder(parent: Path) -> Iterator[Path]:
    """A new folder in `parent`, which is removed at the end. First the folders of processes that were killed are removed.
    OSError if it cannot be created."""
    remove_abandoned_folders(parent)
    parent.mkdir(parents=True, exist_ok=True)
    path, handle = _create_lock(parent)
    try:
        folder = path.with_suffix("")
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        _remove_folder(path)
        os.close(handle)


def remove_abandoned_folders(parent: Path) -> None:
    """Remove the folders in `parent` that no process uses any more. A folder that cannot be removed stays."""
    for path in parent.glob(f"*{LOCK}"):
        try:
            handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_folder(path)
        except OSError:
            continue
        finally:
            os.close(handle)


def _create_lock(parent: Path) -> tuple[Path, int]:
    """A new lock file, and its locked handle."""
    while True:
        path = parent / f"{secrets.token_hex(8)}{LOCK}"
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            continue
        # Between the two calls another process may have locked and removed the file.
        if path.exists():
            return path, handle
        os.close(handle)


def _remove_folder(path: Path) -> None:
    """Remove the folder of a lock file, and then the file. If the folder cannot be removed, the file stays, too."""
    folder = path.with_suffix("")
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.exists():
        path.unlink(missing_ok=True)
