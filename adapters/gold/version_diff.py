"""What of two versions of a table may differ: the files that only one has, or what the change data feed has of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake.exceptions import DeltaError
from pyarrow import fs

from replicator.domain.errors import Retryable

from ..delta.column_names import source_name
from ..delta.errors import translate_error
from ..delta.folders import Folder
from ..delta.tables import CHANGE_DATA_FEED, ON, has_table, open_table
from .data_files import has_few_rows
from .table_version import TableVersion

LONGEST_FEED = 2_000_000
"""Rows of a change data feed that are held in memory; of more, files are compared."""


@dataclass(frozen=True, slots=True)
class VersionDiff:
    """The rows in files of the older version alone, and those in files of the newer one: rows that were only moved to
    another file are in both. `names`: the columns that are compared, as they are stored and as the source calls them."""

    old: TableVersion
    new: TableVersion
    removed: ds.FileSystemDataset
    added: ds.FileSystemDataset
    has_few_rows: bool
    """See `data_files.has_few_rows`, of all these files together."""
    names: Mapping[str, str]

    @property
    def is_empty(self) -> bool:
        """True when both versions have the same files."""
        return self.old.paths == self.new.paths

    def read_feed(self) -> pa.Table | None:
        """What the change data feed has between the versions, with `_change_type`; None where it was not on, is not there
        any more, or is too long to be held."""
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
            return None  # It was off for a while, or its files are cleaned away.
        return self._to_stored_values(pa.Table.from_batches(batches)) if batches else None

    def _to_stored_values(self, feed: pa.Table) -> pa.Table:
        """A partition has no empty text, which means NULL in its place (Delta's protocol, "Partition Value Serialization");
        delta-rs gives rows so, but not those of a feed."""
        for at, name in enumerate(feed.column_names):
            if name in self.new.partition_columns and pa.types.is_string(self.new.schema.field(name).type):
                values = feed.column(at).cast(pa.string())
                feed = feed.set_column(at, name, pc.if_else(pc.equal(values, ""), None, values))
        return feed


def open_earlier(folder: Folder, version: int) -> TableVersion | None:
    """A version before the newest; None where the table's log does not reach back to it any more."""
    try:
        return TableVersion(open_table(folder, version), folder)
    except DeltaError as error:
        if isinstance(translate_error(error, str(folder)), Retryable) or not has_table(folder):
            raise
        return None


def map_columns(schema: pa.Schema, columns: Collection[str] | None) -> dict[str, str]:
    """Of `columns` (lower case; None: all) those that there are, as they are stored and as the source calls them; one at
    least."""
    named = {name: source_name(name) for name in schema.names}
    found = {stored: name for stored, name in named.items() if columns is None or name.lower() in columns}
    return found or dict([*named.items()][:1])


def scan_columns(rows: ds.Dataset, names: Collection[str]) -> ds.Scanner:
    """These columns of the rows, to be read any number of times. Conditions are not for Arrow: it does not compare text
    in files whose writer took another form of text than the table has."""
    return rows.scanner(columns=[*names])


def diff_versions(old: TableVersion, new: TableVersion, columns: Collection[str] | None) -> VersionDiff | None:
    """The files that differ, as to `columns` (lower case; None: all). None when the columns themselves differ, or files of
    the older version were cleaned away. DeltaProtocolError as `TableVersion.rows`."""
    if _column_types(old.schema, columns) != _column_types(new.schema, columns):
        return None
    gone, come = old.files_at(old.paths - new.paths), new.files_at(new.paths - old.paths)
    removed = old.rows(gone)
    # Where the table was put back from a copy the older version is another's, though the feed may have one of its number.
    if _is_incomplete(removed):
        return None
    return VersionDiff(old, new, removed, new.rows(come), has_few_rows([*gone, *come]), map_columns(new.schema, columns))


def _is_incomplete(rows: ds.FileSystemDataset) -> bool:
    return bool(rows.files) and any(info.type is fs.FileType.NotFound for info in rows.filesystem.get_file_info(rows.files))


def _column_types(schema: pa.Schema, columns: Collection[str] | None) -> list[tuple[str, pa.DataType]]:
    return [(name, schema.field(name).type) for name in map_columns(schema, columns)]
