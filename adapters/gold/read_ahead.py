"""Reads rows that a refresh will most likely need, while it still finds its groups."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import Executor, Future, wait

import pyarrow as pa
import pyarrow.dataset as ds

from .data_files import DataFile
from .table_version import TableVersion


class ReadAhead:
    """Reads columns of added files in the single thread of `beside`, where no other read waits. Not safe for
    use from several threads."""

    def __init__(self, beside: Executor) -> None:
        self._beside = beside
        self._begun: dict[TableVersion, tuple[frozenset[str], Future[pa.Table]]] = {}

    def start(self, version: TableVersion, rows: ds.FileSystemDataset, names: Collection[str]) -> Future[pa.Table]:
        """Starts to read these columns of a version's rows, see `read_columns`."""
        coming = self._beside.submit(read_columns, rows, names)
        self._begun[version] = (frozenset(rows.files), coming)
        return coming

    def take_rows(
        self, version: TableVersion, files: Sequence[DataFile], names: Collection[str]
    ) -> tuple[pa.Table, bool] | None:
        """These columns of the rows in these files, and True if rows of other files are among them. None if
        they were not read ahead."""
        places, coming = self._begun.get(version, (frozenset(), None))
        if coming is None or not places.issuperset(file.relative_path for file in files):
            return None
        found = coming.result()
        return (found, len(places) > len(files)) if found.column_names == [*names] else None

    def release(self) -> None:
        """Drops the rows, after all reads have ended."""
        wait(coming for _, coming in self._begun.values())
        self._begun.clear()


def read_columns(rows: ds.FileSystemDataset, names: Collection[str]) -> pa.Table:
    """These columns of the rows, read by this thread, because other threads are busy.

    Raises OSError or ArrowException when a file cannot be read.
    """
    return rows.to_table(columns=[*names], use_threads=False)
