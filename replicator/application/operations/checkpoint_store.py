"""The checkpoints of one lane on disk: one folder each, valid once it has its final name."""

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
"""All other files of a checkpoint, with their sizes in bytes."""
CHANGING_MARK = "changing"
"""This file exists while rows are erased from an otherwise complete checkpoint."""
OWN_FILES = frozenset({MANIFEST, FILE_LIST, CHANGING_MARK})
DRAFT_FOLDER = "draft"
LINKED_SUFFIX = ".parquet"
"""Files that are never rewritten, so that copies may share them."""


class CheckpointRemoved(FileNotFoundError):
    """A checkpoint was removed during its copy, because a newer one replaced it."""


class CheckpointStore:
    """Checkpoints in `folder`, named by their numbers.

    A checkpoint that is being made or removed has another folder name, so a kill does not damage the others. The
    next `remove_leftovers` deletes what the kill left.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def list_usable(self) -> list[Checkpoint]:
        """Every checkpoint that a rebuild can start from, the oldest first: those with all their files."""
        return [one for one in self.list_all() if not self.describe_damage(one)]

    def describe_damaged(self) -> list[str]:
        """For each damaged checkpoint: what is missing, and how to fix it."""
        return [said for one in self.list_all() if (said := self.describe_damage(one))]

    def describe_damage(self, snapshot: Checkpoint) -> str:
        """Why a checkpoint cannot be used; empty if it can."""
        path = self.get_folder(snapshot)
        if (path / CHANGING_MARK).exists():
            return (
                f"snapshot {snapshot.number} in {path} is not used, because an erasure in it is unfinished. Repeat the "
                "`replicator forget` command"
            )
        try:
            listed: dict[str, int] = json.loads((path / FILE_LIST).read_bytes())
            wrong = [name for name, size in listed.items() if _read_size(path / name) != size]
        except (OSError, ValueError, AttributeError):
            wrong = [FILE_LIST]
        if not wrong:
            return ""
        return f"snapshot {snapshot.number} in {path} is damaged ({wrong[0]}), and not used. Remove the folder"

    def list_all(self) -> list[Checkpoint]:
        """Every checkpoint, damaged ones too, the oldest first. A checkpoint without a readable manifest is left out."""
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
        """Exclusive permission to make, change and remove checkpoints in this folder. Fenced if another process has
        it."""
        lock = InstanceLock(self.folder, "")
        try:
            lock.acquire()
        except Fenced as taken:
            raise Fenced(
                f"another program is writing or changing the snapshots in {self.folder}",
                next_step="Repeat the command when it has finished.",
            ) from taken
        try:
            yield
        finally:
            lock.release()

    def remove_leftovers(self) -> None:
        """Remove half-made and half-removed checkpoints. Needs `lock`."""
        for path in self.folder.glob(f"{DRAFT_FOLDER}*"):
            shutil.rmtree(path)

    def make_draft(self, last: Checkpoint | None) -> Path:
        """A folder for the next checkpoint, with the content of `last`. Needs `lock`."""
        path = self.folder / DRAFT_FOLDER
        with self._wrap_write_errors():
            durable.make_folder(path)
            if last is not None:
                self.copy_checkpoint(last, path)
        return path

    def find_next_number(self) -> int:
        """The number of the next checkpoint."""
        return max((int(p.name) for p in self.folder.glob("*") if p.name.isdecimal()), default=0) + 1

    def publish_draft(self, draft: Path, snapshot: Checkpoint) -> None:
        """Make `draft` this checkpoint; durable on return. Needs `lock`."""
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
        """The files of the checkpoint may be changed inside the block. After an error or a kill the checkpoint is
        unusable until the change is repeated. A damaged one stays damaged. Needs `lock`."""
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
        """Remove a checkpoint. Needs `lock`."""
        gone = self.folder / f"{DRAFT_FOLDER}-{snapshot.number}"
        self.get_folder(snapshot).rename(gone)
        shutil.rmtree(gone)

    def get_folder(self, snapshot: Checkpoint) -> Path:
        """The folder of a checkpoint."""
        return self.folder / str(snapshot.number)

    def copy_checkpoint(self, snapshot: Checkpoint, to: Path) -> None:
        """Copy a checkpoint into the folder `to`, replacing its content. The copy may be changed.

        CheckpointRemoved if the checkpoint was removed meanwhile; `to` is empty then. Lock files are copied too,
        but a copied lock file locks nothing.
        """
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
            pass  # Another disk, or a file system without links.
    shutil.copy2(source, target)
