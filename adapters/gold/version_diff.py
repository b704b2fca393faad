"""The difference of two versions of a table: the files that only one has, or the rows of the change data feed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake.exceptions import DeltaError
from pyarrow import fs

from replicator.domain.errors import Retryable

from ..delta.errors import translate_error
from ..delta.folders import Folder
from ..delta.tables import CHANGE_DATA_FEED, ON, has_table, open_table, source_name
from .data_files import has_few_rows
from .table_version import TableVersion

LONGEST_FEED = 2_000_000
"""The maximum of feed rows to hold in memory. For more, files are compared."""


@dataclass(frozen=True, slots=True)
class VersionDiff:
    """The rows in files of only the older version, and in files of only the newer one.

    A row that was moved to another file is in both. `names`: the compared columns, by stored name and source
    name.
    """

    old: TableVersion
    new: TableVersion
    removed: ds.FileSystemDataset
    added: ds.FileSystemDataset
    has_few_rows: bool
    """See `data_files.has_few_rows`, for all these files together."""
    names: Mapping[str, str]

    @property
    def is_empty(self) -> bool:
        """True when both versions have the same files."""
        return self.old.paths == self.new.paths

    def read_feed(self) -> pa.Table | None:
        """The change data feed between the versions, with `_change_type`.

        None when it was off, was cleaned up, or is too long for memory.
        """
        if self.old.configuration.get(CHANGE_DATA_FEED) != ON:
            return None
        batches, rows = [], 0
        try:
            for batch in self.new.changes(self.old.number, [*self.names]):
                batches.append(batch)
                rows += batch.num_rows
                if rows > LONGEST_FEED:
                    return None
        except (DeltaError, OSError, pa.ArrowException):
            return None  # It was off for some time, or its files are deleted.
        return self._to_stored_values(pa.Table.from_batches(batches)) if batches else None

    def _to_stored_values(self, feed: pa.Table) -> pa.Table:
        """Replaces empty text in partition columns by NULL, as Delta stores it ("Partition Value
        Serialization").

        delta-rs does this for rows, but not for rows of a feed.
        """
        for at, name in enumerate(feed.column_names):
            if name in self.new.partition_columns and pa.types.is_string(self.new.schema.field(name).type):
                values = feed.column(at).cast(pa.string())
                feed = feed.set_column(at, name, pc.if_else(pc.equal(values, ""), None, values))
        return feed


def open_earlier(folder: Folder, version: int) -> TableVersion | None:
    """A version before the newest; None when the table's log does not contain it any more."""
    try:
        return TableVersion(open_table(folder, version), folder)
    except DeltaError as error:
        if isinstance(translate_error(error, str(folder)), Retryable) or not has_table(folder):
            raise
        return None


def map_columns(schema: pa.Schema, columns: Collection[str] | None) -> dict[str, str]:
    """The existing columns among `columns` (lower case, None for all), by stored name and source name. At least one."""
    named = {name: source_name(name) for name in schema.names}
    found = {stored: name for stored, name in named.items() if columns is None or name.lower() in columns}
    return found or dict([*named.items()][:1])


def scan_columns(rows: ds.Dataset, names: Collection[str]) -> ds.Scanner:
    """These columns of the rows, which can be read repeatedly.

    Arrow gets no conditions: it cannot compare text in files whose text type differs from the table's.
    """
    return rows.scanner(columns=[*names])


def diff_versions(old: TableVersion, new: TableVersion, columns: Collection[str] | None) -> VersionDiff | None:
    """The files that differ, for `columns` (lower case; None: all).

    None when the columns themselves differ, or files of the older version are deleted. Raises
    DeltaProtocolError as `TableVersion.rows`.
    """
    if _column_types(old.schema, columns) != _column_types(new.schema, columns):
        return None
    gone, come = old.files_at(old.paths - new.paths), new.files_at(new.paths - old.paths)
    removed = old.rows(gone)
    # After a restore from a copy, the older version is a different one, although the feed may have its number.
    if _is_incomplete(removed):
        return None
    return VersionDiff(old, new, removed, new.rows(come), has_few_rows([*gone, *come]), map_columns(new.schema, columns))


def _is_incomplete(rows: ds.FileSystemDataset) -> bool:
    return bool(rows.files) and any(info.type is fs.FileType.NotFound for info in rows.filesystem.get_file_info(rows.files))


def _column_types(schema: pa.Schema, columns: Collection[str] | None) -> list[tuple[str, pa.DataType]]:
    return [(name, schema.field(name).type) for name in map_columns(schema, columns)]
