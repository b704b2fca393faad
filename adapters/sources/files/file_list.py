"""The files of an archive."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from glob import has_magic, iglob
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO, NoReturn, TypeAlias

from replicator.domain.errors import EnvironmentProblem

from ...object_store.files import ObjectStamp, StoredPath
from .object_folder import ObjectFolder

FilePath: TypeAlias = Path | StoredPath
Place: TypeAlias = str | ObjectFolder
"""A location of files: a local file, folder or glob, or a folder of an object store."""
SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")


@dataclass(frozen=True, slots=True, order=True)
class ArchiveFile:
    """One file as it was when it was listed. Files sort by name, then by folder.

    - `label`: its name within the archive.
    - `stamp`: identifies this version of the file, and includes its modification time in nanoseconds.
    - `changed`: when a local file was last written, copied or renamed, in nanoseconds. No copy keeps it.
    """

    name: str
    path: FilePath
    label: str
    size: int
    stamp: tuple[int, int] | ObjectStamp
    changed: int = field(default=0, compare=False)

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


def find_files(path: Place, suffixes: tuple[str, ...], *, deep: bool = False) -> Iterator[ArchiveFile]:
    """The files in `path` (a file, folder or glob) that end with one of `suffixes`; with `deep` also files in subfolders.

    Raises EnvironmentProblem if `path` names a missing file or folder, or something in it is inaccessible. A glob or a
    folder of an object store may be empty.
    """
    if isinstance(path, ObjectFolder):
        for found, label, size, stamp in path.list_objects(deep=deep):
            if found.name.endswith(suffixes):
                yield ArchiveFile(found.name, found, label, size, stamp)
        return
    yield from _find_local_files(path, suffixes, deep=deep)


def _find_local_files(path: str, suffixes: tuple[str, ...], *, deep: bool) -> Iterator[ArchiveFile]:
    root = Path(path)
    if root.is_dir():
        found: Iterable[Path] = [root] if deep else root.iterdir()
    elif root.exists():
        found = [root]
    elif has_magic(path):
        root, found = fixed_part(root), map(Path, iglob(path, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern
    else:
        raise EnvironmentProblem(f"{path} is not there.", next_step="Check 'path' of the source.")
    folder = root.parent if root.is_file() else root
    for p in _walk(found) if deep else found:
        if p.name.endswith(suffixes) and (listed := _to_file(p, folder)) is not None:
            yield listed


def _walk(paths: Iterable[Path]) -> Iterator[Path]:
    """The files among `paths` and in folders below, following links, each folder once."""
    seen: set[tuple[int, int]] = set()
    for path in paths:
        if not path.is_dir():
            yield path
        for folder, inner, names in os.walk(path, onerror=_refuse_unreadable, followlinks=True):
            stat = Path(folder).stat()
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


def _to_file(path: Path, folder: Path) -> ArchiveFile | None:
    try:
        size, stamp, changed = _read_stat(path)
    except FileNotFoundError:
        # Removed since the listing.
        return None
    except OSError as error:
        _refuse_unreadable(error)
    label = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.as_posix()
    return ArchiveFile(path.name, path, label, size, stamp, changed)


def _read_stat(path: FilePath) -> tuple[int, tuple[int, int] | ObjectStamp, int]:
    if isinstance(path, StoredPath):
        return *path.read_stat(), 0
    stat = path.stat()
    return stat.st_size, (stat.st_ino, stat.st_mtime_ns), stat.st_ctime_ns
