"""What the lines of files are: the one thing in which kinds of files differ."""

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
"""With the default of limits.message_bytes."""
Number = Callable[[], int]
"""The number of a line in its file, from 1; to find it may take reading."""


class FileFormat(Protocol):
    """Files of one kind. Travels to executors by pickle."""

    suffixes: tuple[str, ...]
    """How the names of such files end; others are passed over."""
    divisible: bool
    """True when a file can be read from the middle: a line end is where a record ends."""
    deep: bool
    """True when the folders in a folder belong to it."""
    longest: int
    """Bytes of a line beyond which it is rejected unread."""
    growing: bool
    """True when a file is read while it is written; otherwise one that is not whole is an EnvironmentProblem."""

    def files(self, path: Place) -> list[ArchiveFile]:
        """The files of `path` in their order. EnvironmentProblem when a file or folder is not
        there, ConfigProblem for a file that is of another kind."""

    def lines(self, stream: Iterable[bytes]) -> Iterator[bytes]:
        """The lines of `stream` with their ends, each with as many that follow as belong to it."""

    def record(self, file: ArchiveFile, line: bytes, number: Number) -> ArchiveRecord | ValueError | None:
        """The record of a line, or why it is none; None for a line that stands for nothing. In a growing file a line without
        its end that gives a ValueError is still being written."""

    def frame(self, file: ArchiveFile, chunk: pa.RecordBatch, first: int) -> pa.RecordBatch:
        """The raw batch of some rows of a Parquet file, the first of which has that number in it, from 1."""

    def refuse(self, file: ArchiveFile, schema: pa.Schema) -> None:
        """Raise ConfigProblem for a Parquet file with columns that this form cannot have."""


class ArchiveFormat:
    """`FileFormat` of archives: a JSON object per line says what record it is."""

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
