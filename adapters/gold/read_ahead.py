"""Rows that a refresh will most likely be over, read while it is found out what it has to be over."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import Executor, Future, wait

import pyarrow as pa
import pyarrow.dataset as ds

from .data_files import DataFile
from .table_version import TableVersion


class ReadAhead:
    """Has columns of files that have come with a version read by the one thread of `beside`, where nothing waits for another
    reading. Not safe for use from several threads."""

    def __init__(self, beside: Executor) -> None:
        self._beside = beside
        self._begun: dict[TableVersion, tuple[frozenset[str], Future[pa.Table]]] = {}

    def start(self, version: TableVersion, rows: ds.FileSystemDataset, names: Collection[str]) -> Future[pa.Table]:
        """Have these columns of rows of the version read, as `read_columns` does."""
        coming = self._beside.submit(read_columns, rows, names)
        self._begun[version] = (frozenset(rows.files), coming)
        return coming

    def take_rows(
        self, version: TableVersion, files: Sequence[DataFile], names: Collection[str]
    ) -> tuple[pa.Table, bool] | None:
        """These columns of the rows in these files, and whether rows of others are among them; None where they are not read
        ahead."""
        places, coming = self._begun.get(version, (frozenset(), None))
        if coming is None or not places.issuperset(file.relative_path for file in files):
            return None
        found = coming.result()
        return (found, len(places) > len(files)) if found.column_names == [*names] else None

    def release(self) -> None:
        """Forget what was read, once nothing is being read any more: what was begun last is read last."""
        wait(coming for _, coming in self._begun.values())
        self._begun.clear()


def read_columns(rows: ds.FileSystemDataset, names: Collection[str]) -> pa.Table:
    """These columns of the rows, read by this thread: there are others at work. OSError, or ArrowException, where a file
    cannot be read."""
    return rows.to_table(columns=[*names], use_threads=False)
