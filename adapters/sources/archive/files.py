"""The files of an archive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from glob import has_magic, iglob
from itertools import takewhile
from pathlib import Path

from replicator.domain.errors import EnvironmentProblem

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")


@dataclass(frozen=True, slots=True, order=True)
class ArchiveFile:
    """One file as it was when it was listed; files sort by name, then by folder. `label` names it within the archive."""

    name: str
    path: Path
    label: str
    size: int
    stamp: tuple[int, ...]


def found_files(path: str, suffixes: tuple[str, ...], *, deep: bool = False) -> Iterator[ArchiveFile]:
    """The files of `path` (a file, a folder and with `deep` those in it, a glob) that end with one of `suffixes`.

    Raises EnvironmentProblem when `path` names a file or folder that is not there; a glob may match nothing yet.
    """
    root = Path(path)
    if root.is_dir():
        found: Iterable[Path] = root.rglob("*") if deep else root.iterdir()
    elif root.exists():
        found = [root]
    elif has_magic(path):
        root, found = _fixed_part(root), map(Path, iglob(path, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern
    else:
        raise EnvironmentProblem(f"The archive {path} is not there.", next_step="Check 'path' of the source.")
    folder = root.parent if root.is_file() else root
    for p in found:
        if p.name.endswith(suffixes) and (listed := _listed(p, folder)) is not None:
            yield listed


def _fixed_part(pattern: Path) -> Path:
    """The folder in which a glob begins to vary."""
    return Path(*takewhile(lambda part: not has_magic(part), pattern.parts))


def _listed(path: Path, folder: Path) -> ArchiveFile | None:
    try:
        stat = path.stat()
    except FileNotFoundError:
        # Removed between the listing and now: as if it had not been there.
        return None
    label = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.as_posix()
    return ArchiveFile(path.name, path, label, stat.st_size, (stat.st_ino, stat.st_mtime_ns))
