"""One version of a table: cached facts of its log, and its rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property, reduce
from itertools import compress, repeat
from operator import and_

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyarrow import fs

from replicator.domain.projection import Groups

from ..delta.folders import Folder, LocalFolder
from ..delta.tables import read_schema
from .data_files import ColumnBounds, DataFile, mask_candidates

SPARKS_TIMES = ds.ParquetReadOptions(coerce_int96_timestamp_unit="us")
"""Spark may write times in a form that Arrow reads as nanoseconds, whose range ends in 2262."""
NO_FILES = "false"
"""A condition that excludes every file."""
LISTED, PARTITION = ("path", "size_bytes", "num_records"), "partition."
"""The columns of every file, and the prefix of columns with partition values."""


class TableVersion:
    """The version that `table` has now. After `preload` the table may be at a later version. It is then used
    only for `changes` and for the way files are read."""

    def __init__(self, table: DeltaTable, folder: Folder, like: TableVersion | None = None) -> None:
        """`like`: an earlier version. If it reads files in the same way, its reader is used again."""
        self.table = table
        self.number = int(table.version())
        said = table.metadata()
        self.table_id = str(said.id)
        """Distinguishes the table from another one in the same folder."""
        self.configuration: Mapping[str, str] = said.configuration
        self.partition_columns = frozenset(said.partition_columns)
        protocol = table.protocol()
        self.features = frozenset(protocol.reader_features or ())
        """The features that readers must support (protocol version 3)."""
        self._folder = folder
        self._kind = (folder, self.table_id, protocol.min_reader_version, self.features, self.configuration)
        if like is not None and like._has_same_reader(self):
            self.without_files = like.without_files

    def preload(self) -> bool:
        """Reads the facts that may be needed after `table` is at another version.

        False if this is not enough: files outside the folder are found only by the table at this version.
        """
        return self._is_preloaded

    @cached_property
    def _is_preloaded(self) -> bool:
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
        found = self._listed_files.filter(pc.is_in(self._listed_files["path"], pa.array([*paths], pa.string())))
        return _to_data_files(found, _to_bounds(found, None))

    def find_candidate_files(self, column: str, groups: Groups) -> list[DataFile]:
        """The files that may have rows with one of `groups` in the column."""
        found = _drop_single_valued(self._added_files, column, groups)
        bounds = _to_bounds(found, column)
        held = mask_candidates(bounds, groups)
        return _to_data_files(
            found.select(self._listed_files.column_names).filter(pa.array(held, pa.bool_())), compress(bounds, held)
        )

    def rows(self, files: Sequence[DataFile] | None = None) -> ds.FileSystemDataset:
        """Its rows, or those of some of its files.

        Raises DeltaProtocolError when the table has features that Arrow datasets do not support.
        """
        files = self.files() if files is None else files
        if any("://" in file.path for file in files):
            whole, places = self._open_dataset(None), {file.relative_path for file in files}
            kept = [f for f in whole.get_fragments() if f.path in places]
            return ds.FileSystemDataset(kept, whole.schema, whole.format, whole.filesystem)
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


def _to_bounds(found: pa.Table, column: str | None) -> list[ColumnBounds]:
    rows = found["num_records"].to_pylist()
    if column is not None and PARTITION + column in found.column_names:
        values = found[PARTITION + column].to_pylist()
        return [ColumnBounds(n, v, v, n if v is None else 0) for n, v in zip(rows, values, strict=True)]
    # A field of a nested column and a column with a dot in its name have the same spelling here.
    names = [f"{what}.{column}" for what in ("min", "max", "null_count")] if column and "." not in column else [""] * 3
    marks = [found[name].to_pylist() if name in found.column_names else repeat(None, len(rows)) for name in names]
    return [*map(ColumnBounds, rows, *marks)]


def _drop_single_valued(found: pa.Table, column: str, groups: Groups) -> pa.Table:
    """Drops files whose only value is not one of the groups, if one comparison over all files shows it.

    Checking files one by one takes a millisecond per thousand.
    """
    marks = [f"{what}.{column}" for what in ("min", "max", "null_count")]
    if "." in column or not {*marks} <= {*found.column_names}:
        return found
    try:
        wanted = pa.array(group for group in groups if group is not None)
    except OverflowError:  # Numbers above 64 bits are compared one by one.
        return found
    if found[marks[0]].type != wanted.type:
        return found
    low, high, nulls = (found[mark] for mark in marks)
    may = pc.or_(pc.not_equal(low, high), pc.is_in(low, value_set=wanted))
    if None in groups:
        may = pc.or_(may, pc.not_equal(nulls, 0))
    return found.filter(pc.fill_null(may, True))


def _to_data_files(found: pa.Table, bounds: Iterable[ColumnBounds]) -> list[DataFile]:
    names = [name for name in found.column_names if name.startswith(PARTITION)]
    partitions = found.select(names).rename_columns([name.removeprefix(PARTITION) for name in names]).to_pylist()
    known = (found[name].to_pylist() for name in ("path", "size_bytes"))
    return [DataFile(*one) for one in zip(*known, partitions or [{}] * found.num_rows, bounds, strict=True)]


def _partition_expression(file: DataFile, schema: pa.Schema) -> pc.Expression | None:
    terms = [
        pc.field(name).is_null() if value is None else pc.field(name) == pa.scalar(value, schema.field(name).type)
        for name, value in file.partition.items()
    ]
    return reduce(and_, terms) if terms else None
