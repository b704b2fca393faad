"""What the lines of files are: the one thing in which kinds of files differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from .listing import SUFFIXES, ArchiveFile, found_files
from .records import Record, parse

Number = Callable[[], int]
"""The number of a line in its file, from 1; to find it may take reading."""


class Form(Protocol):
    """Files of one kind. Travels to executors by pickle."""

    suffixes: tuple[str, ...]
    """How the names of such files end; others are passed over."""
    divisible: bool
    """True when a file can be read from the middle: a line end is where a record ends."""
    growing: bool
    """True when a file is read while it is written; otherwise one that is not whole is an EnvironmentProblem."""

    def files(self, path: str) -> list[ArchiveFile]:
        """The files of `path` (a file, a folder, a glob) in their order. EnvironmentProblem when a file or folder is not
        there, ConfigProblem for a file that is of another kind."""

    def lines(self, stream: Iterable[bytes]) -> Iterator[bytes]:
        """The lines of `stream` with their ends, each with as many that follow as belong to it."""

    def record(self, file: ArchiveFile, line: bytes, number: Number) -> Record | ValueError | None:
        """The record of a line, or why it is none; None for a line that stands for nothing. A line without its end that
        gives a ValueError is still being written."""


class RecordedTopics:
    """`Form` of archives: a JSON object per line says what record it is."""

    suffixes: tuple[str, ...] = SUFFIXES
    divisible = growing = True

    def files(self, path: str) -> list[ArchiveFile]:
        """See `Form.files`: in the order of their names."""
        return sorted(found_files(path, self.suffixes))

    def lines(self, stream: Iterable[bytes]) -> Iterator[bytes]:
        """See `Form.lines`."""
        return iter(stream)

    def record(self, _: ArchiveFile, line: bytes, __: Number) -> Record | ValueError | None:
        """See `Form.record`."""
        text = line.strip()
        if not text:
            return None
        try:
            return parse(text)
        except ValueError as error:
            return error
