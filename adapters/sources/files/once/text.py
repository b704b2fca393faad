"""Lines of files of text."""

from __future__ import annotations

import gzip
from typing import IO, BinaryIO, cast

from replicator.domain.errors import EnvironmentProblem

from ..form import Form
from ..lines import bounded
from ..listing import ArchiveFile

BOM = b"\xef\xbb\xbf"


def first_row(form: Form, file: ArchiveFile) -> bytes:
    """The first row of a file of text, empty where it has none. EnvironmentProblem when it cannot be read."""
    try:
        with file.path.open("rb") as stored, _plain(file, stored) as stream:
            return text_of(next(form.lines(bounded(stream, form.longest)), b""), first=True)
    except OSError as error:
        raise EnvironmentProblem(f"The file {file.path} cannot be read: {error.strerror or error}.") from error


def _plain(file: ArchiveFile, stored: BinaryIO) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(stored)) if file.name.endswith(".gz") else stored


def text_of(line: bytes, *, first: bool) -> bytes:
    """A row without its end, and the first without the mark that some programs begin a file with."""
    text = line.removesuffix(b"\n").removesuffix(b"\r")
    return text.removeprefix(BOM) if first else text
