"""Archive files to records, continuing from the last read position."""

from __future__ import annotations

import gzip
import logging
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from replicator.domain.errors import EnvironmentProblem
from replicator.ports.frames import Stop

from .archive_records import ArchiveRecord, LineTooLong, unreadable_record
from .file_format import AVRO, FileFormat, Number
from .file_list import ArchiveFile
from .line_reader import LineStream, LongLine, line_size, read_bounded
from .parquet_rows import read_frames

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
