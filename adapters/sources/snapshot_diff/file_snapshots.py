"""Snapshots as files in a folder: their versions from names, and their rows."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from replicator.domain.errors import ConfigProblem, DataLoss, EnvironmentProblem

from ...object_store.files import seconds_until_stable
from ..file_versions import find_version_digits
from .file_formats import PARQUET, SnapshotFormat, SnapshotTooLarge
from .snapshots import ReadSnapshot, Taken, to_storable

log = logging.getLogger(__name__)
DONE = "_SUCCESS"
"""The file that Spark and others write to a folder when all its files are complete."""
SETTLED_SECONDS = 10.0
"""Seconds without a write after which a file is complete, if its content does not show it."""
MOST_DIGITS = 14


@dataclass(frozen=True, order=True)
class FileSnapshot:
    """One existing snapshot: a file, or a folder of files."""

    version: int
    path: Path

    def read_rows(self, form: SnapshotFormat = PARQUET) -> pa.Table | None:
        """Its rows in types of Delta tables; None while it is incomplete. Raises:

        - ConfigProblem if it is larger than the format allows
        - EnvironmentProblem if it is unreadable
        - Fatal for a type that Delta tables lack
        - DataLoss for invalid text
        """
        if self.path.is_dir() and not (self.path / DONE).exists():
            log.warning("%s has no %s yet.", self.path, DONE)
            return None
        try:
            if self.seconds_until_stable(form) > 0:
                return None
            tables = self._tables(form)
        except SnapshotTooLarge:
            raise ConfigProblem(
                f"{self.path} holds more than {form.most} bytes once it is unpacked (limits.memory).",
                next_step="Raise `limits.memory`.",
            ) from None
        except OSError as error:
            raise EnvironmentProblem(f"{self.path} cannot be read: {error.strerror or error}.") from error
        whole = [to_storable(table) for table in tables if table is not None]
        if len(whole) < len(tables):
            log.warning("%s is not a whole %s file yet.", self.path, form.name)
            return None
        if any(not table.schema.equals(whole[0].schema) for table in whole):
            raise EnvironmentProblem(
                f"The files of the snapshot {self.path} differ in their columns.", next_step="Write it anew."
            )
        return pa.concat_tables(whole).combine_chunks()

    def _tables(self, form: SnapshotFormat) -> list[pa.Table | None]:
        tables, room = [], form.most
        for file in self._list_files(form.suffixes):
            table = form.read(file, room)
            tables.append(table)
            room -= table.nbytes if table is not None else 0
            if room < 0:
                raise SnapshotTooLarge
        return tables

    def seconds_until_stable(self, form: SnapshotFormat) -> float:
        """Seconds until it is complete by its age; 0 or less if it is, or if its content shows it."""
        try:
            if self.path.is_dir():
                return self._folder_seconds_until_stable()
            stat = self.path.stat()
        except FileNotFoundError:
            return 0.0  # Removed since it was listed: nothing to wait for.
        return seconds_until_stable(self.path, stat.st_mtime, stat.st_size, SETTLED_SECONDS) if form.settles else 0.0

    def _folder_seconds_until_stable(self) -> float:
        """The same for a folder. A copy may write `_SUCCESS` before other files and preserve modification times, but it
        cannot preserve ctime."""
        times = {file.name: file.stat().st_ctime for file in self.path.iterdir()}
        done = times.pop(DONE, None)
        if done is None or (times and done > max(times.values())):
            return 0.0
        return seconds_until_stable(self.path, max([done, *times.values()]), len(times), SETTLED_SECONDS)

    def read_size(self, form: SnapshotFormat = PARQUET) -> int:
        """The bytes of its files."""
        return sum(file.stat().st_size for file in self._list_files(form.suffixes))

    def read_remaining_size(self, form: SnapshotFormat) -> int | None:
        """The bytes of its files after it was processed. None if it was removed, or may lose its files just now."""
        try:
            if not self.path.is_dir():
                return self.path.stat().st_size
            is_still = time.time() - self.path.stat().st_mtime >= SETTLED_SECONDS
            is_whole = (self.path / DONE).exists() and any(file.name.endswith(form.suffixes) for file in self.path.iterdir())
            return self.read_size(form) if is_still and is_whole else None
        except FileNotFoundError:
            return None

    def _list_files(self, suffixes: tuple[str, ...]) -> list[Path]:
        if not self.path.is_dir():
            return [self.path]
        files = [file for file in sorted(self.path.iterdir()) if file.name.endswith(suffixes)]
        if not files:
            raise DataLoss(f"The snapshot {self.path} has no {suffixes[0]} file.", next_step="Write it again, or remove it.")
        return files


class SnapshotFolder:
    """`SnapshotProvider` of the folder `path`. `anew`: the next step for starting from scratch."""

    is_numbered_here = False

    def __init__(self, path: str, anew: str, form: SnapshotFormat = PARQUET) -> None:
        self._path, self._anew, self._form = path, anew, form

    def has_news(self, known: Taken) -> bool:
        return any(found.version not in known for found in list_snapshots(self._path, self._form))

    def read_next(self, taken: Taken) -> ReadSnapshot | None:
        """The next complete snapshot. Raises DataLoss for a processed one that changed, and for one below these."""
        for found in list_snapshots(self._path, self._form):
            if found.version in taken:
                _refuse_other_size(found, found.read_remaining_size(self._form), taken[found.version])
                continue
            if taken and found.version < max(taken):
                raise DataLoss(
                    f"{found.path} appeared after version {max(taken)} had been read.",
                    next_step="Remove it if it is not needed. Otherwise: " + self._anew,
                )
            rows = found.read_rows(self._form)
            size = (
                None
                if rows is None
                else found.read_remaining_size(self._form)
                if found.path.is_file()
                else found.read_size(self._form)
            )
            return None if rows is None or size is None else ReadSnapshot(str(found.path), found.version, rows, size)
        return None

    def seconds_until_stable(self, known: Taken) -> float:
        """Seconds until all snapshots that are not in `known` are complete by their age; 0 or less if they are."""
        new = [found for found in list_snapshots(self._path, self._form) if found.version not in known]
        return max((found.seconds_until_stable(self._form) for found in new), default=0.0)


def _refuse_other_size(found: FileSnapshot, now: int | None, size: int | None) -> None:
    if None not in (size, now) and size != now:
        raise DataLoss(
            f"{found.path} differs from the version {found.version} that was read before.",
            next_step="Give it a later version, or restore the old file, or remove it.",
        )


def list_snapshots(path: str, form: SnapshotFormat = PARQUET) -> list[FileSnapshot]:
    """The snapshots in the folder `path`, by version. Raises EnvironmentProblem for an inaccessible folder, ConfigProblem
    for a name without a version, for duplicate versions, and for versions that are not comparable."""
    found: dict[int, FileSnapshot] = {}
    for snapshot in (_to_snapshot(entry, form) for entry in _list_paths(path, form)):
        other = found.setdefault(snapshot.version, snapshot)
        if other is not snapshot:
            raise ConfigProblem(
                f"{other.path} and {snapshot.path} are both version {snapshot.version}.",
                next_step="Remove one of them, or rename it.",
            )
    _refuse_uneven([one.path for one in found.values()], form)
    return sorted(found.values())


def _refuse_uneven(paths: Sequence[Path], form: SnapshotFormat) -> None:
    """Refuse versions of several digit groups with different widths: 2024-1-31 would be above 2024-2-1."""
    by_widths = {tuple(map(len, _version_digits(path, form))): path for path in reversed(paths)}
    apart = next((widths for widths in by_widths if len(widths) > 1), None)
    if apart is not None and len(by_widths) > 1:
        other = next(path for widths, path in by_widths.items() if widths != apart)
        one, two = sorted([by_widths[apart], other])
        raise ConfigProblem(
            f"The versions in the names of {one} and {two} have parts of different lengths, so their order is unknown.",
            next_step="Use the same number of digits for each part in all names: 2024-01-05, not 2024-1-5.",
        )


def _list_paths(path: str, form: SnapshotFormat) -> Iterator[Path]:
    try:
        for entry in sorted(Path(path).iterdir()):
            if not entry.name.startswith((".", "_")) and (entry.name.endswith(form.suffixes) or entry.is_dir()):
                yield entry
    except FileNotFoundError:
        raise EnvironmentProblem(f"{path} is not there.", next_step="Check 'path' of the source.") from None
    except OSError as error:
        raise EnvironmentProblem(
            f"{path} cannot be looked at: {error.strerror}.", next_step=f"Let user {os.geteuid()} read it."
        ) from error


def _to_snapshot(path: Path, form: SnapshotFormat) -> FileSnapshot:
    digits = "".join(_version_digits(path, form))
    if not digits or len(digits) > MOST_DIGITS:
        raise ConfigProblem(
            f"The name of {path} does not end in a version of 1 to {MOST_DIGITS} digits.",
            next_step=f"Name snapshots like 2024-01-05{form.suffixes[0]} or 000012{form.suffixes[0]}, or keep other files "
            "elsewhere.",
        )
    return FileSnapshot(int(digits), path)


def _version_digits(path: Path, form: SnapshotFormat) -> list[str]:
    """The digit groups of its version."""
    return find_version_digits(path.name, form.suffixes)
