"""The folders of a lake: the protocol for disks and object stores, and local folders with their files and locks."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path, PosixPath
from typing import Any, BinaryIO, Literal, Protocol, cast
from urllib.parse import unquote, urlsplit

from deltalake import DeltaTable

from replicator.domain.errors import Fenced
from replicator.local_files import FileLock, FileLocked, make_folder, replace_file, sync_path

Record = Mapping[str, object]
"""The content of a small JSON file."""


class LaneLock(Protocol):
    """The lock of a lane that this instance holds. Every method but `release` may raise `Fenced`."""

    def expect(self, commit_number: int) -> None:
        """Checks the number of the lane's commits. Raises `Fenced` when another instance made the last one."""

    def note_commit(self, commit_number: int) -> None:
        """Notes that this instance made the lane's commit of that number."""

    def doubt(self, commit_number: int) -> None:
        """Notes that this instance may have made the lane's commit of that number. No other instance did."""

    def release(self) -> None:
        """Releases the lane; may be called twice."""


class FileLocation(Protocol):
    """A data file of a table. Locations are equal if they are the same file, and are ordered within one folder."""

    def open(self, mode: Literal["rb"] = "rb") -> BinaryIO:
        """Its bytes. Raises FileNotFoundError, here or while reading, when the file is gone."""

    def exists(self) -> bool:
        """True when the file exists."""


class Folder(Protocol):
    """A folder on a disk or in an object store. Folders are equal if they are the same place.

    Files in it are small and have ASCII names.
    """

    @property
    def name(self) -> str:
        """Its own name."""

    @property
    def parent(self) -> Folder:
        """The parent folder."""

    @property
    def uri(self) -> str:
        """Its URI for delta-rs."""

    @property
    def options(self) -> dict[str, str] | None:
        """The storage options for delta-rs; contains secrets."""

    def __truediv__(self, name: str, /) -> Folder:
        """The folder `name` in it."""

    def has_table(self) -> bool:
        """True when it contains a Delta table."""

    def folders(self) -> Sequence[Folder]:
        """The folders directly in it, by name; empty when it does not exist."""

    def tables(self) -> Sequence[Folder]:
        """The folders that have a table's log, even an empty one."""

    def files(self) -> Sequence[str]:
        """The names of files directly in it; empty when it does not exist."""

    def has_file(self, file: str) -> bool:
        """True when the file exists."""

    def load(self, file: str) -> str:
        """The text of a file. Raises FileNotFoundError."""

    def stamp(self, file: str) -> object:
        """A value that distinguishes a file from a later one with the same name; None when there is no file."""

    def locate(self, path: str, size: int | None) -> FileLocation:
        """The data file `path` in the log of the table in this folder, with `size` bytes.

        If `size` is None, it may be looked up; raises FileNotFoundError when the file is gone then.
        """

    def put(self, file: str, record: Record) -> None:
        """Writes or overwrites a file; complete and durable on return."""

    def claim(self, file: str, record: Record) -> bool:
        """`put` for a file that the caller may write; returns False without writing for any other file.

        With a lock the caller may write every file. Without locks, only a file that does not exist yet.
        """

    def drop(self, file: str) -> None:
        """Removes a file, if it exists."""

    def clear(self) -> None:
        """Removes everything in it."""

    def is_link_outside(self, root: Any, /) -> bool:
        """True when it is a link to something outside `root`."""

    def lock(self, lane: str) -> LaneLock:
        """Locks the lane with this lock file. Raises `Fenced` when another instance is known to hold it."""


class LocalFolder(PosixPath):
    """A `Folder` on a local disk. A lock of the operating system protects a lane."""

    @property
    def uri(self) -> str:
        return str(self)

    @property
    def options(self) -> dict[str, str] | None:
        return None

    def has_table(self) -> bool:
        return bool(DeltaTable.is_deltatable(str(self)))

    def folders(self) -> Sequence[LocalFolder]:
        try:
            with os.scandir(self) as entries:
                return [self / name for name in sorted(entry.name for entry in entries if entry.is_dir())]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def tables(self) -> Sequence[LocalFolder]:
        return [p for p in self.folders() if (p / "_delta_log").is_dir()]

    def files(self) -> list[str]:
        return [p.name for p in self.iterdir()] if self.is_dir() else []

    def has_file(self, file: str) -> bool:
        return (self / file).exists()

    def load(self, file: str) -> str:
        return (self / file).read_text(encoding="utf-8")

    def stamp(self, file: str) -> object:
        try:
            status = (self / file).stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns

    def locate(self, path: str, size: int | None) -> FileLocation:  # noqa: ARG002
        """Paths are URLs, usually relative to the table."""
        location = unquote(urlsplit(path).path) if path.startswith("file:") else str(self / unquote(path))
        return cast(FileLocation, Path(location))

    def put(self, file: str, record: Record) -> None:
        write_json(self / file, record)

    def claim(self, file: str, record: Record) -> bool:
        """The caller holds the lane's lock, so an existing file is an orphan."""
        write_json(self / file, record)
        return True

    def drop(self, file: str) -> None:
        (self / file).unlink(missing_ok=True)

    def clear(self) -> None:
        if self.exists():
            shutil.rmtree(self)

    def is_link_outside(self, root: Any, /) -> bool:
        return self.is_symlink() and not self.resolve().is_relative_to(root.resolve())

    def lock(self, lane: str) -> LaneLock:
        return LocalLaneLock(self.with_name(self.name + ".lock"), lane)


def write_json(path: Path, record: Mapping[str, object]) -> None:
    """Replaces `path` by `record`, atomically. The file and its folder are on the disk on return."""
    make_folder(path.parent)
    replace_file(path, json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode())


def sync_commit(table: Path, version: int) -> None:
    """Returns when a commit of a Delta table and its data files are on the disk (delta-rs does not sync them)."""
    log = table / "_delta_log"
    folders = {log}
    # The commit before is needed, too. It may have created the table, or another writer may not have synced it yet.
    for number in range(max(version - 1, 0), version + 1):
        entry = log / f"{number:020}.json"
        if not entry.exists():  # The log was cleaned up: a checkpoint replaces it.
            continue
        # str.splitlines would also split at line separators within values of statistics.
        for line in entry.read_bytes().split(b"\n"):
            add_action = json.loads(line).get("add") if line.strip() else None
            # A file of the commit before may be vacuumed already. Partition values are URL-encoded in paths.
            if add_action and (file := table / unquote(add_action["path"])).exists():
                sync_path(file)
                folders.add(file.parent)
        sync_path(entry)
    if version < 2:
        folders |= {table, *(folder for folder in table.parents if os.access(folder, os.R_OK))}
    for folder in folders:
        sync_path(folder)


class LocalLaneLock:
    """One writer per lane on a local lake.

    Held from construction to `release`. Raises `Fenced`, with the holder, when another instance has it.
    """

    def __init__(self, path: Path, lane: str) -> None:
        self._lock = FileLock(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire()
        except FileLocked as locked:
            raise Fenced(
                f"lane {lane} is already written by another instance (process {locked.holder})",
                next_step=f"Stop that instance first: it holds the lock {path.name}.",
            ) from locked

    def expect(self, commit_number: int) -> None:
        """Does nothing: the lock keeps others out."""

    def note_commit(self, commit_number: int) -> None:
        """Does nothing."""

    def doubt(self, commit_number: int) -> None:
        """Does nothing."""

    def release(self) -> None:
        """May be called twice."""
        self._lock.release()
