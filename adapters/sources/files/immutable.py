"""Shared code for immutable files: when they are complete, their order, and rows of text and Parquet."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from replicator.domain.errors import ConfigProblem, DataLoss, EnvironmentProblem, Retryable
from replicator.domain.plain_values import format_count
from replicator.domain.position import Position, TopicPartition
from replicator.ports.frames import Stop
from replicator.ports.source import SourceFeatures

from ...decoders.common.row_files import CsvDialect, escape_sign
from ...decoders.json.type_names import TypedRowLayout, to_json_values
from ...object_store.files import StoredPath
from ..file_options import FileSourceOptions
from .delivery import DeliveryProgress, OffsetIndex
from .file_list import ANY, ArchiveFile, seconds_until_complete
from .file_reader import FileFormat, FileSplit, LongLine, SplitReader, unusable_error
from .source import ArchiveSource


class ImmutableFilesSource(ArchiveSource):
    """`ArchiveSource` for files that never change after they were written, and whose names define their order: the format
    sets their `partition`, `first` and `most`. Subclasses define `make_format`.

    A file is complete when it was not written for `file_list.SETTLED_SECONDS`. Until then, later files of its table
    wait. Keep at least the newest file of every table: without any, the table counts as removed. A file that appears
    before others that were read, or whose size changed, is a DataLoss.
    """

    before: ClassVar[int] = 0
    """The number of files of a partition to read before those with new content."""
    sparse_offsets = True  # The upper bits contain the file.

    def __init__(self, options: FileSourceOptions | Mapping[str, Any]) -> None:
        self._given: dict[str, ArchiveFile] = {}
        self._newest: dict[TopicPartition, int] = {}
        self._settled_at = float("inf")
        self._incomplete: EnvironmentProblem | None = None
        super().__init__(options)

    @property
    def features(self) -> SourceFeatures:
        return replace(super().features, sparse_offsets=self.sparse_offsets)

    def run(self, start: Position, consume_batch: Any, stop: Stop, *, once: bool) -> None:
        """See the port. With `once`, up to the end of the files at the start, when they are complete."""
        if once:
            labels = {file.label for file in self._list_requested()}
            waiting = self.begin_delivery(DeliveryProgress(start), consume_batch, stop)
            while True:
                seconds = [self._seconds_until_stable(f) for f in self._list_files() if f.label in labels]
                wait = max(seconds, default=0.0)
                if wait <= 0:
                    break
                if stop.wait(min(wait, 1.0)):
                    return
                waiting.flush(even_empty=True)  # An empty batch shows the caller that the source is alive.
        super().run(start, consume_batch, stop, once=once)

    def read(self, start: Position, until: Position, consume_batch: Any, stop: Stop) -> None:
        """See the port. Waits until the files are complete: a missing file would count as a hole."""
        while True:
            seconds = [self._seconds_until_stable(f) for f in self._list_requested() if self._is_below(f, until)]
            wait = max(seconds, default=0.0)
            if wait <= 0:
                break
            if stop.wait(min(wait, 1.0)):
                return
        super().read(start, until, consume_batch, stop)

    def _is_below(self, file: ArchiveFile, until: Position) -> bool:
        end = max(until.values(), default=0) if file.partition == ANY else until.get(file.partition, 0)
        return file.first < end

    def _files(self, start: Position) -> list[ArchiveFile]:
        """The complete files, for each table up to the first incomplete one. Raises DataLoss for a file whose size
        changed after it was returned before, and for a file before others that were returned."""
        files = list(self._select_complete(self._list_requested()))
        for file in (file for file in files if self._given and file.label not in self._given):
            if file.first < self._newest.get(file.partition, -1):
                is_any = file.partition == ANY
                later = "later files of transactions" if is_any else f"later files of table {file.partition.topic}"
                raise DataLoss(
                    f"{file.path} appeared after {later} had been read",
                    next_step="Load the table again with `replicator lanes resync LANE` before the next start. After a "
                    "restart it is not known any more that the file was not read.",
                )
        for file in files:
            self._newest[file.partition] = file.first
            before = self._given.setdefault(file.label, file)
            change = ""
            if before.size != file.size:
                change = f"had {format_count(before.size, 'byte')} when it was read, and has {file.size} now"
            elif isinstance(file.path, StoredPath) and before.stamp[0] != file.stamp[0]:
                # A local copy of the same size is equal.
                change = "was replaced after it was read"
            if change:
                raise DataLoss(
                    f"{file.path} {change}: files are written once",
                    next_step="If the table was loaded again, load it here too, with `replicator lanes resync LANE`.",
                )
        return select_beyond(files, start, self.before)

    def _list_requested(self) -> list[ArchiveFile]:
        files, names = self._list_files(), self._options.through
        return files if names is None else select_through(files, names)

    def losses(self, position: Position, identity: Mapping[str, str]) -> Mapping[TopicPartition, str]:
        """See the port. Raises Retryable if an incomplete file may hold the missing records."""
        losses = super().losses(position, identity)
        if losses and self._incomplete is not None:
            raise Retryable(self._incomplete.sentence, next_step="Finish the copy, or remove the file.")
        return losses

    def _update_index(self) -> OffsetIndex:
        """See the base class. A file that is being copied may be unreadable until it is complete."""
        try:
            index, self._incomplete = summarise(self._known, self._list_files()), None
            return index
        except EnvironmentProblem:
            files = self._list_files()
        for file in [file for file in files if self._seconds_until_stable(file) > 0]:
            try:
                self._known.update([file])
            except EnvironmentProblem as problem:
                self._incomplete = problem
                files.remove(file)
        return summarise(self._known, files)

    def _seconds_until_due(self) -> float:
        return max(0.0, self._settled_at - time.monotonic())

    def _select_complete(self, files: Iterable[ArchiveFile]) -> Iterator[ArchiveFile]:
        behind: set[TopicPartition] = set()
        self._settled_at = float("inf")
        for file in files:
            wait = self._seconds_until_stable(file)
            if wait > 0:
                self._settled_at = min(self._settled_at, time.monotonic() + wait)
            if wait <= 0 and not behind & {file.partition, ANY} and (file.partition != ANY or not behind):
                yield file
            else:
                behind.add(file.partition)

    def _seconds_until_stable(self, file: ArchiveFile) -> float:
        return seconds_until_complete(file, self._options.settle_seconds)


# Selection of files to read, for files whose names define their order.


def select_beyond(files: list[ArchiveFile], start: Position, before: int) -> list[ArchiveFile]:
    """The ordered `files` that may have rows from `start` on, and `before` files before them. A file was read if its
    table's position is above the start of the next file."""
    selected: list[ArchiveFile] = []
    following: dict[TopicPartition, int] = {}
    left: dict[TopicPartition, int] = {}
    for file in reversed(files):
        partition = file.partition
        after, position = following.get(partition), start.get(partition)
        if partition == ANY or after is None or position is None or position <= after:
            selected.append(file)
        elif left.setdefault(partition, before):
            selected.append(file)
            left[partition] -= 1
        following[partition] = file.first
    return selected[::-1]


def select_through(files: list[ArchiveFile], names: Collection[str]) -> list[ArchiveFile]:
    """The ordered `files` with these names (labels or whole paths), and the files of the same tables before them. If a
    transaction file is named, these are the files of all tables."""
    last: dict[TopicPartition, int] = {}
    for file in files:
        if file.label in names or str(file.path) in names:
            last[file.partition] = file.first
    return [file for file in files if file.first <= max(last.get(file.partition, -1), last.get(ANY, -1))]


def summarise(index: OffsetIndex, files: Iterable[ArchiveFile]) -> OffsetIndex:
    """`index`, updated with the ordered `files`. For each partition only the first and last file with rows are read; all
    files are read if some contain several tables."""
    by_partition: dict[TopicPartition, list[ArchiveFile]] = {}
    for file in files:
        by_partition.setdefault(file.partition, []).append(file)
    if ANY in by_partition:
        return index.update(sorted((f for group in by_partition.values() for f in group), key=lambda file: file.first))
    while by_partition:
        index.update([file for group in by_partition.values() for file in dict.fromkeys((group[0], group[-1]))])
        by_partition = {p: rest for p, group in by_partition.items() if (rest := _inner_files(index, group))}
    return index


def _inner_files(index: OffsetIndex, files: list[ArchiveFile]) -> list[ArchiveFile]:
    """`files` of a partition without empty files at both ends; empty if neither end is empty."""
    first, last = files[0], files[-1]
    has_first = index.firsts.get(first.partition, first.first + first.most) < first.first + first.most
    has_last = index.ends.get(last.partition, 0) > last.first
    return [] if has_first and has_last else files[0 if has_first else 1 : len(files) if has_last else -1]


# Lines of text files.

BOM = b"\xef\xbb\xbf"


def read_first_row(form: FileFormat, file: ArchiveFile) -> bytes:
    """The first row of a text file, empty if there is none. Raises EnvironmentProblem for an unreadable file."""
    return strip_line(next(read_lines(form, file), b""), first=True)


def read_lines(form: FileFormat, file: ArchiveFile) -> Iterator[bytes]:
    """The lines of a text file with their line ends, or the messages of an Avro file. Raises EnvironmentProblem for an
    unreadable or incomplete file."""
    try:
        yield from form.lines(SplitReader(form, FileSplit.of_file(file)).read_lines())
    except OSError as error:
        raise unusable_error(file, error) from error


def strip_line(line: bytes, *, first: bool) -> bytes:
    """A row without its line end; the first one also without a byte order mark."""
    text = line.removesuffix(b"\n").removesuffix(b"\r")
    return text.removeprefix(BOM) if first else text


# Rows of CSV files: a line end inside a quoted value is part of the value (RFC 4180).


class CsvRowJoiner:
    """Joins lines to rows. A value is quoted if its first character is a quote, as in the decoder."""

    def __init__(self, dialect: CsvDialect) -> None:
        self._quote = (dialect.quote or "").encode()
        self._quoted = re.compile(b"(?!)")
        if not self._quote:
            return
        d, q, e = (escape_sign(sign) if sign else "" for sign in (dialect.delimiter, dialect.quote, dialect.escape))
        escaped = f"|{e}(?s:.)" if e else ""
        inside, plain = f"(?:[^{q}{e}]|{q}{q}{escaped})*+", f"(?:[^{d}{e}]{escaped})*+"
        cell = f"(?:(?!{q}){plain}|{q}{inside}{q}(?!{q}){plain})"
        self._quoted = re.compile(f"{q}{inside}{q}".encode())
        # A row with an open last value; the end of such a value, and the rest of its row.
        self._opens = re.compile(f"{cell}(?:{d}{cell})*+{d}{q}{inside}|{q}{inside}".encode())
        self._closes = re.compile(f"{inside}{q}(?!{q}){plain}({d})?".encode())

    def join_lines(self, lines: Iterable[bytes], longest: int) -> Iterator[bytes]:
        """The rows in `lines`, with their line ends. A row longer than `longest` bytes is a LongLine and ends there. Its
        open quote counts as a character, so that the rest of the file is read."""
        row: list[bytes] = []
        size, is_open = 0, False
        for line in lines:
            if isinstance(line, LongLine):
                yield LongLine.from_text(b"".join([*row, line]), size + line.size)
                row, size, is_open = [], 0, False
                continue
            if not is_open and (not self._quote or self._quote not in line):
                yield line
                continue
            is_open = self._is_open(line, within=is_open)
            row.append(line)
            size += len(line)
            if not is_open or size > longest:
                text = b"".join(row)
                yield LongLine.from_text(text, size) if size > longest else text
                row, size, is_open = [], 0, False
        if row:
            yield b"".join(row)

    def check_header(self, row: bytes, file: ArchiveFile) -> bytes:
        """Returns `row`, the header row of the file. Raises EnvironmentProblem for a CR within it: all lines may end in
        CR alone, and then the whole file would be its header."""
        if b"\r" in self._quoted.sub(b"", row):
            raise EnvironmentProblem(
                f"The header row of {file.path} contains a carriage return: lines that end in CR alone are not supported.",
                next_step="Write the file again with lines that end in LF or CR LF, or remove it.",
            )
        return row

    def _is_open(self, line: bytes, *, within: bool) -> bool:
        """True if a quoted value continues after the line. `within`: the line begins in a quoted value."""
        if within:
            closed = self._closes.match(line)
            if closed is None:
                return True
            if closed[1] is None:
                return False
            line = line[closed.end() :]
        return self._opens.fullmatch(line) is not None


# Rows of Parquet files as JSON objects with the types of their columns.

PLAIN: tuple[tuple[Any, Any], ...] = (
    (t.is_large_string, pa.string()),
    (t.is_string_view, pa.string()),
    (t.is_large_binary, pa.binary()),
    (t.is_fixed_size_binary, pa.binary()),
    (t.is_date64, pa.date32()),
    (t.is_time, pa.time64("us")),
    (t.is_float16, pa.float32()),
    (t.is_null, pa.string()),
)
"""Types that are read as an equivalent type."""
READABLE_TYPES = (
    *(t.is_integer, t.is_floating, t.is_boolean, t.is_string, t.is_binary),
    *(t.is_decimal128, t.is_decimal256, t.is_date32, t.is_time64, t.is_timestamp),
)


def refuse_columns(file: ArchiveFile, schema: pa.Schema, step: str) -> None:
    """Raise ConfigProblem for a column with an unsupported type, with the next step `step`, and for duplicate names."""
    for field in schema:
        if find_read_type(field.type) is None:
            raise ConfigProblem(
                f"column {field.name!r} of {file.path} is of type {field.type}, which cannot be read", next_step=step
            )
    if len(set(schema.names)) < len(schema.names):
        raise ConfigProblem(f"{file.path} names a column twice")


def slice_to_json(batch: pa.RecordBatch) -> tuple[bytes, dict[str, list[Any]]]:
    """The common beginning of these rows' records (a brace ends them), and the JSON values of their columns. Times are in
    microseconds; a time that does not fit is written so that decoders reject it."""
    schema = pa.schema([(field.name, find_read_type(field.type)) for field in batch.schema])
    columns: dict[str, list[Any]] = {}
    for column, field in zip(batch.columns, schema, strict=True):
        plain = column.cast(field.type, safe=False)
        values = columns[field.name] = to_json_values(pa.chunked_array([plain]), field.type)
        if t.is_temporal(field.type) and not column.type.equals(field.type):
            lost = pc.fill_null(pc.not_equal(plain.cast(column.type, safe=False), column), False)
            for index in pc.indices_nonzero(lost).to_pylist():
                values[index] = column[index].cast(pa.string()).as_py()
    return TypedRowLayout(schema).prefix, columns


def find_read_type(arrow: pa.DataType) -> pa.DataType | None:
    """The type as which values of `arrow` are read; None if there is none."""
    if t.is_dictionary(arrow):
        return find_read_type(arrow.value_type)
    if t.is_timestamp(arrow):
        return pa.timestamp("us", "UTC" if arrow.tz else None)
    read_type = next((plain for applies, plain in PLAIN if applies(arrow)), arrow)
    return read_type if any(applies(read_type) for applies in READABLE_TYPES) else None
