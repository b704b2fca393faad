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
"""Where files are looked for: a local file, folder or glob; or a folder of an object store."""
SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")


@dataclass(frozen=True, slots=True, order=True)
class ArchiveFile:
    """One file as it was when it was listed; files sort by name, then by folder. `label` names it within the archive;
    `stamp`: what tells it from a file that replaces it, and when it was written, in nanoseconds. `changed`: when a local one
    was last written, copied here or renamed, which no copy keeps; in nanoseconds."""

    name: str
    path: FilePath
    label: str
    size: int
    stamp: tuple[int, int] | ObjectStamp
    changed: int = field(default=0, compare=False)

    @property
    def is_replaced(self) -> bool:
        """True when another one has its place by now, or none; a local file that has grown is the same."""
        try:
            size, stamp, _ = _read_stat(self.path)
        except FileNotFoundError:
            return True
        return stamp[0] != self.stamp[0] or size < self.size

    def open_parquet(self) -> Path | BinaryIO:
        """What a Parquet file is read from."""
        return self.path if isinstance(self.path, Path) else self.path.open("rb")


def find_files(path: Place, suffixes: tuple[str, ...], *, deep: bool = False) -> Iterator[ArchiveFile]:
    """The files of `path` (a file, a folder, a glob) that end with one of `suffixes`; with `deep` those in folders as well.

    Raises EnvironmentProblem when `path` names a file or folder that is not there, or something in it cannot be looked at; a
    glob and a folder of an object store may hold nothing yet.
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
    """The files among `paths` and in the folders among them, through links too, each folder once."""
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
    """What cannot be looked at may hold records."""
    raise EnvironmentProblem(
        f"{error.filename} cannot be looked at: {error.strerror}", next_step=f"Let user {os.geteuid()} read it."
    ) from error


def fixed_part(pattern: Path) -> Path:
    """The folder in which a glob begins to vary."""
    return Path(*takewhile(lambda part: not has_magic(part), pattern.parts))


def _to_file(path: Path, folder: Path) -> ArchiveFile | None:
    try:
        size, stamp, changed = _read_stat(path)
    except FileNotFoundError:
        # Removed between the listing and now: as if it had not been there.
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
