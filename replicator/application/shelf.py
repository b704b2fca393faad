"""Where the snapshots of one lane's state are kept: a folder for each, valid once it has its name."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from replicator.domain.errors import Fenced
from replicator.domain.state_snapshots import StateSnapshot

from .instance import InstanceLock

MANIFEST = "snapshot.json"
DRAFT = "draft"
LINKED = ".parquet"
"""Files that are never written to again, so that copies may share them."""


class Gone(FileNotFoundError):
    """A snapshot was removed while it was copied: a newer one took its place."""


class Shelf:
    """Snapshots in `folder`, named by their numbers. One that is being made, or removed, is in a folder of another name, so
    that a kill leaves those that were there; what it leaves beside them goes with the next `tidy`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def known(self) -> list[StateSnapshot]:
        """Every snapshot there is, the oldest first. One whose description cannot be read is none."""
        found = []
        for path in self.folder.glob("*") if self.folder.is_dir() else ():
            if path.name.isdecimal():
                try:
                    found.append(StateSnapshot.from_json(json.loads((path / MANIFEST).read_bytes())))
                except (OSError, ValueError, KeyError, TypeError, AttributeError):
                    continue
        return sorted(found, key=lambda one: one.number)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else makes, changes or removes snapshots here meanwhile. Fenced where somebody does."""
        lock = InstanceLock(self.folder, "")
        try:
            lock.hold()
        except Fenced as taken:
            raise Fenced(
                f"the snapshots in {self.folder} are being taken or changed by another program",
                next_step="Repeat the command when that is done.",
            ) from taken
        try:
            yield
        finally:
            lock.release()

    def tidy(self) -> None:
        """Remove what was left half made or half removed. Needs `alone`."""
        for path in self.folder.glob(f"{DRAFT}*"):
            shutil.rmtree(path)

    def draft(self, last: StateSnapshot | None) -> Path:
        """A folder to make the next snapshot in, which goes on from `last`. Needs `alone`."""
        path = self.folder / DRAFT
        path.mkdir(parents=True)
        if last is not None:
            self.copy(last, path)
        return path

    def next_number(self) -> int:
        """That of the next snapshot."""
        return max((int(p.name) for p in self.folder.glob("*") if p.name.isdecimal()), default=0) + 1

    def publish(self, draft: Path, snapshot: StateSnapshot) -> None:
        """Let what is in `draft` be this snapshot; durable on return. Needs `alone`."""
        (draft / MANIFEST).write_text(json.dumps(snapshot.to_json()), encoding="utf-8")
        for path in (*draft.rglob("*"), draft):
            _sync(path)
        draft.rename(self.folder / str(snapshot.number))
        _sync(self.folder)

    def remove(self, snapshot: StateSnapshot) -> None:
        """Remove a snapshot. Needs `alone`."""
        gone = self.folder / f"{DRAFT}-{snapshot.number}"
        self.path(snapshot).rename(gone)
        shutil.rmtree(gone)

    def path(self, snapshot: StateSnapshot) -> Path:
        """The folder of a snapshot."""
        return self.folder / str(snapshot.number)

    def copy(self, snapshot: StateSnapshot, to: Path) -> None:
        """Let the folder `to` hold what a snapshot holds and nothing else; it may then be changed. Gone where the snapshot
        was removed meanwhile, and `to` is empty then. Files of locks come along: who holds one holds no copy of it."""
        path = self.path(snapshot)
        manifest = str(path)
        _empty(to)
        try:
            shutil.copytree(
                path,
                to,
                copy_function=_copied,
                ignore=lambda folder, _: {MANIFEST} if folder == manifest else set(),
                dirs_exist_ok=True,
            )
        except OSError as error:
            if path.is_dir():
                raise
            _empty(to)
            raise Gone(f"snapshot {snapshot.number} was removed") from error


def _empty(folder: Path) -> None:
    for path in folder.iterdir() if folder.is_dir() else ():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _copied(source: str, target: str) -> None:
    if source.endswith(LINKED):
        try:
            os.link(source, target)
            return
        except OSError:
            pass  # Another disk, or one without links.
    shutil.copy2(source, target)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
