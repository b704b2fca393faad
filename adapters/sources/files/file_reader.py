"""Files to records: the interface to kinds of files, and reading from the last position."""

from __future__ import annotations

import binascii
import gzip
import logging
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from replicator.domain.change import ERROR_HEADER, RAW
from replicator.domain.errors import ConfigProblem, EnvironmentProblem, Fatal, Reject, RejectCode
from replicator.domain.out_of_range import FIRST_MS, LAST_MS, null_out_of_range
from replicator.domain.position import TopicPartition
from replicator.ports.frames import Stop

from ...arrow.parquet_slices import ParquetSlices
from ...event_log import Text, to_bytes
from .file_list import BLOCK, LONGER, SUFFIXES, ArchiveFile, FilesLocation, find_files

# Lines of files, and their records.


# Archive lines to records, and records that stand for unreadable lines.

PSEUDO_TOPIC = "archive:"
"""Topic prefix of such records. The file's path within the archive follows; the offset is the line number."""


Offset = Annotated[int, msgspec.Meta(ge=0, lt=2**63 - 1)]


class ArchiveLine(msgspec.Struct):
    """A line of an archive (the public contract's archive format)."""

    topic: Annotated[str, msgspec.Meta(min_length=1)]
    partition: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
    offset: Offset
    key: Text
    value: Text
    timestamp: int | tuple[int, int] | None = None
    headers: list[tuple[str, Text]] | None = None


class ArchiveRecord(NamedTuple):
    """One record, with fields in the order of `domain.change.RAW`."""

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    headers: list[tuple[str, bytes | None]] | None
    key: bytes | None
    value: bytes | None

    @property
    def topic_partition(self) -> TopicPartition:
        """The record's partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """Bytes of key and value."""
        return len(self.key or b"") + len(self.value or b"")


class RecordColumns:
    """Records by column. A tuple per record would be visited by Python's garbage collector again and again."""

    def __init__(self) -> None:
        self._columns: list[list[Any]] = [[] for _ in RAW]

    def __len__(self) -> int:
        return len(self._columns[0])

    def add(self, record: ArchiveRecord) -> None:
        """Add a record."""
        for column, value in zip(self._columns, record, strict=True):
            column.append(value)

    def to_batch(self) -> pa.RecordBatch:
        """All records in order."""
        arrays = [pa.array(column, field.type) for column, field in zip(self._columns, RAW, strict=True)]
        return pa.record_batch(arrays, schema=RAW)


_decoder = msgspec.json.Decoder(ArchiveLine)


def parse_line(line: bytes) -> ArchiveRecord:
    """The record of `line`. Raises ValueError for an invalid line; its text contains no value of the row."""
    try:
        read = _decoder.decode(line)
        headers = None if read.headers is None else [(name, to_bytes(value)) for name, value in read.headers]
        time = read.timestamp
        if isinstance(time, tuple):
            time = time[1] if time[0] else None  # A Kafka timestamp of type 0 means that there is no timestamp.
        if time is not None and not FIRST_MS <= time <= LAST_MS:
            time = None
        return ArchiveRecord(
            read.topic,
            read.partition,
            read.offset,
            time,
            headers,
            to_bytes(read.key),
            to_bytes(read.value),
        )
    except (msgspec.MsgspecError, UnicodeDecodeError, binascii.Error) as error:
        raise ValueError(f"not a record of an archive: {error}") from None


class LineTooLong(ValueError):
    """A line that is longer than allowed."""


def unreadable_record(label: str, number: int, line: bytes, why: ValueError) -> ArchiveRecord:
    """The record that carries an unreadable line to the dead letters. Its event id names file and line."""
    code = RejectCode.TOO_LARGE if isinstance(why, LineTooLong) else RejectCode.MALFORMED
    reject = Reject(code, f"{label} line {number}: {why}")
    return ArchiveRecord(PSEUDO_TOPIC + label, 0, number, None, [(ERROR_HEADER, str(reject).encode())], None, line)


# Lines of files, with limited length.

KEPT_BYTES = 4_096
"""Bytes that are kept of a line that is too long."""


class LineStream(Protocol):
    """A file, possibly unpacked while it is read."""

    def readline(self, size: int, /) -> bytes:
        """The next line, or its next `size` bytes; empty at the end."""


class LongLine(bytes):
    """The beginning of a line that is too long, with its line end if it has one. `size`: the size of the line."""

    size: int

    @classmethod
    def from_text(cls, text: bytes, size: int) -> LongLine:
        """From a line with this size, or its first part."""
        line = cls(text[:KEPT_BYTES].removesuffix(b"\n") + (b"\n" if text.endswith(b"\n") else b""))
        line.size = size
        return line

    def describe(self, longest: int) -> str:
        """The reason why the line is not read."""
        return (
            f"the line has {self.size} bytes, more than {longest}, which is {LONGER} times limits.message_bytes: "
            f"its first {KEPT_BYTES} bytes are kept"
        )


def line_size(line: bytes) -> int:
    """The bytes of a line in its file."""
    return line.size if isinstance(line, LongLine) else len(line)


def read_bounded(stream: LineStream, longest: int, size: int | None = None) -> Iterator[bytes]:
    """The lines of `stream`, or the lines in its next `size` bytes. Lines longer than `longest` are returned as LongLine,
    so that no more is kept in memory. The last line may lack its line end."""
    rest = size
    while rest is None or rest > 0:
        line = stream.readline(longest + 1 if rest is None else min(longest + 1, rest))
        if len(line) > longest:
            # Skip the rest of the line.
            count, last = len(line), line
            while not last.endswith(b"\n"):
                last = stream.readline(BLOCK if rest is None else min(BLOCK, rest - count))
                if not last:
                    break
                count += len(last)
            line = LongLine.from_text(line[:KEPT_BYTES] + (b"\n" if last.endswith(b"\n") else b""), count)
        if not line:
            return
        rest = None if rest is None else rest - line_size(line)
        yield line


# The base class of kinds of files: how they are listed, and how their lines become records.

LONGEST = LONGER * 16 * 1024 * 1024
"""The value for the default of limits.message_bytes."""
AVRO = ".avro"
Number = Callable[[], int]
"""Returns the number of a line in its file, from 1. May have to read the file."""


class FileFormat(ABC):
    """Files of one kind. Pickled for executors. Formats of text define `record`, formats of Parquet files `frame`."""

    suffixes: tuple[str, ...]
    """Endings of file names; other files are skipped."""
    divisible = False
    """True if a file can be read from the middle, because records end at line ends."""
    deep = False
    """True if subfolders are included."""
    longest = LONGEST
    """Bytes of a line beyond which it is rejected unread."""
    growing = False
    """True if a file may be read while it is written. Otherwise an incomplete file is an EnvironmentProblem."""

    @abstractmethod
    def files(self, path: FilesLocation) -> list[ArchiveFile]:
        """The files of `path` in their order. Raises EnvironmentProblem for a missing file or folder, ConfigProblem for a
        file of another kind."""

    def lines(self, stream: Iterable[bytes]) -> Iterator[bytes]:
        """The lines of `stream` with their line ends; lines of one record are joined."""
        return iter(stream)

    def record(self, file: ArchiveFile, line: bytes, number: Number) -> ArchiveRecord | ValueError | None:  # noqa: ARG002
        """The record of a line, or an error; None for a line without a record. In a growing file a line without a line
        end that gives a ValueError is still being written."""
        raise Fatal(f"{file.path} holds no lines")

    def frame(self, file: ArchiveFile, batch: pa.RecordBatch, first: int) -> pa.RecordBatch:  # noqa: ARG002
        """The raw batch of rows from a Parquet file. `first` is the number of the first row in the file, from 1."""
        raise Fatal(f"{file.path} holds text")

    def refuse(self, file: ArchiveFile, schema: pa.Schema) -> None:  # noqa: B027 - Others accept all columns.
        """Raise ConfigProblem for a Parquet file with unsupported columns."""


class ArchiveFormat(FileFormat):
    """`FileFormat` of archives: each line is a JSON object with a record."""

    suffixes = SUFFIXES
    divisible = growing = True

    def files(self, path: FilesLocation) -> list[ArchiveFile]:
        """See `FileFormat.files`: in the order of their names."""
        return sorted(find_files(path, self.suffixes))

    def record(self, _: ArchiveFile, line: bytes, __: Number) -> ArchiveRecord | ValueError | None:
        text = line.strip()
        if not text:
            return None
        try:
            return parse_line(text)
        except ValueError as error:
            return error

    def frame(self, _: ArchiveFile, batch: pa.RecordBatch, __: int) -> pa.RecordBatch:
        frame = batch.select(RAW.names).cast(RAW)
        at = RAW.get_field_index("timestamp")
        return frame.set_column(at, RAW.field(at), null_out_of_range(frame.column(at)))

    def refuse(self, file: ArchiveFile, schema: pa.Schema) -> None:
        if missing := set(RAW.names) - set(schema.names):
            raise ConfigProblem(f"{file.path} is not an archive: it lacks the column(s) {', '.join(sorted(missing))}.")


# Parts of files to records.


@dataclass(frozen=True, slots=True)
class FileSplit:
    """A part of `file`: the lines that begin in [start, end), or the row groups `groups` of a Parquet file.

    Lines are numbered from byte `begun`, before which there are `lines` lines. `weight`: approximate bytes in memory.
    """

    file: ArchiveFile
    start: int
    end: int
    begun: int
    lines: int
    weight: int = 0
    groups: tuple[int, ...] = ()

    @classmethod
    def of_file(cls, file: ArchiveFile, at: int = 0, lines: int = 0) -> FileSplit:
        """The rest of a file from byte `at` on, before which there are `lines` lines."""
        return cls(file, at, file.size, at, lines)


class SplitReader:
    """Reads the lines of a split, once.

    - `at`: the byte position of the next line.
    - `lines`: the number of lines of the split before it.
    - `unfinished`: the last line of the file is still being written.
    """

    def __init__(self, form: FileFormat, split: FileSplit) -> None:
        self._form, self._split = form, split
        self.at, self.lines, self.unfinished = split.start, 0, False
        self._before = -1

    def read_records(self) -> Iterator[ArchiveRecord]:
        """The records of the lines. An unreadable line is a record, too."""
        form, file = self._form, self._split.file
        for line in form.lines(self.read_lines()):
            record: ArchiveRecord | ValueError | None
            if isinstance(line, LongLine):
                record = LineTooLong(line.describe(form.longest))
            else:
                record = form.record(file, line, self._next_line_number)
            if isinstance(record, ValueError):
                if form.growing and not line.endswith(b"\n"):
                    self.unfinished = True
                    return
                record = unreadable_record(file.label, self._next_line_number(), line.strip(), record)
            self.at += line_size(line)
            self.lines += 1
            if record is not None:
                yield record

    def read_lines(self) -> Iterator[bytes]:
        """The lines, or the messages of an Avro file. The last line of the file may lack its line end."""
        file, form = self._split.file, self._form
        if file.name.endswith(AVRO):
            from .avro_files import read_messages  # noqa: PLC0415 - an optional package

            yield from read_messages(file, form.longest)
        elif file.name.endswith(".gz"):
            with file.path.open("rb") as packed, gzip.open(packed) as stream:
                yield from read_compressed(read_bounded(stream, form.longest), file, growing=form.growing)
        else:
            yield from self._read_plain()

    def _read_plain(self) -> Iterator[bytes]:
        split, longest = self._split, self._form.longest
        with split.file.path.open("rb") as stream:
            if split.start > split.begun:
                # A line that begins before the split belongs to the split before.
                stream.seek(split.start - 1)
                self.at += line_size(next(read_bounded(stream, longest), b"")) - 1
            stream.seek(self.at)
            at = self.at
            for line in read_bounded(stream, longest, split.file.size - at):
                if at >= split.end:
                    break
                yield line
                at += line_size(line)

    def _next_line_number(self) -> int:
        """The number of the next line in its file. Lines of earlier splits are counted only when a number is needed."""
        split = self._split
        if self._before < 0:
            self._before = split.lines
            if split.start > split.begun:
                start, end, count, last = split.begun, split.start, 0, b"\n"
                with split.file.path.open("rb") as stream:
                    stream.seek(start)
                    while start < end and (block := stream.read(min(BLOCK, end - start))):
                        count, last, start = count + block.count(b"\n"), block[-1:], start + len(block)
                self._before += count + (last != b"\n")
        return self._before + self.lines + 1


# Archive files to records, continuing from the last read position.

log = logging.getLogger(__name__)
PutRecord = Callable[[ArchiveRecord, str], None]
PutFrame = Callable[[pa.RecordBatch, str], None]
PARQUET_ROWS = 8_192
"""The most rows of a Parquet file that are converted to records at once."""
PACKED = (".gz", ".parquet")
"""Endings of files that are read from the beginning when they have grown."""


class FileProgress:
    """The read position of each file, so that a growing file is not read again. `growing`: see `FileFormat.growing`."""

    def __init__(self, *, growing: bool) -> None:
        self._growing = growing
        self._left: dict[str, tuple[ArchiveFile, int, int]] = {}

    def begin(self, file: ArchiveFile) -> tuple[int, int] | None:
        """The start of new content in `file`: byte position, and number of lines before it; None if nothing is new."""
        before, at, lines = self._left.get(file.label, (None, 0, 0))
        if before == file:
            return None
        if before is None or not self._growing:
            return 0, 0
        is_replaced = before.stamp[0] != file.stamp[0] or file.size < at or file.name.endswith(PACKED)
        return (0, 0) if is_replaced else (at, lines)

    def end(self, file: ArchiveFile, at: int, lines: int) -> None:
        """Store that `file`, with the size from its listing, was read up to this position."""
        self._left[file.label] = (file, at, lines)


class ArchiveReader:
    """Reads new content of files, up to the size from their listing."""

    def __init__(self, form: FileFormat, put_record: PutRecord, put_frame: PutFrame, stop: Stop) -> None:
        self._form, self._put, self._put_frame, self._stop = form, put_record, put_frame, stop
        self._progress = FileProgress(growing=form.growing)

    def read(self, file: ArchiveFile) -> None:
        """Read new content of `file`."""
        progress = self._progress.begin(file)
        if progress is None:
            return
        try:
            at, lines = self._read_from(file, *progress)
        except FileNotFoundError:
            return
        except OSError as error:
            raise unusable_error(file, error) from error
        if not self._stop.is_set():
            self._progress.end(file, at, lines)

    def _read_from(self, file: ArchiveFile, at: int, lines: int) -> tuple[int, int]:
        """Returns the start of the next unread line (byte position, lines before it)."""
        if file.name.endswith(".parquet"):
            reader = open_parquet(file, self._form)
            for frame in read_frames(file, reader, self._form, PARQUET_ROWS) if reader else ():
                if self._stop.is_set():
                    break
                self._put_frame(frame, file.label)
            return 0, 0
        reader = SplitReader(self._form, FileSplit.of_file(file, at, lines))
        for record in reader.read_records():
            if self._stop.is_set():
                break
            self._put(record, file.label)
        if reader.unfinished:
            log_unfinished(file, lines + reader.lines + 1)
        return reader.at, lines + reader.lines


def unusable_error(file: ArchiveFile, error: OSError) -> EnvironmentProblem:
    """The error for an existing `file` that cannot be opened."""
    return EnvironmentProblem(f"The file {file.path} cannot be read: {error.strerror or error}.")


def log_unfinished(file: ArchiveFile, number: int) -> None:
    """Log that the last line is still being written."""
    log.warning("%s: line %d is not written to its end yet.", file.path, number)


def open_parquet(file: ArchiveFile, form: FileFormat) -> pq.ParquetFile | None:
    """An open Parquet file; None while it is being written, if the format is `growing`. Raises ConfigProblem for a file
    of another kind, EnvironmentProblem for an incomplete one."""
    try:
        reader = pq.ParquetFile(file.open_parquet())
    except pa.ArrowInvalid as error:
        if not form.growing:
            raise EnvironmentProblem(f"{file.path} is no whole Parquet file: it was not copied to its end.") from error
        # A Parquet file is readable only when its footer, its last part, was written.
        log.warning("%s is not a whole Parquet file yet.", file.path)
        return None
    form.refuse(file, reader.schema_arrow)
    return reader


def read_compressed(stream: Iterable[bytes], file: ArchiveFile, *, growing: bool) -> Iterator[bytes]:
    """The lines of a compressed file, up to its current end. Raises EnvironmentProblem for a damaged file, and for an
    incomplete one unless it is `growing`."""
    try:
        yield from stream
    except EOFError as error:
        if not growing:
            raise EnvironmentProblem(f"{file.path} ends too early: it was not copied to its end.") from error
        log.warning("%s is not written to its end yet.", file.path)
    except (zlib.error, gzip.BadGzipFile) as error:
        step = "Write it again, or take it away; a file that is not compressed must not end in .gz."
        raise EnvironmentProblem(f"The file {file.path} is damaged: {error}.", next_step=step) from error


# Rows of Parquet files as raw batches that fit in memory, however well the file is compressed.

MIN_BUDGET_BYTES = 1 << 20
"""Minimum bytes of text per read, even if `record_limits.message_bytes` is less."""


def read_frames(
    file: ArchiveFile, reader: pq.ParquetFile, form: FileFormat, most: int, groups: Sequence[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """The raw batches of an accepted file, or of some consecutive row groups, with at most `most` rows each. A row longer
    than a line may be is rejected."""
    budget = max(form.longest // LONGER, MIN_BUDGET_BYTES)
    first = 1 + sum(reader.metadata.row_group(group).num_rows for group in range(groups[0] if groups else 0))
    slices = ParquetSlices(reader, file.open_parquet, budget, most, groups=groups)
    for rows, size in slices.read(form.longest):
        if size > form.longest:
            limit = f"{form.longest}, which is {LONGER} times limits.message_bytes"
            why = LineTooLong(f"the row has {size} bytes of text, more than {limit}")
            columns = RecordColumns()
            columns.add(unreadable_record(file.label, first, b"", why))
            yield columns.to_batch()
        else:
            yield form.frame(file, slices.unpack(rows), first)
        first += rows.num_rows
