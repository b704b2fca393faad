"""The data files of an event log, opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from replicator.domain.errors import EnvironmentProblem


class Rewritten(Exception):
    """A file is gone: the table was compacted or cleaned up since its version was read."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


@contextmanager
def parquet(path: str) -> Iterator[pq.ParquetFile]:
    """The file. Raises Rewritten when it is gone, EnvironmentProblem when it cannot be read."""
    with naming_damage(path), pq.ParquetFile(path) as reader:
        yield reader


@contextmanager
def naming_damage(path: str) -> Iterator[None]:
    """Raises Rewritten when the file is gone, EnvironmentProblem when it cannot be read."""
    try:
        yield
    except FileNotFoundError as gone:
        raise Rewritten(path) from gone
    except (pa.ArrowInvalid, OSError) as damage:
        raise EnvironmentProblem(
            f"The file {path} of the table cannot be read: {str(damage).splitlines()[0][:200]}",
            next_step="Restore it from a copy. What was read before it stays applied.",
        ) from damage
