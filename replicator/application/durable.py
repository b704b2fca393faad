"""Small files that are complete and durable, or absent."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def make_folder(path: Path) -> None:
    """Create the folder and its parents, durably. OSError if that fails."""
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in new:
        sync_path(folder.parent)


def replace_file(path: Path, data: bytes, mode: int) -> None:
    """Write the file, or replace it, atomically and durably. OSError if that fails."""
    new = path.with_suffix(f"{path.suffix}.new")
    _write_file(new, data, mode)
    new.replace(path)
    sync_path(path.parent)


def create_file(path: Path, data: bytes, mode: int) -> None:
    """Write the file unless it exists: of several writers, one is first. OSError if that fails."""
    new = path.with_suffix(f"{path.suffix}.{secrets.token_hex(8)}")
    try:
        _write_file(new, data, mode)
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(new)
    finally:
        new.unlink(missing_ok=True)
    sync_path(path.parent)


def _write_file(path: Path, data: bytes, mode: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_path(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
