"""CSV files as lines: a row may go on over several of them, and its place in the file is its place in the order."""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from replicator.domain.errors import ConfigProblem, EnvironmentProblem, Fatal

from ..files import ArchiveFile, found_files
from ..form import Number
from ..records import Record
from .names import named, table_of

COLUMNS, KIND = "dms.columns", "dms.kind"
SETTLED_SECONDS = 10.0
"""A last line without its end is a row once nothing was added to the file for so long."""
LONGEST_ROW = 64 * 1024 * 1024
"""Bytes from which on a quote that is not closed counts as a character: the row is cut there, for the decoder to reject."""
Headers = list[tuple[str, bytes | None]]


class DmsRows:
    """`Form` of CSV files. `header`: the first row names the columns; `quote`: what may stand around a value with line ends
    in it, doubled inside."""

    suffixes: tuple[str, ...] = (".csv", ".csv.gz")
    divisible = False
    """What is a line end and what is part of a value, only who reads from the beginning can tell."""

    def __init__(self, *, header: bool, quote: str | None) -> None:
        self._header, self._quote = header, (quote or "").encode()
        self._known: dict[Path, tuple[str, int, int, int | None, Headers]] = {}

    def files(self, path: str) -> list[ArchiveFile]:
        """See `Form.files`: a table's full load before its changes, both in the order of their names. ConfigProblem for a
        file whose name says neither, and for two of a table with one name."""
        listed = (_with_age(file) for file in found_files(path, self.suffixes, deep=True))
        found = sorted(listed, key=lambda f: (named(f.path).first, f.label))
        seen: dict[tuple[str, int], ArchiveFile] = {}
        for file in found:
            other = seen.setdefault((table_of(file.path), named(file.path).first), file)
            if other is not file:
                raise ConfigProblem(
                    f"{other.path} and {file.path} are of one table and one time: which comes first is not known",
                    next_step="Rename one of them, or remove it where it is the same file.",
                )
        return found

    def lines(self, stream: Iterable[bytes]) -> Iterator[bytes]:
        """See `Form.lines`: a line ends where as many quotes were closed as opened."""
        if not self._quote:
            yield from stream
            return
        open_row: list[bytes] = []
        size = quotes = 0
        for line in stream:
            quotes += line.count(self._quote)
            if not open_row and not quotes % 2:
                yield line
                quotes = 0
                continue
            open_row.append(line)
            size += len(line)
            if not quotes % 2 or size > LONGEST_ROW:
                yield b"".join(open_row)
                open_row, size, quotes = [], 0, 0
        if open_row:
            # What has not been closed has not been written to its end, though its last line may have.
            yield b"".join(open_row).rstrip(b"\r\n")

    def record(self, file: ArchiveFile, line: bytes, number: Number) -> Record | ValueError | None:
        """See `Form.record`. Fatal for a file with more lines than offsets have room for."""
        at = number()
        if not line.endswith(b"\n") and not _is_settled(file):
            return ValueError("its end is missing")
        text = _text(line)
        if not text or (self._header and at == 1):
            return None
        topic, first, most, moment, headers = self._of(file)
        if at >= most:
            raise Fatal(f"{file.path} has more than {most - 1} lines", next_step="Cut it into files with later times.")
        return Record(topic, 0, first + at, moment, headers, None, text)

    def _of(self, file: ArchiveFile) -> tuple[str, int, int, int | None, Headers]:
        """What the records of a file have in common."""
        if file.path not in self._known:
            name = named(file.path)
            headers: Headers = [(KIND, name.kind.encode())]
            if self._header:
                headers.append((COLUMNS, self._first_row(file)))
            self._known.clear()
            self._known[file.path] = (table_of(file.path), name.first, name.most, name.time, headers)
        return self._known[file.path]

    def _first_row(self, file: ArchiveFile) -> bytes:
        opened = gzip.open if file.name.endswith(".gz") else Path.open
        try:
            with opened(file.path, "rb") as stream:
                first = next(self.lines(stream), b"")
        except OSError as error:
            raise EnvironmentProblem(f"The file {file.path} cannot be read: {error.strerror or error}.") from error
        return _text(first)


def _text(line: bytes) -> bytes:
    """A row without its end, and without the mark that some programs begin a file with."""
    return line.removeprefix(b"\xef\xbb\xbf").rstrip(b"\r\n")


def _with_age(file: ArchiveFile) -> ArchiveFile:
    """The file, with what is known of its last line: once it is settled, it is another file, to be read on. Of a compressed
    one its format says where it ends."""
    settled = file.name.endswith(".gz") or time.time() - file.stamp[1] / 1e9 >= SETTLED_SECONDS
    return replace(file, stamp=(*file.stamp, int(settled)))


def _is_settled(file: ArchiveFile) -> bool:
    return bool(file.stamp[2])
