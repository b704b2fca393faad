"""Lines of text files."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from typing import IO, BinaryIO, cast

from replicator.domain.errors import EnvironmentProblem

from ..file_format import AVRO, FileFormat
from ..file_list import ArchiveFile
from ..file_reader import read_compressed
from ..line_reader import read_bounded

BOM = b"\xef\xbb\xbf"


def read_first_row(form: FileFormat, file: ArchiveFile) -> bytes:
    """The first row of a text file, empty if there is none. Raises EnvironmentProblem for an unreadable file."""
    return strip_line(next(read_lines(form, file), b""), first=True)


def read_lines(form: FileFormat, file: ArchiveFile) -> Iterator[bytes]:
    """The lines of a text file with their line ends, or the messages of an Avro file. Raises EnvironmentProblem for an
    unreadable or incomplete file."""
    try:
        if file.name.endswith(AVRO):
            from ..avro_files import read_messages  # noqa: PLC0415 - an optional package

            yield from read_messages(file, form.longest)
            return
        with file.path.open("rb") as stored, _open_plain(file, stored) as stream:
            yield from form.lines(read_compressed(read_bounded(stream, form.longest), file, growing=False))
    except OSError as error:
        raise EnvironmentProblem(f"The file {file.path} cannot be read: {error.strerror or error}.") from error


def _open_plain(file: ArchiveFile, stored: BinaryIO) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(stored)) if file.name.endswith(".gz") else stored


def strip_line(line: bytes, *, first: bool) -> bytes:
    """A row without its line end; the first one also without a byte order mark."""
    text = line.removesuffix(b"\n").removesuffix(b"\r")
    return text.removeprefix(BOM) if first else text
