"""Rows of Parquet files in slices that fit in memory, however well the file is compressed.

A value of many rows is stored once, in a dictionary, and similar values need almost no space. So the size of rows is
estimated before they are unpacked. Columns whose dictionaries contain long values are read as dictionaries, and their
rows are unpacked a few at a time. Only single pages of a column are unpacked as a whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from math import inf
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types as t

OpenFile: TypeAlias = Callable[[], Path | str | BinaryIO]
"""Opens the file again."""
MAX_EXPANSION = 8
"""Columns that are not read as dictionaries may unpack to this multiple of the budget."""
MIN_ROWS = 64
"""Rows per read if the length of values is unknown."""
PROBE_BYTES = 1 << 16
"""Bytes per read when the first row of a group is searched."""
WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}
DICTIONARY = {"RLE_DICTIONARY", "PLAIN_DICTIONARY"}
AS_DICTIONARY = {"PLAIN", "RLE", "BIT_PACKED", *DICTIONARY}
"""Page encodings with which Arrow can read a column as a dictionary."""
LISTS = (t.is_list, t.is_large_list, t.is_fixed_size_list, t.is_list_view, t.is_large_list_view)


class ParquetSlices:
    """Rows of a file, or of some of its row groups and columns: at most `most` at once, with about `budget` bytes of
    text. A row with more text is returned alone."""

    def __init__(
        self,
        reader: pq.ParquetFile,
        open_file: OpenFile,
        budget: int,
        most: int,
        *,
        groups: Sequence[int] | None = None,
        columns: Sequence[str] | None = None,
    ) -> None:
        self._open, self._reader, self._names, self._budget = open_file, reader, columns, budget
        metadata = self._metadata = reader.metadata
        self._groups = range(metadata.num_row_groups) if groups is None else groups
        leaves = list(range(metadata.num_columns))
        if columns is not None:  # These columns, or their fields.
            roots = tuple(f"{name}." for name in columns)
            leaves = [n for n in leaves if f"{reader.schema.column(n).path}.".startswith(roots)]
        self._columns = {n: [metadata.row_group(group).column(n) for group in self._groups] for n in leaves}
        self._coded: list[int] = []
        self._rows = self._plan_reads(most) if self._groups else most

    def read(self, longest: int | None = None) -> Iterator[tuple[pa.RecordBatch, int]]:
        """The rows, still packed (see `unpack`), with the bytes of their text, or 0 if these are few. A row of more than
        `longest` bytes is returned alone."""
        reader = self._open_with_dictionaries(self._coded) if self._coded else self._reader
        room = self._budget if longest is None else min(self._budget, longest)
        groups = list(self._groups)
        for batch in reader.iter_batches(self._rows, row_groups=groups, columns=self._names) if groups else ():
            is_packed = any(_has_dictionary(field.type) for field in batch.schema)
            if not is_packed and batch.nbytes <= room:
                yield batch, 0
                continue
            ends = pc.cumulative_sum(_sum_bytes(batch.num_rows, map(_text_bytes, batch.columns))).to_pylist()
            if not ends or ends[-1] <= room:
                yield batch, 0
                continue
            begin = before = 0
            while begin < len(ends):
                end = max(begin + 1, bisect_right(ends, before + room))
                # A slice of packed nested columns would also unpack the rows around it.
                part = batch.take(pa.array(range(begin, end))) if is_packed else batch.slice(begin, end - begin)
                yield part, ends[end - 1] - before
                begin, before = end, ends[end - 1]

    def unpack(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows in the types of the file's own schema."""
        schema = self._reader.schema_arrow
        if self._names is not None:
            schema = pa.schema([schema.field(name) for name in rows.schema.names], schema.metadata)
        if rows.schema.equals(schema):
            return rows
        fields = [f.with_type(pa.string()) if t.is_string_view(f.type) else f for f in schema]
        columns = [column.cast(field.type) for column, field in zip(rows.columns, fields, strict=True)]
        return pa.record_batch(columns, schema=pa.schema(fields, schema.metadata))

    def _plan_reads(self, most: int) -> int:
        """The number of rows per read. Also decides which columns are read as dictionaries."""
        reader, budget = self._reader, self._budget
        average = min([most, *(max(1, budget // max(1, self._row_bytes(at))) for at in range(len(self._groups)))])
        texts = [n for n, parts in self._columns.items() if parts[0].physical_type == "BYTE_ARRAY"]
        codings = {n: {one for part in self._columns[n] for one in part.encodings} for n in texts}
        coded = [n for n in texts if codings[n] & DICTIONARY and codings[n] <= AS_DICTIONARY]
        # Values with other encodings share prefixes, or cannot be read as dictionaries.
        unknown = [n for n in texts if n not in coded and codings[n] & {"DELTA_BYTE_ARRAY", *DICTIONARY}]
        self._unpacked = MAX_EXPANSION * budget
        self._limit = self._unpacked // average // max(1, len(coded))
        large = [n for n in coded if self._column_size(n) > self._limit]
        # Arrow does not read nested columns as dictionaries if a batch has two of them.
        nested = [n for n in large if reader.schema.column(n).path != reader.schema.column(n).name]
        # These have values that are too long to be unpacked for every row of a read.
        longest = self._longest_values([n for n in large if n not in nested])
        self._coded = [n for n, length in longest.items() if length > self._limit]
        # Columns that are not read as dictionaries stay within the limit, too.
        sizes, row_sizes = list(map(self._column_size, unknown)), []
        for n in nested:
            length = self._longest_values([n])[n]
            if length == inf:
                sizes.append(self._column_size(n))
            elif length > self._limit:
                values = max(-(-part.num_values // self._group_rows(at)) for at, part in enumerate(self._columns[n]))
                row_sizes.append(int(length) * values)
        rows = average
        if sizes:
            rows = min(rows, max(MIN_ROWS, self._unpacked // max(1, sum(sizes))))
        return min(rows, max(1, self._unpacked // sum(row_sizes))) if row_sizes else rows

    def _group_rows(self, at: int) -> int:
        return max(1, int(self._metadata.row_group(self._groups[at]).num_rows))

    def _open_with_dictionaries(self, columns: Sequence[int], **options: Any) -> pq.ParquetFile:
        return pq.ParquetFile(self._open(), metadata=self._metadata, read_dictionary=self._column_paths(columns), **options)

    def _column_paths(self, columns: Sequence[int]) -> list[str]:
        return [self._columns[n][0].path_in_schema for n in columns]

    def _row_bytes(self, at: int) -> int:
        """Average bytes of a row in a group, without values that are stored once in dictionaries."""
        size = 0
        for n, parts in self._columns.items():
            width = WIDTHS.get(parts[at].physical_type, self._reader.schema.column(n).length)
            is_text = parts[at].physical_type == "BYTE_ARRAY"
            size += parts[at].total_uncompressed_size if is_text else parts[at].num_values * width
        return int(size // self._group_rows(at))

    def _column_size(self, column: int) -> int:
        """Bytes of a column in its largest group: an upper limit for its dictionary and its plain values."""
        return max(int(part.total_uncompressed_size) for part in self._columns[column])

    def _longest_values(self, columns: Sequence[int]) -> dict[int, float]:
        """Bytes of the longest value in the dictionaries of each column; infinite if unknown."""
        longest = dict.fromkeys(columns, 0.0)
        if not columns:
            return longest
        probe = self._open_with_dictionaries(columns, buffer_size=PROBE_BYTES)
        for group in self._groups:
            try:
                row = next(probe.iter_batches(1, row_groups=[group], columns=self._column_paths(columns)), None)
            except pa.ArrowNotImplementedError:
                return dict.fromkeys(columns, inf)
            for n, column in zip(columns, row.columns, strict=True) if row else ():
                # An empty dictionary: the row has no value, so none was read.
                dictionaries = list(_read_dictionaries(column))
                lengths = [pc.max(pc.binary_length(values)).as_py() or 0 if len(values) else inf for values in dictionaries]
                longest[n] = max(longest[n], max(lengths, default=inf))
        return longest


def _read_dictionaries(column: pa.Array) -> Iterator[pa.Array]:
    kind = column.type
    if t.is_dictionary(kind):
        yield column.dictionary
    elif t.is_struct(kind):
        for n in range(kind.num_fields):
            yield from _read_dictionaries(column.field(n))
    elif t.is_map(kind):
        yield from _read_dictionaries(column.keys)
        yield from _read_dictionaries(column.items)
    elif _is_list(kind):
        yield from _read_dictionaries(column.values)


def _has_dictionary(kind: pa.DataType) -> bool:
    return t.is_dictionary(kind) or any(_has_dictionary(kind.field(n).type) for n in range(kind.num_fields))


def _text_bytes(column: pa.Array) -> pa.Array:
    """Bytes of text and binary values in each row of a column, as int64."""
    column = column.storage if isinstance(column, pa.ExtensionArray) else column
    kind = column.type
    if t.is_dictionary(kind):
        return pc.fill_null(_text_bytes(column.dictionary).take(column.indices), 0)
    if t.is_string_view(kind) or t.is_binary_view(kind):
        return _text_bytes(column.cast(pa.large_binary() if t.is_binary_view(kind) else pa.large_string()))
    if t.is_string(kind) or t.is_binary(kind) or t.is_large_string(kind) or t.is_large_binary(kind):
        return pc.fill_null(pc.binary_length(column), 0).cast(pa.int64())
    if t.is_struct(kind):
        return _sum_bytes(len(column), (_text_bytes(column.field(n)) for n in range(kind.num_fields)))
    if t.is_map(kind):
        inner = pc.add(_text_bytes(column.keys), _text_bytes(column.items))
    elif _is_list(kind):
        inner = _text_bytes(column.values)
    else:
        return pa.repeat(0, len(column))
    sums = pa.concat_arrays([pa.repeat(0, 1), pc.cumulative_sum(inner)])
    begins, ends = _list_bounds(column)
    return pc.subtract(sums.take(ends), sums.take(begins))


def _list_bounds(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The start and end of each list or map in the values of all."""
    kind = column.type
    if t.is_list_view(kind) or t.is_large_list_view(kind):
        return column.offsets, pc.add(column.offsets, column.sizes)
    if not t.is_fixed_size_list(kind):
        return column.offsets.slice(0, len(column)), column.offsets.slice(1)
    # The values are those of the whole array, which may be longer than this slice.
    begins = pa.array([kind.list_size * (column.offset + n) for n in range(len(column))], pa.int64())
    return begins, pc.add(begins, kind.list_size)


def _is_list(kind: pa.DataType) -> bool:
    return any(applies(kind) for applies in LISTS)


def _sum_bytes(rows: int, columns: Iterable[pa.Array]) -> pa.Array:
    return reduce(pc.add, columns, pa.repeat(0, rows))
