"""Versions of a table as datasets, and what of two of them may differ: the files that only one has."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow import fs

from replicator.domain.errors import Retryable

from .column_names import source_name
from .errors import translated
from .folders import Folder, LocalFolder
from .mirrors import CHANGE_DATA_FEED, ON
from .tables import exists, opened, schema_of

SPARKS_TIMES = ds.ParquetReadOptions(coerce_int96_timestamp_unit="us")
"""Spark may write times in a form that Arrow reads as nanoseconds, which end in 2262."""


LONGEST_FEED = 2_000_000
"""Rows of a change data feed that are held in memory; of more, files are compared."""


@dataclass(frozen=True, slots=True)
class Apart:
    """The rows in files of the older version alone, and those in files of the newer one: rows that were only moved to
    another file are in both. `names`: the columns that are compared, as they are stored and as the
    source calls them."""

    removed: ds.Dataset
    added: ds.Dataset
    names: Mapping[str, str]

    @property
    def is_empty(self) -> bool:
        """True when both versions have the same files."""
        return not (_files(self.removed) or _files(self.added))


def version_of(folder: Folder, version: int, only: str | None = None) -> ds.Dataset:
    """The rows of a version; of files alone that may have rows for which the condition `only` holds. DeltaProtocolError
    where the table has features that Arrow's datasets do not know."""
    table = opened(folder, version)
    # Arrow's own files need no Python for each read.
    local = fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem()) if isinstance(folder, LocalFolder) else None
    return table.to_pyarrow_dataset(
        filesystem=local, parquet_read_options=SPARKS_TIMES, schema=schema_of(table), file_pruning_predicate=only
    )


def earlier(folder: Folder, version: int) -> DeltaTable | None:
    """A version before the newest; None where the table's log does not reach back to it any more."""
    try:
        return opened(folder, version)
    except DeltaError as error:
        if isinstance(translated(error, str(folder)), Retryable) or not exists(folder):
            raise
        return None


def columns_of(rows: ds.Dataset, columns: Collection[str] | None) -> dict[str, str]:
    """Of `columns` (lower case; None: all) those that there are, as they are stored and as the source calls them; one at
    least."""
    named = {name: source_name(name) for name in rows.schema.names}
    found = {stored: name for stored, name in named.items() if columns is None or name.lower() in columns}
    return found or dict([*named.items()][:1])


def stream(rows: ds.Dataset, names: Collection[str]) -> ds.Scanner:
    """These columns of the rows, to be read any number of times. Conditions are not for Arrow: it does not compare text
    in files whose writer took another form of text than the table has."""
    return rows.scanner(columns=[*names])


def apart(folder: Folder, since: int, until: int, columns: Collection[str] | None) -> Apart | None:
    """The files that differ, as to `columns` (lower case; None: all). None when the columns themselves differ, or the older
    version or files of it were cleaned away."""
    if earlier(folder, since) is None:
        return None
    old, new = version_of(folder, since), version_of(folder, until)
    wanted = [_kinds(one, columns) for one in (old, new)]
    if wanted[0] != wanted[1]:
        return None
    before, after = _files(old), _files(new)
    removed = [file for path, file in before.items() if path not in after]
    added = [file for path, file in after.items() if path not in before]
    if removed and any(
        info.type is fs.FileType.NotFound for info in old.filesystem.get_file_info([f.path for f in removed])
    ):
        return None
    return Apart(_only(old, removed), _only(new, added), columns_of(new, columns))


def fed(folder: Folder, since: int, until: int, names: Collection[str]) -> pa.Table | None:
    """What the change data feed has between two versions, with `_change_type`; None where it was not on, is not there any
    more, or is too long to be held."""
    if opened(folder, since).metadata().configuration.get(CHANGE_DATA_FEED) != ON:
        return None
    batches, rows = [], 0
    try:
        feed = opened(folder, until).load_cdf(since + 1, until, columns=[*names, "_change_type"])
        for batch in pa.RecordBatchReader.from_stream(feed):
            batches.append(batch)
            rows += batch.num_rows
            if rows > LONGEST_FEED:
                return None
    except (DeltaError, OSError, pa.ArrowException):
        return None  # It was off for a while, or its files are cleaned away.
    return pa.Table.from_batches(batches) if batches else None


def _only(of: ds.Dataset, files: list[ds.Fragment]) -> ds.Dataset:
    return ds.FileSystemDataset(files, of.schema, of.format, of.filesystem)


def _kinds(rows: ds.Dataset, columns: Collection[str] | None) -> list[tuple[str, pa.DataType]]:
    return [(name, rows.schema.field(name).type) for name in columns_of(rows, columns)]


def _files(of: ds.Dataset) -> dict[str, ds.Fragment]:
    return {fragment.path: fragment for fragment in of.get_fragments()}
