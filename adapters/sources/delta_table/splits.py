"""Offsets of rows, and splits of files with their records. Also used on executors."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from replicator.domain.errors import EnvironmentProblem
from replicator.domain.plain_values import format_count
from replicator.domain.position import TopicPartition

from ...decoders.json.type_names import TypedRowLayout, to_json_values
from ...decoders.masking import MaskHeader, add_mask_header
from ...delta.folders import FileLocation
from ...delta.tables import source_name
from ...event_log import build_raw
from ..delta_reader import open_parquet, read_slices

# Offsets of rows: the table version, and the row's number in it.
#
# The rows that a version changed precede the rows that the table contains in it. A reader of changes continues from the
# changes of one version to those of the next. Only a reader that starts with the whole table reads the second kind.

SHIFT = 34
WHOLE = 1 << (SHIFT - 1)
"""The bit that marks offsets of rows of the whole table."""
MOST_ROWS = WHOLE


class RowOffset(NamedTuple):
    """Row `row` among the rows that `version` changed; with `whole`, among all rows of the table in that version."""

    version: int
    whole: bool
    row: int

    @property
    def offset(self) -> int:
        """The offset in the stream."""
        return (self.version << SHIFT) | (WHOLE if self.whole else 0) | self.row


def parse_offset(offset: int) -> RowOffset:
    """The row with that offset."""
    inside = offset & ((1 << SHIFT) - 1)
    return RowOffset(offset >> SHIFT, inside >= WHOLE, inside & (WHOLE - 1))


def first_change_offset(version: int) -> int:
    """The offset of the first row that `version` changed. The stream ends there if the version before is the newest."""
    return RowOffset(version, False, 0).offset


def skip_whole(offset: int) -> int:
    """The offset. If it is a row of a whole table, the start of the changes of the next version."""
    row = parse_offset(offset)
    return first_change_offset(row.version + 1) if row.whole else offset


def start_offset(offset: int) -> int:
    """The start of a whole table at or below an offset."""
    row = parse_offset(offset)
    if row.whole:
        return first_whole_offset(row.version)
    return first_whole_offset(row.version - 1) if row.version else first_change_offset(0)


def first_whole_offset(version: int) -> int:
    """The offset of the first row of the whole table in `version`."""
    return RowOffset(version, True, 0).offset


# Splits of files and their records. Also used on executors: a split contains all that is needed to read it.

SLICE_ROWS = 8_192
"""Rows that are converted to records at once."""
CHANGE = "_change_type"
FEED = "feed"
"""The operation of change data files, in which each row has its own operation."""
OPS = {"insert": "c", "delete": "d", "update_postimage": "u"}
BEFORE, AFTER = "update_preimage", "update_postimage"


@dataclass(frozen=True)
class Content:
    """Common facts of the files of one version.

    They are: topic, version, commit time in milliseconds, columns with their names in the files, columns to leave out,
    masked columns.
    """

    topic: str
    version: int
    whole: bool
    at: int | None
    schema: pa.Schema
    left_out: frozenset[str]
    masked: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableFile:
    """One data file. `op`: the operation of all its rows, or FEED. `partition`: columns that are not in the file, with
    their values. `first`: the number of its first row in the version."""

    path: FileLocation
    op: str
    rows: int
    partition: tuple[tuple[str, Any], ...]
    first: int


@dataclass(frozen=True)
class RowSplit:
    """The rows [start, end) of a file."""

    content: Content
    file: TableFile
    start: int
    end: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.end - self.start

    def split(self, rows: int) -> Iterator[RowSplit]:
        """The same in splits of at most `rows` rows. A change data file stays whole: its rows depend on each other."""
        step = self.rows if self.file.op == FEED else rows
        for start in range(self.start, self.end, max(1, step)):
            yield RowSplit(self.content, self.file, start, min(start + step, self.end))


def read_records(piece: RowSplit) -> Iterator[pa.Table]:
    """The records of a split as raw frames, in their order. Raises FileRewritten if the file does not exist any more,
    EnvironmentProblem if it is unreadable."""
    fields = [field for field in piece.content.schema if field.name not in piece.content.left_out]
    layout = TypedRowLayout(pa.schema([field.with_name(source_name(field.name)) for field in fields]))
    with open_parquet(piece.file.path) as reader:
        if reader.metadata.num_rows != piece.file.rows:
            raise EnvironmentProblem(
                f"The file {piece.file.path} has {format_count(reader.metadata.num_rows, 'row')}, "
                f"the table's log says {piece.file.rows}.",
                next_step="Restore it from a copy.",
            )
        if piece.file.op == FEED:
            yield from _read_feed(piece, reader, layout)
            return
        for start, rows in _read_some(piece, reader):
            indexes = range(start, start + rows.num_rows)
            yield _build_records(piece, rows, layout, [piece.file.op] * rows.num_rows, indexes, olds={})


def _read_feed(piece: RowSplit, reader: pq.ParquetFile, layout: TypedRowLayout) -> Iterator[pa.Table]:
    """The changes of a change data file. The first old row and the first new row form one change, and so on. The feed
    does not define these pairs, but any pairing gives the same result. Keys that are only among the old rows are deleted,
    all others get the new values. Rows without a partner have it in another file, because their partition changed."""
    kinds = reader.read([CHANGE])[CHANGE].to_pylist()
    befores = [i for i, kind in enumerate(kinds) if kind == BEFORE]
    afters = [i for i, kind in enumerate(kinds) if kind == AFTER]
    olds = dict(zip(afters, befores, strict=False))
    alone = set(befores[len(olds) :])
    indexes = [i for i, kind in enumerate(kinds) if (kind != BEFORE or i in alone) and piece.start <= i < piece.end]
    now, old = _RowCursor(piece, reader), _RowCursor(piece, reader)
    at = 0
    while at < len(indexes):
        end = bisect_left(indexes, now.skip_to(indexes[at]), at)
        first = next((olds[i] for i in indexes[at:end] if i in olds), None)
        if first is not None:
            last = old.skip_to(first)
            end = next((n for n in range(at, end) if olds.get(indexes[n], 0) >= last), end)
        numbers = indexes[at:end]
        changed = [n for n, i in enumerate(numbers) if i in olds]
        rows = pa.concat_tables(
            [now.take_rows(numbers), *([old.take_rows([olds[numbers[n]] for n in changed])] if changed else [])]
        )
        ops = ["d" if i in alone else OPS[kinds[i]] for i in numbers]
        pairs = {n: len(numbers) + k for k, n in enumerate(changed)}
        yield _build_records(piece, rows, layout, ops, numbers, olds=pairs)
        at = end


class _RowCursor:
    """Reads the rows of a file forward, in small slices."""

    def __init__(self, piece: RowSplit, reader: pq.ParquetFile) -> None:
        self._slices = _read_some(replace(piece, start=0, end=piece.file.rows), reader, (CHANGE,))
        self._start, self._rows = 0, pa.table({})

    def skip_to(self, index: int) -> int:
        """Load the slice with the row at `index`; returns the index after its last row."""
        while index >= self._start + self._rows.num_rows:
            self._start, self._rows = next(self._slices)
        return self._start + int(self._rows.num_rows)

    def take_rows(self, indexes: Sequence[int]) -> pa.Table:
        """Rows of the loaded slice."""
        return self._rows.take(pa.array([index - self._start for index in indexes], pa.int64()))


def _read_some(piece: RowSplit, reader: pq.ParquetFile, more: Sequence[str] = ()) -> Iterator[tuple[int, pa.Table]]:
    """The rows of the split with the table's columns and `more`, in small slices, each with the file's row number of its
    first row. Row groups outside the split are not read."""
    partition = {name for name, _ in piece.file.partition}
    stored = set(reader.schema_arrow.names) - partition - piece.content.left_out
    names = [*(field.name for field in piece.content.schema if field.name in stored), *more]
    at, groups, skipped = 0, [], 0
    for i in range(reader.metadata.num_row_groups):
        rows = reader.metadata.row_group(i).num_rows
        if at < piece.end and at + rows > piece.start:
            groups.append(i)
        elif not groups:
            skipped += rows
        at += rows
    at = skipped
    for batch in read_slices(piece.file.path, reader, SLICE_ROWS, names, groups):
        start, end = max(piece.start - at, 0), min(piece.end - at, batch.num_rows)
        if start < end:
            yield at + start, _conform_rows(pa.table(batch.slice(start, end - start)), piece)
        at += batch.num_rows


def _conform_rows(rows: pa.Table, piece: RowSplit) -> pa.Table:
    """The rows with the table's columns under their source names, and the kind of change if there is one. A column that
    was added after the file was written is null."""
    partition = {name: pa.repeat(pa.scalar(value, pa.string()), rows.num_rows) for name, value in piece.file.partition}
    columns = {}
    for field in piece.content.schema:
        if field.name in piece.content.left_out:
            continue
        column = rows[field.name] if field.name in rows.column_names else partition.get(field.name)
        if column is None:
            columns[source_name(field.name)] = pa.nulls(rows.num_rows, field.type)
            continue
        try:
            columns[source_name(field.name)] = pc.cast(column, field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise EnvironmentProblem(
                f"Column {field.name!r} in the file {piece.file.path} is {column.type}; the table says {field.type}.",
                next_step="Rewrite the table with one of the engines that write Delta Lake.",
            ) from error
    if CHANGE in rows.column_names:
        columns[CHANGE] = rows[CHANGE]
    # A table without columns would have no number of rows; there is always a column.
    return pa.table(columns)


OWN = ("_op", "_version", "_order", "_row", "_before")
"""Fields of a record besides the columns of its row, which decoder `rows` reads."""


def _build_records(
    piece: RowSplit,
    rows: pa.Table,
    layout: TypedRowLayout,
    ops: Sequence[str],
    indexes: Sequence[int],
    *,
    olds: Mapping[int, int],
) -> pa.Table:
    """The first rows as records, one for each of `ops`: JSON objects with the types of their columns, so that every value
    survives exactly.

    - `indexes`: their row numbers in the file.
    - `olds`: for updates the old row among `rows`. The record includes the old values of changed columns.
    """
    content = piece.content
    cells = [to_json_values(rows[field.name], field.type) for field in layout.schema]
    names, numbers = layout.schema.names, [piece.file.first + index for index in indexes]
    encode = msgspec.json.Encoder().encode
    texts = []
    for at, (op, number) in enumerate(zip(ops, numbers, strict=True)):
        record: dict[str, Any] = {"_op": op, "_version": content.version, "_order": int(op != "d"), "_row": number}
        old = olds.get(at)
        if old is not None:
            changed = (i for i, column in enumerate(cells) if column[old] != column[at])
            record["_before"] = {names[i]: cells[i][old] for i in changed}
        record.update(zip(names, [column[at] for column in cells], strict=True))
        texts.append(layout.prefix + encode(record) + b"}")
    base = RowOffset(content.version, content.whole, 0).offset
    marks = add_mask_header(None, MaskHeader(content.topic, content.masked), None) if content.masked else None
    offsets = [base + number for number in numbers]
    return pa.table(build_raw(TopicPartition(content.topic, 0), offsets, texts, millis=content.at, headers=marks))
