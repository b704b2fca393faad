"""Lines of files of text."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from typing import IO, BinaryIO, cast

from replicator.domain.errors import EnvironmentProblem

from ..avro import AVRO, messages_in
from ..form import Form
from ..lines import bounded
from ..listing import ArchiveFile
from ..reading import whole

BOM = b"\xef\xbb\xbf"


def first_row(form: Form, file: ArchiveFile) -> bytes:
    """The first row of a file of text, empty where it has none. EnvironmentProblem when it cannot be read."""
    return text_of(next(lines_of(form, file), b""), first=True)


def lines_of(form: Form, file: ArchiveFile) -> Iterator[bytes]:
    """The lines of a file of text with their ends, or the messages of an Avro file. EnvironmentProblem when it cannot be
    read, or is not whole."""
    try:
        if file.name.endswith(AVRO):
            yield from messages_in(file, form.longest)
            return
        with file.path.open("rb") as stored, _plain(file, stored) as stream:
            yield from form.lines(whole(bounded(stream, form.longest), file, growing=False))
    except OSError as error:
        raise EnvironmentProblem(f"The file {file.path} cannot be read: {error.strerror or error}.") from error


def _plain(file: ArchiveFile, stored: BinaryIO) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(stored)) if file.name.endswith(".gz") else stored


def text_of(line: bytes, *, first: bool) -> bytes:
    """A row without its end, and the first without the mark that some programs begin a file with."""
    text = line.removesuffix(b"\n").removesuffix(b"\r")
    return text.removeprefix(BOM) if first else text
