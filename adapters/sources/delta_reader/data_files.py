"""The data files of an event log, opened."""

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
    """A file is gone: the table was compacted or cleaned up since its version was read."""

    def __init__(self, path: DataPath) -> None:
        super().__init__(str(path))
        self.path = path


@contextmanager
def open_parquet(path: DataPath) -> Iterator[pq.ParquetFile]:
    """The file. Raises Rewritten when it is gone, EnvironmentProblem when it cannot be read."""
    with translate_damage(path), open_reader(path) as reader:
        yield reader


def open_reader(path: DataPath) -> pq.ParquetFile:
    """The file, opened; for `translate_damage`."""
    return pq.ParquetFile(_to_open(path))


def read_slices(
    path: DataPath, reader: pq.ParquetFile, most: int, columns: Sequence[str], groups: Sequence[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """These columns of some row groups, or of all: at most `most` rows at once, and no more than SLICE_BYTES of text unless
    one row has more. A value that many rows have is in the file once, and in memory for each of them."""
    found = ParquetSlices(reader, lambda: _to_open(path), SLICE_BYTES, most, groups=groups, columns=columns)
    return (found.unpack(rows) for rows, _ in found.read())


def _to_open(path: DataPath) -> Any:
    return path if isinstance(path, str | Path) else path.open()


@contextmanager
def translate_damage(path: DataPath) -> Iterator[None]:
    """Raises Rewritten when the file is gone, EnvironmentProblem when it cannot be read."""
    try:
        yield
    except FileNotFoundError as gone:
        raise FileRewritten(path) from gone
    except (pa.ArrowInvalid, OSError) as damage:
        raise EnvironmentProblem(
            f"The file {path} of the table cannot be read: {str(damage).splitlines()[0][:200]}",
            next_step="Restore it from a copy. What was read before it stays applied.",
        ) from damage
