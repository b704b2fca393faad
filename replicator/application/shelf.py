"""Where the snapshots of one lane's state are kept: a folder for each, valid once it has its name."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from replicator.domain.errors import EnvironmentProblem, Fenced
from replicator.domain.state_snapshots import StateSnapshot

from . import durably
from .instance import InstanceLock

MANIFEST = "snapshot.json"
FILES = "files.json"
"""Every other file of a snapshot, with its size in bytes."""
CHANGING = "changing"
"""There while rows are taken out of a snapshot that is whole otherwise."""
OWN = frozenset({MANIFEST, FILES, CHANGING})
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
        """Every snapshot with which a replay may begin, the oldest first: those whose files are all there."""
        return [one for one in self.every() if not self.damage(one)]

    def damaged(self) -> list[str]:
        """Of those that lack something what that is, and what to do."""
        return [said for one in self.every() if (said := self.damage(one))]

    def damage(self, snapshot: StateSnapshot) -> str:
        """Why nothing begins with a snapshot, or nothing."""
        path = self.path(snapshot)
        if (path / CHANGING).exists():
            return f"snapshot {snapshot.number} in {path} is not used: a row is being forgotten in it; repeat that `forget`"
        try:
            listed: dict[str, int] = json.loads((path / FILES).read_bytes())
            wrong = [name for name, size in listed.items() if _size_of(path / name) != size]
        except (OSError, ValueError, AttributeError):
            wrong = [FILES]
        if not wrong:
            return ""
        return f"snapshot {snapshot.number} in {path} is damaged, and not used: see {wrong[0]}; remove the folder"

    def every(self) -> list[StateSnapshot]:
        """Every snapshot there is, damaged ones too, the oldest first. One whose description cannot be read is none."""
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
        with self._writing():
            durably.folder_made(path)
            if last is not None:
                self.copy(last, path)
        return path

    def next_number(self) -> int:
        """That of the next snapshot."""
        return max((int(p.name) for p in self.folder.glob("*") if p.name.isdecimal()), default=0) + 1

    def publish(self, draft: Path, snapshot: StateSnapshot) -> None:
        """Let what is in `draft` be this snapshot; durable on return. Needs `alone`."""
        with self._writing():
            (draft / MANIFEST).write_text(json.dumps(snapshot.to_json()), encoding="utf-8")
            _list_files(draft)
            for path in (*draft.rglob("*"), draft):
                durably.synced(path)
            draft.rename(self.folder / str(snapshot.number))
            durably.synced(self.folder)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except Gone:
            raise
        except OSError as error:
            raise EnvironmentProblem(
                f"{self.folder} cannot be written ({error.strerror}).",
                next_step="Make the folder writable, with room on its disk. The snapshots in it stay as they are.",
            ) from error

    @contextmanager
    def changing(self, snapshot: StateSnapshot) -> Iterator[None]:
        """What is in the snapshot may be changed meanwhile. Ended by an error or a kill, it is not used until that was done
        again; one that was damaged stays so. Needs `alone`."""
        path = self.path(snapshot)
        is_mine = (path / CHANGING).exists() or not self.damage(snapshot)
        if is_mine:
            (path / CHANGING).touch()
            durably.synced(path)
        yield
        if is_mine:
            _list_files(path)
            durably.synced(path / FILES)
            (path / CHANGING).unlink()
            durably.synced(path)

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
        top = str(path)
        _empty(to)
        try:
            shutil.copytree(
                path,
                to,
                copy_function=_copied,
                ignore=lambda folder, _: OWN if folder == top else (),
                dirs_exist_ok=True,
            )
        except OSError as error:
            if path.is_dir():
                raise
            _empty(to)
            raise Gone(f"snapshot {snapshot.number} was removed") from error


def _list_files(folder: Path) -> None:
    files = {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    kept = {name: size for name, size in sorted(files.items()) if name not in OWN}
    (folder / FILES).write_text(json.dumps(kept), encoding="utf-8")


def _size_of(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


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
