"""CSV files as lines: a row may go on over several of them, and its place in the file is its place in the order."""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from replicator.domain.errors import ConfigProblem, EnvironmentProblem, Fatal

from ....arrow.dms import COLUMNS, KIND, Dialect
from ..form import Number
from ..listing import ArchiveFile, found_files
from ..records import Record
from .names import Named, named, table_of
from .rows import Rows

SETTLED_SECONDS = 10.0
"""A file is complete once nobody has written to it for so long: DMS itself never writes to a file again."""
BOM = b"\xef\xbb\xbf"
Headers = list[tuple[str, bytes | None]]


class DmsRows:
    """`Form` of CSV files in this dialect."""

    suffixes: tuple[str, ...] = (".csv", ".csv.gz")
    growing = divisible = False
    """What is a line end and what is part of a value, only who reads from the beginning can tell."""

    def __init__(self, dialect: Dialect) -> None:
        self._header, self._rows = dialect.header, Rows(dialect)
        self._known: tuple[ArchiveFile, str, Named, Headers] | None = None

    def files(self, path: str) -> list[ArchiveFile]:
        """See `Form.files`: a table's full load before its changes, both in the order of their names. ConfigProblem for a
        file whose name says neither, and for two of a table with one name."""
        found = sorted(found_files(path, self.suffixes, deep=True), key=lambda f: (named(f.path).first, f.label))
        seen: dict[tuple[str, int], ArchiveFile] = {}
        for file in found:
            _refuse_name(file)
            other = seen.setdefault((table_of(file.path), named(file.path).first), file)
            if other is not file:
                raise ConfigProblem(
                    f"{other.path} and {file.path} are of one table and one time: which comes first is not known",
                    next_step="Rename one of them, or remove it where it is the same file.",
                )
        return found

    def lines(self, stream: Iterable[bytes]) -> Iterator[bytes]:
        """See `Form.lines`."""
        return self._rows.of(stream)

    def record(self, file: ArchiveFile, line: bytes, number: Number) -> Record | None:
        """See `Form.record`. Fatal for a file with more rows than offsets have room for."""
        at = number()
        if self._header and at == 1:
            return None
        topic, name, headers = self._of(file)
        if at >= name.most:
            raise Fatal(f"{file.path} has more than {name.most - 1} rows", next_step="Cut it into files with later times.")
        return Record(topic, 0, name.first + at, name.time, headers, None, _text(line, first=at == 1))

    def _of(self, file: ArchiveFile) -> tuple[str, Named, Headers]:
        """What the records of a file have in common."""
        if self._known is None or self._known[0] != file:
            name = named(file.path)
            headers: Headers = [(KIND, name.kind.encode())]
            if self._header:
                headers.append((COLUMNS, self._first_row(file)))
            self._known = (file, table_of(file.path), name, headers)
        return self._known[1:]

    def _first_row(self, file: ArchiveFile) -> bytes:
        opened = gzip.open if file.name.endswith(".gz") else Path.open
        try:
            with opened(file.path, "rb") as stream:
                return _text(next(self.lines(stream), b""), first=True)
        except OSError as error:
            raise EnvironmentProblem(f"The file {file.path} cannot be read: {error.strerror or error}.") from error


def _refuse_name(file: ArchiveFile) -> None:
    """Raise ConfigProblem for a folder that is no table's name."""
    try:
        table_of(file.path).encode()
    except UnicodeEncodeError:
        raise ConfigProblem(
            f"{str(file.path)!a} has a name that is not UTF-8", next_step="Rename it, or move it to another place."
        ) from None


def settles_in(file: ArchiveFile) -> float:
    """Seconds from now until the file counts as complete; 0 or less when it does."""
    return SETTLED_SECONDS - (time.time() - file.stamp[1] / 1e9)


def _text(line: bytes, *, first: bool) -> bytes:
    """A row without its end, and the first without the mark that some programs begin a file with."""
    text = line.removesuffix(b"\n").removesuffix(b"\r")
    return text.removeprefix(BOM) if first else text
