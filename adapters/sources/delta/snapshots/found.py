"""Snapshots as Parquet files in a folder: which they are by their names, and their rows."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from replicator.domain.errors import ConfigProblem, DataLoss, EnvironmentProblem

from .supply import Snapshot, Taken, kept

log = logging.getLogger(__name__)
SUFFIX = ".parquet"
DONE = "_SUCCESS"
"""What Spark and others put into a folder when all files are in it."""
DIGITS = re.compile(r"(\d(?:[\d_:T.-]*\d)?)Z?\Z")
MOST_DIGITS = 14


@dataclass(frozen=True, order=True)
class Found:
    """One snapshot that is there: a file, or a folder of files."""

    version: int
    path: Path

    def rows(self) -> pa.Table | None:
        """Its rows, in the types that a Delta table keeps; None while it is not whole. EnvironmentProblem when it cannot be
        read, Fatal for a type that no Delta table keeps."""
        if self.path.is_dir() and not (self.path / DONE).exists():
            log.warning("%s has no %s yet.", self.path, DONE)
            return None
        try:
            tables = [kept(pq.read_table(file)) for file in self._files()]
        except pa.ArrowInvalid:
            # Readable only once its footer, the last thing in it, is written.
            log.warning("%s is not a whole Parquet file yet.", self.path)
            return None
        except OSError as error:
            raise EnvironmentProblem(f"{self.path} cannot be read: {error.strerror or error}.") from error
        return self._united(tables)

    def size(self) -> int:
        """The bytes of its files."""
        return sum(file.stat().st_size for file in self._files())

    def _files(self) -> list[Path]:
        if not self.path.is_dir():
            return [self.path]
        files = sorted(self.path.glob(f"*{SUFFIX}"))
        if not files:
            raise DataLoss(f"The snapshot {self.path} has no {SUFFIX} file.", next_step="Write it anew, or remove it.")
        return files

    def _united(self, tables: list[pa.Table]) -> pa.Table:
        if any(not table.schema.equals(tables[0].schema) for table in tables):
            raise EnvironmentProblem(
                f"The files of the snapshot {self.path} differ in their columns.", next_step="Write it anew."
            )
        return pa.concat_tables(tables).combine_chunks()


class Folder:
    """`Supply` of the folder `path`. `anew` says how to begin anew."""

    is_numbered_here = False

    def __init__(self, path: str, anew: str) -> None:
        self._path, self._anew = path, anew

    def is_news(self, known: Taken) -> bool:
        """See `Supply`."""
        return any(found.version not in known for found in snapshots(self._path))

    def next(self, taken: Taken) -> Snapshot | None:
        """See `Supply`. DataLoss for one that was taken in and is another now, and for one below those that were."""
        for found in snapshots(self._path):
            if found.version in taken:
                _refuse_another(found, taken[found.version])
                continue
            if taken and found.version < max(taken):
                raise DataLoss(
                    f"{found.path} turned up after version {max(taken)} had been taken in.",
                    next_step="Remove it where it is of no use; otherwise: " + self._anew,
                )
            rows = found.rows()
            return None if rows is None else Snapshot(str(found.path), found.version, rows, found.size())
        return None


def _refuse_another(found: Found, size: int | None) -> None:
    if size not in (None, found.size()):
        raise DataLoss(
            f"{found.path} is another one than the version {found.version} that was taken in.",
            next_step="Give it a later version; or put the old one back, or remove it.",
        )


def snapshots(path: str) -> list[Found]:
    """The snapshots in the folder `path`, by version. EnvironmentProblem when it cannot be looked at, ConfigProblem for a
    name without a version and for two names with one."""
    found: dict[int, Found] = {}
    for snapshot in map(_named, _listed(path)):
        other = found.setdefault(snapshot.version, snapshot)
        if other is not snapshot:
            raise ConfigProblem(
                f"{other.path} and {snapshot.path} are both version {snapshot.version}.",
                next_step="Remove one of them, or rename it.",
            )
    return sorted(found.values())


def _listed(path: str) -> Iterator[Path]:
    try:
        for entry in sorted(Path(path).iterdir()):
            if not entry.name.startswith((".", "_")) and (entry.suffix == SUFFIX or entry.is_dir()):
                yield entry
    except FileNotFoundError:
        raise EnvironmentProblem(f"{path} is not there.", next_step="Check 'path' of the source.") from None
    except OSError as error:
        raise EnvironmentProblem(
            f"{path} cannot be looked at: {error.strerror}.", next_step=f"Let user {os.geteuid()} read it."
        ) from error


def _named(path: Path) -> Found:
    digits = re.sub(r"\D", "", found[1]) if (found := DIGITS.search(path.name.removesuffix(SUFFIX))) else ""
    if not digits or len(digits) > MOST_DIGITS:
        raise ConfigProblem(
            f"The name of {path} does not end in a version of 1 to {MOST_DIGITS} digits.",
            next_step=f"Name snapshots like 2024-01-05{SUFFIX} or 000012{SUFFIX}, or keep other files elsewhere.",
        )
    return Found(int(digits), path)
