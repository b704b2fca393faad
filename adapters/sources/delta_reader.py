"""Reading of Delta tables while others write them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from replicator.domain.errors import EnvironmentProblem, Fatal
from replicator.ports.options import StorageSettings

from ..arrow.parquet_slices import ParquetSlices
from ..delta.errors import first_line, is_damage, translate_errors
from ..delta.folders import FileLocation, Folder
from ..delta.lake import Lake
from ..delta.tables import LatestTable, has_table, open_table

# A Delta table that is read while others write it.


class SourceDeltaTable:
    """The table in the folder or at the object store URL `path`; `storage` has the access options. `missing`: the next
    step if there is no table. Not safe for use from several threads."""

    def __init__(self, path: str, missing: str, storage: StorageSettings | None = None) -> None:
        self.root: Folder = Lake.from_path(path, storage).root
        self._missing = missing
        self._followed = LatestTable(self.root, self._open)
        self.log = self._followed.log

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Raises EnvironmentProblem for errors in the table's log."""
        with translate_errors(self.root.name):
            try:
                yield
            except DeltaError as error:
                if not is_damage(error):
                    raise
                raise EnvironmentProblem(
                    f"The log of the Delta table {self.root} is damaged: {first_line(error)}",
                    next_step="Restore its folder _delta_log from a copy.",
                ) from error

    def newest(self) -> DeltaTable:
        """The newest version. Raises EnvironmentProblem if there is no table."""
        return self._followed.newest()

    def open_version(self, version: int) -> DeltaTable:
        """The table as of `version`."""
        return open_table(self.root, version)

    def _open(self) -> DeltaTable:
        if not has_table(self.root):
            raise EnvironmentProblem(f"There is no Delta table in {self.root}.", next_step=self._missing)
        return open_table(self.root)


# Access to the data files of a Delta table.

DataPath = FileLocation | str
"""A file, or its path on this machine."""
SLICE_BYTES = 8 * 1024 * 1024


class FileRewritten(Exception):
    """A file does not exist any more: the table was compacted or vacuumed since its version was read."""

    def __init__(self, path: DataPath) -> None:
        super().__init__(str(path))
        self.path = path


@contextmanager
def open_parquet(path: DataPath) -> Iterator[pq.ParquetFile]:
    """The open file. Raises FileRewritten if it does not exist any more, EnvironmentProblem if it is unreadable."""
    with translate_damage(path), open_reader(path) as reader:
        yield reader


def open_reader(path: DataPath) -> pq.ParquetFile:
    """The open file, for use within `translate_damage`."""
    return pq.ParquetFile(_to_open(path))


def read_slices(
    path: DataPath, reader: pq.ParquetFile, most: int, columns: Sequence[str], groups: Sequence[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """These columns of some or all row groups. At most `most` rows at once, with at most SLICE_BYTES of text unless a
    single row has more. A value that many rows share is stored once in the file, but in memory once per row."""
    slices = ParquetSlices(reader, lambda: _to_open(path), SLICE_BYTES, most, groups=groups, columns=columns)
    return (slices.unpack(rows) for rows, _ in slices.read())


def _to_open(path: DataPath) -> Any:
    return path if isinstance(path, str | Path) else path.open()


@contextmanager
def translate_damage(path: DataPath) -> Iterator[None]:
    """Raises FileRewritten if the file does not exist any more, EnvironmentProblem if it is unreadable."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileRewritten(path) from error
    except (pa.ArrowInvalid, OSError) as damage:
        raise EnvironmentProblem(
            f"The file {path} of the table cannot be read: {str(damage).splitlines()[0][:200]}",
            next_step="Restore it from a copy. Rows of earlier files stay applied.",
        ) from damage


# The number of offsets per read, adjusted to the limits of a batch.


class WindowTooLarge(Exception):
    """A window has more records than a batch may have: read a shorter one."""


FILLED = 0.9
"""The target size of a batch, relative to its limits. Record sizes vary, and a window that is too large is read again."""
SPARE = 1.1


class WindowSize:
    """`reach`: the number of offsets to read at once, for batches of at most `records`, and `size` bytes. The real
    numbers are known only after reading."""

    def __init__(self, records: int, size: int) -> None:
        self._records, self._bytes = records, size
        self.reach = records

    def refuse_more(self, records: int, size: int) -> None:
        """Raise WindowTooLarge and reduce `reach` if the window is too large for a batch. One offset is always
        allowed."""
        if self.reach > 1 and (records > self._records or size > self._bytes):
            self._shrink(records, size)
            raise WindowTooLarge

    def grow(self, records: int, size: int) -> None:
        """Adjust `reach` to a window of this size. It grows if offsets have holes or records are small."""
        if records > self._records or size > self._bytes:
            self._shrink(records, size)
            return
        room = min(self._records / max(1, records), self._bytes / max(1, size))
        if room > SPARE / FILLED:
            self.reach = max(self.reach + 1, int(self.reach * min(2.0, room * FILLED)))

    def _shrink(self, records: int, size: int) -> None:
        """Reduce `reach` so that records of this size fit."""
        fit = min(self._records, self._bytes * records // max(1, size)) * FILLED
        self.reach = max(1, min(self.reach - 1, int(fit)))


class WholeTableSize(WindowSize):
    """`mode: batch`: all records are one batch, with at most `size` bytes if this process reads it."""

    def __init__(self, table: str, size: int) -> None:
        super().__init__(sys.maxsize, size)
        self._table = table

    def refuse_more(self, records: int, size: int) -> None:  # noqa: ARG002
        """Raise Fatal if the batch exceeds the limit. No batch was delivered then."""
        if size > self._bytes:
            raise Fatal(
                f"The new rows of {self._table} have more than the {self._bytes:,} bytes of keys and values that fit into "
                "one batch (`mode: batch`). None of them was applied.",
                next_step="Raise `limits.memory`. Or remove `mode`: then they are applied in several batches.",
            )

    def grow(self, records: int, size: int) -> None:
        """Does nothing: there is one window."""
