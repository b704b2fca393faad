"""Files to records: the interface to kinds of files, and reading from the last position."""

from __future__ import annotations

import gzip
import logging
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem, EnvironmentProblem
from replicator.domain.out_of_range import null_out_of_range
from replicator.ports.frames import Stop

from ...arrow.parquet_slices import ParquetSlices
from .file_list import SUFFIXES, ArchiveFile, Place, find_files
from .records import (
    LONGER,
    ArchiveRecord,
    LineStream,
    LineTooLong,
    LongLine,
    RecordColumns,
    line_size,
    parse_line,
    read_bounded,
    unreadable_record,
)

# The interface to kinds of files: how they are listed, and how their lines become records.

LONGEST = LONGER * 16 * 1024 * 1024
"""The value for the default of limits.message_bytes."""
AVRO = ".avro"
NULL = b"null"
"""Stands for a null message of an Avro file, as in JSON lines."""
Number = Callable[[], int]
"""Returns the number of a line in its file, from 1. May have to read the file."""


class FileFormat(Protocol):
    """Files of one kind. Pickled for executors."""

    suffixes: tuple[str, ...]
    """Endings of file names; other files are skipped."""
    divisible: bool
    """True if a file can be read from the middle, because records end at line ends."""
    deep: bool
    """True if subfolders are included."""
    longest: int
    """Bytes of a line beyond which it is rejected unread."""
    growing: bool
    """True if a file may be read while it is written. Otherwise an incomplete file is an EnvironmentProblem."""

    def files(self, path: Place) -> list[ArchiveFile]:
        """The files of `path` in their order. Raises EnvironmentProblem for a missing file or folder, ConfigProblem for a
        file of another kind."""

    def lines(self, stream: Iterable[bytes]) -> Iterator[bytes]:
        """The lines of `stream` with their line ends; lines of one record are joined."""

    def record(self, file: ArchiveFile, line: bytes, number: Number) -> ArchiveRecord | ValueError | None:
        """The record of a line, or an error; None for a line without a record. In a growing file a line without a line
        end that gives a ValueError is still being written."""

    def frame(self, file: ArchiveFile, chunk: pa.RecordBatch, first: int) -> pa.RecordBatch:
        """The raw batch of rows from a Parquet file. `first` is the number of the first row in the file, from 1."""

    def refuse(self, file: ArchiveFile, schema: pa.Schema) -> None:
        """Raise ConfigProblem for a Parquet file with unsupported columns."""


class ArchiveFormat:
    """`FileFormat` of archives: each line is a JSON object with a record."""

    suffixes: tuple[str, ...] = SUFFIXES
    divisible = growing = True
    deep = False
    longest = LONGEST

    def files(self, path: Place) -> list[ArchiveFile]:
        """See `FileFormat.files`: in the order of their names."""
        return sorted(find_files(path, self.suffixes))

    def lines(self, stream: Iterable[bytes]) -> Iterator[bytes]:
        return iter(stream)

    def record(self, _: ArchiveFile, line: bytes, __: Number) -> ArchiveRecord | ValueError | None:
        text = line.strip()
        if not text:
            return None
        try:
            return parse_line(text)
        except ValueError as error:
            return error

    def frame(self, _: ArchiveFile, chunk: pa.RecordBatch, __: int) -> pa.RecordBatch:
        frame = chunk.select(RAW.names).cast(RAW)
        at = RAW.get_field_index("timestamp")
        return frame.set_column(at, RAW.field(at), null_out_of_range(frame.column(at)))

    def refuse(self, file: ArchiveFile, schema: pa.Schema) -> None:
        if missing := set(RAW.names) - set(schema.names):
            raise ConfigProblem(f"{file.path} is not an archive: it lacks the column(s) {', '.join(sorted(missing))}.")


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
        if before is None or not self._growing or _is_replaced(before, file, at):
            return 0, 0
        return at, lines

    def end(self, file: ArchiveFile, at: int, lines: int) -> None:
        """Store that `file`, with the size from its listing, was read up to this position."""
        self._left[file.label] = (file, at, lines)


def _is_replaced(before: ArchiveFile, file: ArchiveFile, at: int) -> bool:
    return before.stamp[0] != file.stamp[0] or file.size < at or file.name.endswith(PACKED)


class ArchiveReader:
    """Reads new content of files, up to the size from their listing."""

    def __init__(self, form: FileFormat, put: PutRecord, put_frame: PutFrame, stop: Stop) -> None:
        self._form, self._put, self._put_frame, self._stop = form, put, put_frame, stop
        self._progress = FileProgress(growing=form.growing)

    def read(self, file: ArchiveFile) -> None:
        """Read new content of `file`."""
        begun = self._progress.begin(file)
        if begun is None:
            return
        try:
            at, lines = self._read_from(file, *begun)
        except FileNotFoundError:
            return
        except OSError as error:
            raise unusable_error(file, error) from error
        if not self._stop.is_set():
            self._progress.end(file, at, lines)

    def _read_from(self, file: ArchiveFile, at: int, lines: int) -> tuple[int, int]:
        if file.name.endswith(".parquet"):
            self._read_parquet(file)
            return 0, 0
        if file.name.endswith(AVRO):
            from .avro_files import read_messages  # noqa: PLC0415 - an optional package

            return self._read_lines(file, read_messages(file, self._form.longest), 0, 0)
        if file.name.endswith(".gz"):
            with file.path.open("rb") as packed, gzip.open(packed) as stream:
                return self._read_lines(
                    file, read_compressed(self._read_bounded(stream), file, growing=self._form.growing), 0, 0
                )
        with file.path.open("rb") as stream:
            stream.seek(at)
            return self._read_lines(file, self._read_bounded(stream, file.size - at), at, lines)

    def _read_bounded(self, stream: LineStream, size: int | None = None) -> Iterator[bytes]:
        return read_bounded(stream, self._form.longest, size)

    def _read_lines(self, file: ArchiveFile, stream: Iterator[bytes], at: int, lines: int) -> tuple[int, int]:
        """Read the lines of `stream`. Returns the start of the next unread line (byte position, lines before it)."""
        for line in self._form.lines(stream):
            if self._stop.is_set():
                break
            record = read_record(self._form, file, line, partial(int, lines + 1))
            if isinstance(record, ValueError):
                if self._form.growing and not line.endswith(b"\n"):
                    log_unfinished(file, lines + 1)
                    break
                record = unreadable_record(file.label, lines + 1, line.strip(), record)
            if record is not None:
                self._put(record, file.label)
            at, lines = at + line_size(line), lines + 1
        return at, lines

    def _read_parquet(self, file: ArchiveFile) -> None:
        reader = open_parquet(file, self._form)
        for frame in read_frames(file, reader, self._form, PARQUET_ROWS) if reader else ():
            if self._stop.is_set():
                return
            self._put_frame(frame, file.label)


def read_record(form: FileFormat, file: ArchiveFile, line: bytes, number: Number) -> ArchiveRecord | ValueError | None:
    """See `FileFormat.record`. A ValueError for a line that is too long."""
    if isinstance(line, LongLine):
        return LineTooLong(line.describe(form.longest))
    return form.record(file, line, number)


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
            yield _reject_row(file, first, size, form.longest)
        else:
            yield form.frame(file, slices.unpack(rows), first)
        first += rows.num_rows


def _reject_row(file: ArchiveFile, number: int, size: int, longest: int) -> pa.RecordBatch:
    why = f"the row has {size} bytes of text, more than {longest}, which is {LONGER} times limits.message_bytes"
    gathered = RecordColumns()
    gathered.add(unreadable_record(file.label, number, b"", LineTooLong(why)))
    return gathered.to_batch()
