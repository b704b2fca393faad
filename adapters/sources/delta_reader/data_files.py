"""Access to the data files of a Delta table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from replicator.domain.errors import EnvironmentProblem

from ...arrow.parquet_slices import ParquetSlices
from ...delta.folders import FileLocation

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
    found = ParquetSlices(reader, lambda: _to_open(path), SLICE_BYTES, most, groups=groups, columns=columns)
    return (found.unpack(rows) for rows, _ in found.read())


def _to_open(path: DataPath) -> Any:
    return path if isinstance(path, str | Path) else path.open()


@contextmanager
def translate_damage(path: DataPath) -> Iterator[None]:
    """Raises FileRewritten if the file does not exist any more, EnvironmentProblem if it is unreadable."""
    try:
        yield
    except FileNotFoundError as gone:
        raise FileRewritten(path) from gone
    except (pa.ArrowInvalid, OSError) as damage:
        raise EnvironmentProblem(
            f"The file {path} of the table cannot be read: {str(damage).splitlines()[0][:200]}",
            next_step="Restore it from a copy. Rows of earlier files stay applied.",
        ) from damage
