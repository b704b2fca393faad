"""Where the snapshots of one lane's state are kept: a folder for each, valid once it has its name."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from replicator.application import durable
from replicator.application.instance_lock import InstanceLock
from replicator.domain.checkpoints import Checkpoint
from replicator.domain.errors import EnvironmentProblem, Fenced

MANIFEST = "snapshot.json"
FILE_LIST = "files.json"
"""Every other file of a snapshot, with its size in bytes."""
CHANGING_MARK = "changing"
"""There while rows are taken out of a snapshot that is whole otherwise."""
OWN_FILES = frozenset({MANIFEST, FILE_LIST, CHANGING_MARK})
DRAFT_FOLDER = "draft"
LINKED_SUFFIX = ".parquet"
"""Files that are never written to again, so that copies may share them."""


class CheckpointRemoved(FileNotFoundError):
    """A snapshot was removed while it was copied: a newer one took its place."""


class CheckpointStore:
    """Snapshots in `folder`, named by their numbers. One that is being made, or removed, is in a folder of another name, so
    that a kill leaves those that were there; what it leaves beside them goes with the next `remove_leftovers`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def list_usable(self) -> list[Checkpoint]:
        """Every snapshot with which a replay may begin, the oldest first: those whose files are all there."""
        return [one for one in self.list_all() if not self.describe_damage(one)]

    def describe_damaged(self) -> list[str]:
        """Of those that lack something what that is, and what to do."""
        return [said for one in self.list_all() if (said := self.describe_damage(one))]

    def describe_damage(self, snapshot: Checkpoint) -> str:
        """Why nothing begins with a snapshot, or nothing."""
        path = self.get_folder(snapshot)
        if (path / CHANGING_MARK).exists():
            return f"snapshot {snapshot.number} in {path} is not used: a row is being forgotten in it; repeat that `forget`"
        try:
            listed: dict[str, int] = json.loads((path / FILE_LIST).read_bytes())
            wrong = [name for name, size in listed.items() if _read_size(path / name) != size]
        except (OSError, ValueError, AttributeError):
            wrong = [FILE_LIST]
        if not wrong:
            return ""
        return f"snapshot {snapshot.number} in {path} is damaged, and not used: see {wrong[0]}; remove the folder"

    def list_all(self) -> list[Checkpoint]:
        """Every snapshot there is, damaged ones too, the oldest first. One whose description cannot be read is none."""
        found = []
        for path in self.folder.glob("*") if self.folder.is_dir() else ():
            if path.name.isdecimal():
                try:
                    found.append(Checkpoint.from_json(json.loads((path / MANIFEST).read_bytes())))
                except (OSError, ValueError, KeyError, TypeError, AttributeError):
                    continue
        return sorted(found, key=lambda one: one.number)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Nobody else makes, changes or removes snapshots here meanwhile. Fenced where somebody does."""
        lock = InstanceLock(self.folder, "")
        try:
            lock.acquire()
        except Fenced as taken:
            raise Fenced(
                f"the snapshots in {self.folder} are being taken or changed by another program",
                next_step="Repeat the command when that is done.",
            ) from taken
        try:
            yield
        finally:
            lock.release()

    def remove_leftovers(self) -> None:
        """Remove what was left half made or half removed. Needs `lock`."""
        for path in self.folder.glob(f"{DRAFT_FOLDER}*"):
            shutil.rmtree(path)

    def make_draft(self, last: Checkpoint | None) -> Path:
        """A folder to make the next snapshot in, which goes on from `last`. Needs `lock`."""
        path = self.folder / DRAFT_FOLDER
        with self._wrap_write_errors():
            durable.make_folder(path)
            if last is not None:
                self.copy_checkpoint(last, path)
        return path

    def find_next_number(self) -> int:
        """That of the next snapshot."""
        return max((int(p.name) for p in self.folder.glob("*") if p.name.isdecimal()), default=0) + 1

    def publish_draft(self, draft: Path, snapshot: Checkpoint) -> None:
        """Let what is in `draft` be this snapshot; durable on return. Needs `lock`."""
        with self._wrap_write_errors():
            (draft / MANIFEST).write_text(json.dumps(snapshot.to_json()), encoding="utf-8")
            _list_files(draft)
            for path in (*draft.rglob("*"), draft):
                durable.sync_path(path)
            draft.rename(self.folder / str(snapshot.number))
            durable.sync_path(self.folder)

    @contextmanager
    def _wrap_write_errors(self) -> Iterator[None]:
        try:
            yield
        except CheckpointRemoved:
            raise
        except OSError as error:
            raise EnvironmentProblem(
                f"{self.folder} cannot be written ({error.strerror}).",
                next_step="Make the folder writable, with room on its disk. The snapshots in it stay as they are.",
            ) from error

    @contextmanager
    def mark_changing(self, snapshot: Checkpoint) -> Iterator[None]:
        """What is in the snapshot may be changed meanwhile. Ended by an error or a kill, it is not used until that was done
        again; one that was damaged stays so. Needs `lock`."""
        path = self.get_folder(snapshot)
        is_mine = (path / CHANGING_MARK).exists() or not self.describe_damage(snapshot)
        if is_mine:
            (path / CHANGING_MARK).touch()
            durable.sync_path(path)
        yield
        if is_mine:
            _list_files(path)
            durable.sync_path(path / FILE_LIST)
            (path / CHANGING_MARK).unlink()
            durable.sync_path(path)

    def remove_checkpoint(self, snapshot: Checkpoint) -> None:
        """Remove a snapshot. Needs `lock`."""
        gone = self.folder / f"{DRAFT_FOLDER}-{snapshot.number}"
        self.get_folder(snapshot).rename(gone)
        shutil.rmtree(gone)

    def get_folder(self, snapshot: Checkpoint) -> Path:
        """The folder of a snapshot."""
        return self.folder / str(snapshot.number)

    def copy_checkpoint(self, snapshot: Checkpoint, to: Path) -> None:
        """Let the folder `to` hold what a snapshot holds and nothing else; it may then be changed. Gone where the snapshot
        was removed meanwhile, and `to` is empty then. Files of locks come along: who holds one holds no copy of it."""
        path = self.get_folder(snapshot)
        top = str(path)
        _empty_folder(to)
        try:
            shutil.copytree(
                path,
                to,
                copy_function=_copy_or_link,
                ignore=lambda folder, _: OWN_FILES if folder == top else (),
                dirs_exist_ok=True,
            )
        except OSError as error:
            if path.is_dir():
                raise
            _empty_folder(to)
            raise CheckpointRemoved(f"snapshot {snapshot.number} was removed") from error


def _list_files(folder: Path) -> None:
    files = {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    kept = {name: size for name, size in sorted(files.items()) if name not in OWN_FILES}
    (folder / FILE_LIST).write_text(json.dumps(kept), encoding="utf-8")


def _read_size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def _empty_folder(folder: Path) -> None:
    for path in folder.iterdir() if folder.is_dir() else ():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _copy_or_link(source: str, target: str) -> None:
    if source.endswith(LINKED_SUFFIX):
        try:
            os.link(source, target)
            return
        except OSError:
            pass  # Another disk, or one without links.
    shutil.copy2(source, target)
