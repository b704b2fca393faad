"""The interface to kinds of files: how they are listed, and how their lines become records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import pyarrow as pa

from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem
from replicator.domain.time_bounds import null_out_of_range

from .archive_records import ArchiveRecord, parse_line
from .file_list import SUFFIXES, ArchiveFile, Place, find_files
from .line_reader import LONGER

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
