"""The data files of a snapshot: what is known of them without reading them, and their rows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyarrow import fs

from replicator.domain.projections import Groups

from .folders import Folder, LocalFolder
from .tables import schema_of

SPARKS_TIMES = ds.ParquetReadOptions(coerce_int96_timestamp_unit="us")
"""Spark may write times in a form that Arrow reads as nanoseconds, which end in 2262."""
NO_FILES = "false"
"""A condition that leaves out every file."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a snapshot: `path` as the log spells it, the values of its partition, and bounds of a column's values
    with the count of its nulls, None where they are not known."""

    path: str
    size: int
    rows: int | None
    partition: Mapping[str, Any]
    low: Any = None
    high: Any = None
    nulls: int | None = None

    @property
    def place(self) -> str:
        """Where it lies in the table's folder."""
        return unquote(self.path)

    @property
    def is_bounded(self) -> bool:
        """True when every value that the column has in it is known to lie between `low` and `high`, or to be null."""
        return (self.low is not None and self.high is not None) or (self.rows is not None and self.nulls == self.rows)


def paths_of(table: DeltaTable) -> frozenset[str]:
    """The files of a snapshot, as the log spells their paths."""
    return frozenset(pa.table(table.get_add_actions(flatten=True))["path"].to_pylist())


def data_files(table: DeltaTable, column: str | None = None, only: Collection[str] | None = None) -> list[DataFile]:
    """The files of a snapshot, or those of these paths, with the bounds of one column; a column of the partition has its
    value for both."""
    found = pa.table(table.get_add_actions(flatten=True))
    if only is not None:
        found = found.filter(pc.is_in(found["path"], pa.array([*only], pa.string())))
    marks = [found[name].to_pylist() if name in found.column_names else None for name in _bounds(column)]
    low, high, nulls = (values or [None] * found.num_rows for values in marks)
    known = (found[name].to_pylist() for name in ("path", "size_bytes", "num_records"))
    names = [name for name in found.column_names if name.startswith("partition.")]
    partitions = found.select(names).rename_columns([name.removeprefix("partition.") for name in names]).to_pylist()
    each = zip(*known, partitions or [{}] * found.num_rows, low, high, nulls, strict=True)
    return [DataFile(*one[:4], *_partitioned(one[2], one[3], column, one[4:])) for one in each]


def _bounds(column: str | None) -> list[str]:
    # A part of a nested column is called as a column with a point in its name would be.
    return [f"{what}.{column}" for what in ("min", "max", "null_count")] if column and "." not in column else [""] * 3


def _partitioned(rows: int | None, partition: Mapping[str, Any], column: str | None, bounds: Sequence[Any]) -> Sequence[Any]:
    if column is None or column not in partition:
        return bounds
    value = partition[column]
    return (None, None, rows) if value is None else (value, value, 0)


def may_hold(files: Iterable[DataFile], groups: Groups) -> list[DataFile]:
    """Those files that may have rows whose value of the column is one of `groups`."""
    wanted = sorted(group for group in groups if group is not None)
    return [file for file in files if _may_hold(file, wanted, with_null=None in groups)]


def _may_hold(file: DataFile, wanted: Sequence[Any], *, with_null: bool) -> bool:
    if not file.is_bounded:
        return True
    if with_null and file.nulls != 0:
        return True
    if file.low is None or not wanted:
        return False
    if type(file.low) is not type(wanted[0]):
        return True  # Values of another type may be equal in the eyes of the query.
    first = bisect_left(wanted, file.low)
    return first < len(wanted) and bool(wanted[first] <= file.high)


def rows_in(table: DeltaTable, folder: Folder, files: Sequence[DataFile] | None = None) -> ds.FileSystemDataset:
    """The rows of a snapshot, or of some of its files. DeltaProtocolError where the table has features that Arrow's
    datasets do not know."""
    if files is None or any("://" in file.path for file in files):
        whole = _dataset(table, folder, None)
        paths = None if files is None else {file.place for file in files}
        kept = [f for f in whole.get_fragments() if paths is None or f.path in paths]
        return whole if paths is None else ds.FileSystemDataset(kept, whole.schema, whole.format, whole.filesystem)
    # Making a fragment takes delta-rs long enough (70 us) to tell where a table has thousands of files.
    empty = _dataset(table, folder, NO_FILES)
    fragments = [
        empty.format.make_fragment(file.place, empty.filesystem, _expression(file.partition, empty.schema)) for file in files
    ]
    return ds.FileSystemDataset(fragments, empty.schema, empty.format, empty.filesystem)


def _dataset(table: DeltaTable, folder: Folder, only: str | None) -> ds.FileSystemDataset:
    # Arrow's own files need no Python for each read.
    local = fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem()) if isinstance(folder, LocalFolder) else None
    return table.to_pyarrow_dataset(
        filesystem=local, parquet_read_options=SPARKS_TIMES, schema=schema_of(table), file_pruning_predicate=only
    )


def _expression(partition: Mapping[str, Any], schema: pa.Schema) -> pc.Expression | None:
    terms = [
        pc.field(name).is_null() if value is None else pc.field(name) == pa.scalar(value, schema.field(name).type)
        for name, value in partition.items()
    ]
    return reduce(and_, terms) if terms else None
