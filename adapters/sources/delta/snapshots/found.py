"""The snapshots that there are: which they are by their names, and their rows."""

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

from ....delta.types import storage_type

log = logging.getLogger(__name__)
SUFFIX = ".parquet"
DONE = "_SUCCESS"
"""What Spark and others put into a folder when all files are in it."""
DIGITS = re.compile(r"(\d(?:[\d_:T.-]*\d)?)Z?\Z")
MOST_DIGITS = 14


@dataclass(frozen=True, order=True)
class Snapshot:
    """One snapshot: a file, or a folder of files."""

    version: int
    path: Path

    def rows(self) -> pa.Table | None:
        """Its rows, in the types that a Delta table keeps; None while it is not whole. EnvironmentProblem when it cannot be
        read, Fatal for a type that no Delta table keeps."""
        if self.path.is_dir() and not (self.path / DONE).exists():
            log.warning("%s has no %s yet.", self.path, DONE)
            return None
        try:
            tables = [_kept(pq.read_table(file)) for file in self._files()]
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


def snapshots(path: str) -> list[Snapshot]:
    """The snapshots in the folder `path`, by version. EnvironmentProblem when it cannot be looked at, ConfigProblem for a
    name without a version and for two names with one."""
    found: dict[int, Snapshot] = {}
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


def _named(path: Path) -> Snapshot:
    digits = re.sub(r"\D", "", found[1]) if (found := DIGITS.search(path.name.removesuffix(SUFFIX))) else ""
    if not digits or len(digits) > MOST_DIGITS:
        raise ConfigProblem(
            f"The name of {path} does not end in a version of 1 to {MOST_DIGITS} digits.",
            next_step=f"Name snapshots like 2024-01-05{SUFFIX} or 000012{SUFFIX}, or keep other files elsewhere.",
        )
    return Snapshot(int(digits), path)


def _kept(table: pa.Table) -> pa.Table:
    """The table in types that a Delta table keeps, and without what readers of Parquet leave in schemas."""
    kinds = [f.type.value_type if pa.types.is_dictionary(f.type) else f.type for f in table.schema]
    schema = pa.schema([pa.field(f.name, storage_type(kind)) for f, kind in zip(table.schema, kinds, strict=True)])
    return table.cast(schema)
