"""The folders of a lake: what is asked of them wherever they lie, and those on a local disk."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path, PosixPath
from typing import Any, BinaryIO, Literal, Protocol, cast
from urllib.parse import unquote, urlsplit

from deltalake import DeltaTable

from .durable_files import write_json
from .lane_lock import LaneLock

Record = Mapping[str, object]
"""What a small file says, as JSON."""


class LaneHold(Protocol):
    """A lane, taken by this instance. Any call but `release` may raise `Fenced`."""

    def expect(self, version: int) -> None:
        """Take notice that the lane has committed that often: `Fenced` when that was somebody else."""

    def note_commit(self, version: int) -> None:
        """This instance has made the lane's commit of that number."""

    def doubt(self, version: int) -> None:
        """This instance cannot tell whether it made the lane's commit of that number, which is no other's."""

    def release(self) -> None:
        """Let others have the lane; may be called twice."""


class FileLocation(Protocol):
    """A data file of a table. Equal ones are one place; they have an order, within one folder."""

    def open(self, mode: Literal["rb"] = "rb") -> BinaryIO:
        """Its bytes. FileNotFoundError, here or when it is read, where it is gone."""

    def exists(self) -> bool:
        """Whether it is there."""


class Folder(Protocol):
    """A folder on a disk or in an object store. Equal ones are one place. Files in it are small and named by ASCII."""

    @property
    def name(self) -> str:
        """Its own name."""

    @property
    def parent(self) -> Folder:
        """The folder around it."""

    @property
    def uri(self) -> str:
        """What delta-rs calls it."""

    @property
    def options(self) -> dict[str, str] | None:
        """What delta-rs needs to reach it; holds secrets."""

    def __truediv__(self, name: str, /) -> Folder:
        """The folder `name` in it."""

    def has_table(self) -> bool:
        """True when it holds a Delta table."""

    def folders(self) -> Sequence[Folder]:
        """The folders directly in it, by name; none where it is not there."""

    def tables(self) -> Sequence[Folder]:
        """Those of `folders` that hold the log of a table, were it an empty one."""

    def files(self) -> Sequence[str]:
        """The names of files directly in it; none where it is not there."""

    def has_file(self, file: str) -> bool:
        """True when the file is there."""

    def load(self, file: str) -> str:
        """The text of a file; FileNotFoundError."""

    def stamp(self, file: str) -> object:
        """What tells a file from one that takes its place; None where there is none."""

    def locate(self, path: str, size: int | None) -> FileLocation:
        """The data file that the log of the table in this folder calls `path`, of `size` bytes. None: that is not known, and
        may be asked for; FileNotFoundError when it is gone then."""

    def put(self, file: str, record: Record) -> None:
        """Write a file, or write it anew; whole and durable on return."""

    def claim(self, file: str, record: Record) -> bool:
        """`put` a file that the caller may write: whoever holds a lock may any, others one that nobody wrote. False, and
        nothing is written, for any other."""

    def drop(self, file: str) -> None:
        """Remove a file, if it is there."""

    def clear(self) -> None:
        """Remove everything in it."""

    def is_link_outside(self, root: Any, /) -> bool:
        """True when it is a link to what lies outside of `root`."""

    def hold(self, lane: str) -> LaneHold:
        """Take the lane whose lock this is; `Fenced` when somebody else has it and that can be told now."""


class LocalFolder(PosixPath):
    """A `Folder` on a local disk. A lane is held by a lock of the operating system."""

    @property
    def uri(self) -> str:
        return str(self)

    @property
    def options(self) -> dict[str, str] | None:
        """None are needed."""
        return None

    def has_table(self) -> bool:
        return bool(DeltaTable.is_deltatable(str(self)))

    def folders(self) -> Sequence[LocalFolder]:
        return sorted(p for p in self.iterdir() if p.is_dir()) if self.is_dir() else []

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
            found = (self / file).stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns

    def locate(self, path: str, size: int | None) -> FileLocation:  # noqa: ARG002
        """Paths are URLs, most often relative to the table."""
        place = unquote(urlsplit(path).path) if path.startswith("file:") else str(self / unquote(path))
        return cast(FileLocation, Path(place))

    def put(self, file: str, record: Record) -> None:
        write_json(self / file, record)

    def claim(self, file: str, record: Record) -> bool:
        """Who calls holds the lane's lock, so what is there is an orphan."""
        write_json(self / file, record)
        return True

    def drop(self, file: str) -> None:
        (self / file).unlink(missing_ok=True)

    def clear(self) -> None:
        if self.exists():
            shutil.rmtree(self)

    def is_link_outside(self, root: Any, /) -> bool:
        return self.is_symlink() and not self.resolve().is_relative_to(root.resolve())

    def hold(self, lane: str) -> LaneHold:
        return LaneLock(self.with_name(self.name + ".lock"), lane)
