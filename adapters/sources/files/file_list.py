"""The files of an archive: their list, and whether they are complete."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from glob import has_magic, iglob
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO, NoReturn, TypeAlias

import obstore

from replicator.domain.errors import ConfigProblem, EnvironmentProblem
from replicator.domain.position import TopicPartition
from replicator.ports.options import StorageSettings

from ...object_store.files import ObjectStamp, StoredPath, open_store, seconds_until_stable, to_stamp, translate_errors
from ...object_store.options import SCHEMES, Storage, split_url
from ..file_options import FileSourceOptions

# Folders of an object store.


@dataclass(frozen=True, slots=True)
class ObjectFolder:
    """The objects below a key, or the object with that key."""

    bucket: str
    key: str
    storage: Storage = field(repr=False)

    @classmethod
    def from_url(cls, url: str, storage: StorageSettings | None) -> ObjectFolder:
        """The folder at `s3://BUCKET/KEY`. Raises ConfigProblem for the URL of another kind of store."""
        return cls(*split_url(url), Storage.from_settings(storage))

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}".rstrip("/")

    def list_objects(self, *, deep: bool) -> Iterator[tuple[StoredPath, str, int, ObjectStamp]]:
        """Every object with its name below the folder, size and stamp; without `deep` only objects directly in it."""
        store, prefix = open_store(self.bucket, self.storage), f"{self.key}/" if self.key else None
        with translate_errors(str(self)):
            objects = [one for page in obstore.list(store, prefix) for one in page]
            if not objects and self.key:
                with suppress(FileNotFoundError):
                    objects = [obstore.head(store, self.key)]
        for one in objects:
            key = str(one["path"])
            label = key.removeprefix(f"{self.key}/" if self.key else "") if key != self.key else key.rpartition("/")[2]
            if deep or "/" not in label:
                stamp = to_stamp(one)
                yield StoredPath(self.bucket, key, self.storage, stamp.etag, one["size"]), label, one["size"], stamp


# The files of an archive.

FilePath: TypeAlias = Path | StoredPath
FilesLocation: TypeAlias = str | ObjectFolder
"""A location of files: a local file, folder or glob, or a folder of an object store."""


def locate_files(options: FileSourceOptions) -> FilesLocation:
    """The location of the files. Raises ConfigProblem for an unknown store."""
    scheme, separator, _ = options.path.partition("://")
    is_object = bool(separator) and scheme in SCHEMES
    return ObjectFolder.from_url(options.path, options.storage) if is_object else options.path


SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")
BLOCK = 1 << 20
LONGER = 4
"""The maximum length of a line relative to a record: it contains key and value as escaped text."""
NULL = b"null"
"""Stands for a null message of an Avro file, as in JSON lines."""
ANY = TopicPartition("", 0)
"""Stands for the partition of a file with records of any partitions."""


@dataclass(frozen=True, slots=True, order=True)
class ArchiveFile:
    """One file as it was when it was listed. Files sort by name, then by folder.

    - `label`: its name within the archive.
    - `stamp`: identifies this version of the file, and includes its modification time in nanoseconds.
    - `changed`: when a local file was last written, copied or renamed, in nanoseconds. No copy keeps it.

    If names of files show their order:

    - `partition`: of all its records.
    - `first`: an offset. Records of earlier files are below it, and those of this file are not.
    - `most`: unless the file is empty, one of its records is less than this above `first`.
    """

    name: str
    path: FilePath
    label: str
    size: int
    stamp: tuple[int, int] | ObjectStamp
    changed: int = field(default=0, compare=False)
    partition: TopicPartition = field(default=ANY, compare=False)
    first: int = field(default=0, compare=False)
    most: int = field(default=1, compare=False)

    @property
    def is_replaced(self) -> bool:
        """True if the file was removed or replaced; a local file that has grown is the same file."""
        try:
            size, stamp, _ = _read_stat(self.path)
        except FileNotFoundError:
            return True
        return stamp[0] != self.stamp[0] or size < self.size

    def open_parquet(self) -> Path | BinaryIO:
        """The input for reading it as Parquet."""
        return self.path if isinstance(self.path, Path) else self.path.open("rb")


def find_files(path: FilesLocation, suffixes: tuple[str, ...], *, deep: bool = False) -> Iterator[ArchiveFile]:
    """The files in `path` (a file, folder or glob) that end with one of `suffixes`; with `deep` also files in subfolders.

    Raises EnvironmentProblem if `path` names a missing file or folder, or something in it is inaccessible. A glob or a
    folder of an object store may be empty.
    """
    if isinstance(path, ObjectFolder):
        for file, label, size, stamp in path.list_objects(deep=deep):
            if file.name.endswith(suffixes):
                yield ArchiveFile(file.name, file, label, size, stamp)
        return
    yield from _find_local_files(path, suffixes, deep=deep)


def _find_local_files(path: str, suffixes: tuple[str, ...], *, deep: bool) -> Iterator[ArchiveFile]:
    root = Path(path)
    if root.is_dir():
        try:
            paths: Iterable[Path] = [root] if deep else list(root.iterdir())
        except OSError as error:
            _refuse_unreadable(error)
    elif root.exists():
        paths = [root]
    elif has_magic(path):
        root, paths = fixed_part(root), map(Path, iglob(path, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern
    else:
        raise EnvironmentProblem(f"{path} is not there.", next_step="Check 'path' of the source.")
    folder = root.parent if root.is_file() else root
    for p in _walk(root, paths) if deep else paths:
        if not p.name.endswith(suffixes):
            continue
        try:
            size, stamp, changed = _read_stat(p)
        except FileNotFoundError:
            continue  # Removed since the listing.
        except OSError as error:
            _refuse_unreadable(error)
        label = p.relative_to(folder).as_posix() if p.is_relative_to(folder) else p.as_posix()
        yield ArchiveFile(p.name, p, label, size, stamp, changed)


def _walk(root: Path, paths: Iterable[Path]) -> Iterator[Path]:
    """The files among `paths` and in folders below, following links, each folder once. Folders below `root` may be removed
    meanwhile."""

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError) or error.filename == str(root):
            _refuse_unreadable(error)

    seen: set[tuple[int, int]] = set()
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        for folder, inner, names in os.walk(path, onerror=refuse, followlinks=True):
            try:
                stat = Path(folder).stat()
            except OSError as error:
                refuse(error)
                continue
            if (stat.st_dev, stat.st_ino) in seen:
                inner.clear()
                continue
            seen.add((stat.st_dev, stat.st_ino))
            yield from (Path(folder, name) for name in names)


def _refuse_unreadable(error: OSError) -> NoReturn:
    """Raise EnvironmentProblem, because an inaccessible folder may contain records."""
    raise EnvironmentProblem(
        f"{error.filename} cannot be looked at: {error.strerror}", next_step=f"Let user {os.geteuid()} read it."
    ) from error


def fixed_part(pattern: Path) -> Path:
    """The folder above the first variable part of a glob."""
    return Path(*takewhile(lambda part: not has_magic(part), pattern.parts))


def _read_stat(path: FilePath) -> tuple[int, tuple[int, int] | ObjectStamp, int]:
    if isinstance(path, StoredPath):
        return *path.read_stat(), 0
    stat = path.stat()
    return stat.st_size, (stat.st_ino, stat.st_mtime_ns), stat.st_ctime_ns


# Checks of files: complete, and with a valid name.

SETTLED_SECONDS = 10.0
"""Seconds without a write after which a file is complete. Writers of immutable files never write to it again."""


def seconds_until_complete(file: ArchiveFile, seconds: float | None, *, since_copied: bool = False) -> float:
    """Seconds until the file counts as complete; 0 or less if it does. `seconds`: the required time without a write; None
    means `SETTLED_SECONDS`, or 0 for an object, which appears whole. `since_copied`: the time counts from when it was
    copied or renamed, if that is later."""
    if seconds is None:
        seconds = 0.0 if isinstance(file.path, StoredPath) else SETTLED_SECONDS
    nanoseconds = max(file.stamp[1], file.changed if since_copied else 0)
    return seconds_until_stable(file.path, nanoseconds / 1e9, file.size, seconds) if seconds else 0.0


def refuse_name(file: ArchiveFile) -> None:
    """Raise ConfigProblem for a file whose table name is not valid text."""
    try:
        file.partition.topic.encode()
    except UnicodeEncodeError:
        raise ConfigProblem(
            f"{str(file.path)!a} has a name that is not UTF-8", next_step="Rename it, or move it to another place."
        ) from None
