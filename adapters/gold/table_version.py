"""Versions of a table: cached facts of their logs, their rows and data files, and the difference of two."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import compress, repeat
from operator import and_
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow import fs

from replicator.domain.errors import Retryable
from replicator.domain.projection import Groups

from ..delta.errors import translate_error
from ..delta.folders import Folder, LocalFolder
from ..delta.tables import CHANGE_DATA_FEED, ON, LatestTable, has_table, open_table, read_schema, source_name

SPARKS_TIMES = ds.ParquetReadOptions(coerce_int96_timestamp_unit="us")
"""Spark may write times in a form that Arrow reads as nanoseconds, whose range ends in 2262."""
NO_FILES = "false"
"""A condition that excludes every file."""
LISTED, PARTITION = ("path", "size_bytes", "num_records"), "partition."
"""The columns of every file, and the prefix of columns with partition values."""


class TableVersion:
    """The version that `table` has now. After `is_preloaded` the table may be at a later version. It is then used
    only for `changes` and for the way files are read."""

    def __init__(self, table: DeltaTable, folder: Folder, like: TableVersion | None = None) -> None:
        """`like`: an earlier version. If it reads files in the same way, its reader is used again."""
        self.table = table
        self.number = int(table.version())
        metadata = table.metadata()
        self.table_id = str(metadata.id)
        """Distinguishes the table from another one in the same folder."""
        self.configuration: Mapping[str, str] = metadata.configuration
        self.partition_columns = frozenset(metadata.partition_columns)
        protocol = table.protocol()
        self.features = frozenset(protocol.reader_features or ())
        """The features that readers must support (protocol version 3)."""
        self._folder = folder
        self._kind = (folder, self.table_id, protocol.min_reader_version, self.features, self.configuration)
        if like is not None and like._has_same_reader(self):
            self.without_files = like.without_files

    @cached_property
    def is_preloaded(self) -> bool:
        """Reads the facts that may be needed after `table` is at another version.

        False if this is not enough: files outside the folder are found only by the table at this version.
        """
        return self.schema is not None and not any("://" in path for path in self.paths)

    @cached_property
    def schema(self) -> pa.Schema:
        return read_schema(self.table)

    @cached_property
    def paths(self) -> frozenset[str]:
        """Its files, as the log spells their paths."""
        return frozenset(self._added_files["path"].to_pylist())

    def files(self, column: str | None = None) -> list[DataFile]:
        """Its files, with the bounds of one column. For a partition column, both bounds are its value."""
        return _to_data_files(self._listed_files, _to_bounds(self._added_files, column))

    def files_at(self, paths: Collection[str]) -> list[DataFile]:
        """Its files with these paths, without bounds."""
        files = self._listed_files.filter(pc.is_in(self._listed_files["path"], pa.array([*paths], pa.string())))
        return _to_data_files(files, _to_bounds(files, None))

    def find_candidate_files(self, column: str, groups: Groups) -> list[DataFile]:
        """The files that may have rows with one of `groups` in the column."""
        files = _drop_single_valued(self._added_files, column, groups)
        bounds = _to_bounds(files, column)
        matches = mask_candidates(bounds, groups)
        return _to_data_files(
            files.select(self._listed_files.column_names).filter(pa.array(matches, pa.bool_())), compress(bounds, matches)
        )

    def rows(self, files: Sequence[DataFile] | None = None) -> ds.FileSystemDataset:
        """Its rows, or those of some of its files.

        Raises DeltaProtocolError when the table has features that Arrow datasets do not support.
        """
        files = self.files() if files is None else files
        if any("://" in file.path for file in files):
            whole, paths = self._open_dataset(None), {file.relative_path for file in files}
            fragments = [f for f in whole.get_fragments() if f.path in paths]
            return ds.FileSystemDataset(fragments, whole.schema, whole.format, whole.filesystem)
        # delta-rs takes 70 us per fragment, which is slow for thousands of files.
        empty = self.without_files
        fragments = [
            empty.format.make_fragment(file.relative_path, empty.filesystem, _partition_expression(file, empty.schema))
            for file in files
        ]
        return ds.FileSystemDataset(fragments, empty.schema, empty.format, empty.filesystem)

    def changes(self, since: int, columns: Sequence[str]) -> pa.RecordBatchReader:
        """The change data feed after the version `since`, up to this version: these columns, and `_change_type`."""
        feed = self.table.load_cdf(since + 1, self.number, columns=[*columns, "_change_type"])
        return pa.RecordBatchReader.from_stream(feed)

    @cached_property
    def without_files(self) -> ds.FileSystemDataset:
        """`rows` of no file, which has the file system and the reader."""
        return self._open_dataset(NO_FILES)

    def _has_same_reader(self, other: TableVersion) -> bool:
        """True when `without_files` is cached and valid for another version, because computing it takes a
        millisecond.

        A reader for an object store belongs to its own version.
        """
        is_known = "without_files" in vars(self) and isinstance(self._folder, LocalFolder)
        return is_known and self._kind == other._kind and self.schema == other.schema

    @cached_property
    def _added_files(self) -> pa.Table:
        return pa.table(self.table.get_add_actions(flatten=True))

    @cached_property
    def _listed_files(self) -> pa.Table:
        """The columns of files without the statistics of single columns."""
        names = [name for name in self._added_files.column_names if name in LISTED or name.startswith(PARTITION)]
        return self._added_files.select(names)

    def _open_dataset(self, only: str | None) -> ds.FileSystemDataset:
        # Arrow's own file system needs no Python call per read.
        local = (
            fs.SubTreeFileSystem(str(self._folder), fs.LocalFileSystem()) if isinstance(self._folder, LocalFolder) else None
        )
        return self.table.to_pyarrow_dataset(
            filesystem=local, parquet_read_options=SPARKS_TIMES, schema=self.schema, file_pruning_predicate=only
        )


def _to_bounds(files: pa.Table, column: str | None) -> list[ColumnBounds]:
    rows = files["num_records"].to_pylist()
    if column is not None and PARTITION + column in files.column_names:
        values = files[PARTITION + column].to_pylist()
        return [ColumnBounds(n, v, v, n if v is None else 0) for n, v in zip(rows, values, strict=True)]
    # A field of a nested column and a column with a dot in its name have the same spelling here.
    names = [f"{kind}.{column}" for kind in ("min", "max", "null_count")] if column and "." not in column else [""] * 3
    marks = [files[name].to_pylist() if name in files.column_names else repeat(None, len(rows)) for name in names]
    return [*map(ColumnBounds, rows, *marks)]


def _drop_single_valued(files: pa.Table, column: str, groups: Groups) -> pa.Table:
    """Drops files whose only value is not one of the groups, if one comparison over all files shows it.

    Checking files one by one takes a millisecond per thousand.
    """
    marks = [f"{kind}.{column}" for kind in ("min", "max", "null_count")]
    if "." in column or not {*marks} <= {*files.column_names}:
        return files
    try:
        values = pa.array(group for group in groups if group is not None)
    except OverflowError:  # Numbers above 64 bits are compared one by one.
        return files
    if files[marks[0]].type != values.type:
        return files
    low, high, nulls = (files[mark] for mark in marks)
    may = pc.or_(pc.not_equal(low, high), pc.is_in(low, value_set=values))
    if None in groups:
        may = pc.or_(may, pc.not_equal(nulls, 0))
    return files.filter(pc.fill_null(may, True))


def _to_data_files(files: pa.Table, bounds: Iterable[ColumnBounds]) -> list[DataFile]:
    names = [name for name in files.column_names if name.startswith(PARTITION)]
    partitions = files.select(names).rename_columns([name.removeprefix(PARTITION) for name in names]).to_pylist()
    columns = (files[name].to_pylist() for name in ("path", "size_bytes"))
    return [DataFile(*one) for one in zip(*columns, partitions or [{}] * files.num_rows, bounds, strict=True)]


def _partition_expression(file: DataFile, schema: pa.Schema) -> pc.Expression | None:
    terms = [
        pc.field(name).is_null() if value is None else pc.field(name) == pa.scalar(value, schema.field(name).type)
        for name, value in file.partition.items()
    ]
    return reduce(and_, terms) if terms else None


# The difference of two versions: the files that only one has, or the rows of the change data feed.

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
    """See `has_few_rows`, for all these files together."""
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
        if not batches:
            return None
        feed = pa.Table.from_batches(batches)
        # Delta stores empty text in a partition column as NULL ("Partition Value Serialization"). delta-rs returns NULL in
        # rows, but not in rows of a feed.
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
    names = {name: source_name(name) for name in schema.names}
    selected = {stored: name for stored, name in names.items() if columns is None or name.lower() in columns}
    return selected or dict([*names.items()][:1])


def scan_columns(rows: ds.Dataset, names: Collection[str]) -> ds.Scanner:
    """These columns of the rows, which can be read repeatedly.

    Arrow gets no conditions: it cannot compare text in files whose text type differs from the table's.
    """
    return rows.scanner(columns=[*names])


def read_columns(rows: ds.FileSystemDataset, names: Collection[str]) -> pa.Table:
    """These columns of the rows, read by this thread, because other threads are busy.

    Raises OSError or ArrowException when a file cannot be read.
    """
    return rows.to_table(columns=[*names], use_threads=False)


def diff_versions(old: TableVersion, new: TableVersion, columns: Collection[str] | None) -> VersionDiff | None:
    """The files that differ, for `columns` (lower case; None: all).

    None when the columns themselves differ, or files of the older version are deleted. Raises
    DeltaProtocolError as `TableVersion.rows`.
    """
    if _column_types(old.schema, columns) != _column_types(new.schema, columns):
        return None
    removed_files, added_files = old.files_at(old.paths - new.paths), new.files_at(new.paths - old.paths)
    old_rows = old.rows(removed_files)
    # After a restore from a copy, the older version is a different one, although the feed may have its number.
    if _is_incomplete(old_rows):
        return None
    is_small = has_few_rows([*removed_files, *added_files])
    return VersionDiff(old, new, old_rows, new.rows(added_files), is_small, map_columns(new.schema, columns))


def _is_incomplete(rows: ds.FileSystemDataset) -> bool:
    return bool(rows.files) and any(info.type is fs.FileType.NotFound for info in rows.filesystem.get_file_info(rows.files))


def _column_types(schema: pa.Schema, columns: Collection[str] | None) -> list[tuple[str, pa.DataType]]:
    return [(name, schema.field(name).type) for name in map_columns(schema, columns)]


# A cache of the newest versions.

MAX_CACHED_VERSIONS = 2
"""The newest version, and the one before, for readers that have not read the newest yet."""


class SnapshotCache:
    """Versions of the table in a folder. Not safe for use from several threads.

    Opening a version reads its log, so the newest one is updated in place, and facts about older ones are
    cached.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._followed = LatestTable(folder)
        self._known: dict[int, TableVersion] = {}

    def get_newest(self) -> TableVersion:
        """The newest version."""
        for one in self._known.values():
            if not one.is_preloaded:
                self._followed.release()
        table = self._followed.newest()
        newest = self._known.get(int(table.version()))
        if newest is None or newest.table is not table:
            newest = TableVersion(table, self._folder, self._known[max(self._known)] if self._known else None)
        # The table may have been replaced by another one.
        same = {n: one for n, one in self._known.items() if one.table_id == newest.table_id and n <= newest.number}
        self._known = {**same, newest.number: newest}
        return newest

    def get_version(self, number: int) -> TableVersion:
        """An existing version."""
        if number not in self._known:
            self._known[number] = TableVersion(open_table(self._folder, number), self._folder)
        return self._known[number]

    def get_earlier(self, number: int) -> TableVersion | None:
        """A version before the newest; None when the table's log does not contain it any more."""
        version = self._known.get(number) or open_earlier(self._folder, number)
        if version is not None:
            self._known[number] = version
        return version

    def drop_older(self) -> None:
        """Drops all but the newest cached versions."""
        for number in sorted(self._known)[:-MAX_CACHED_VERSIONS]:
            del self._known[number]


# Data files and their statistics in the log, which show the files that may contain some rows.

FEW_BYTES, FEW_ROWS = 16 * 1024 * 1024, 250_000
"""Limits in bytes and rows for files whose rows are held in memory. A streaming read holds as much, because a
row group is larger."""


class ColumnBounds(NamedTuple):
    """Statistics of a column in a file: rows, minimum, maximum and nulls; None where they are not known."""

    rows: int | None
    low: Any = None
    high: Any = None
    nulls: int | None = None

    @property
    def is_exact(self) -> bool:
        """True when every value of the column is known to be null, or between `low` and `high`."""
        return (self.low is not None and self.high is not None) or (self.rows is not None and self.nulls == self.rows)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a version: `path` as the log spells it, its partition values, and the bounds of a column."""

    path: str
    size: int
    partition: Mapping[str, Any]
    bounds: ColumnBounds

    @property
    def relative_path(self) -> str:
        """Its path in the table's folder."""
        return unquote(self.path)


def has_few_rows(files: Sequence[DataFile]) -> bool:
    """True when the rows of all these files may be held in memory, where queries take half the time.

    Rows count besides bytes, because a small file can have many rows.
    """
    sizes, rows = [file.size for file in files], [file.bounds.rows for file in files]
    return sum(sizes) <= FEW_BYTES and None not in rows and sum(n for n in rows if n is not None) <= FEW_ROWS


def mask_candidates(bounds: Iterable[ColumnBounds], groups: Groups) -> list[bool]:
    """For each file: may it have rows with one of `groups` in the column?"""
    values, with_null = sorted(group for group in groups if group is not None), None in groups
    return [not one.is_exact or (with_null and one.nulls != 0) or _is_wanted(one, values) for one in bounds]


def has_only_groups(files: Iterable[DataFile], groups: Groups) -> bool:
    """True when all rows of these files are known to have one of `groups` in the column."""
    for file in files:
        bounds = file.bounds
        if bounds.rows is None or bounds.nulls is None or (bounds.nulls and None not in groups):
            return False
        has_one_group = bounds.low is not None and bounds.low == bounds.high and bounds.low in groups
        if bounds.nulls != bounds.rows and not has_one_group:
            return False
    return True


def _is_wanted(one: ColumnBounds, values: Sequence[Any]) -> bool:
    low = one.low
    if low is None or not values:
        return False
    if type(low) is not type(values[0]):
        return True  # The query may treat values of another type as equal.
    first = bisect_left(values, low)
    return first < len(values) and bool(values[first] <= one.high)
