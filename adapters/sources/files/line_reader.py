"""Lines of files, with limited length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

KEPT = 4_096
"""Bytes that are kept of a line that is too long."""
BLOCK = 1 << 20
LONGER = 4
"""The maximum length of a line relative to a record: it contains key and value as escaped text."""


class LineStream(Protocol):
    """A file, possibly unpacked while it is read."""

    def readline(self, size: int, /) -> bytes:
        """The next line, or its next `size` bytes; empty at the end."""


class LongLine(bytes):
    """The beginning of a line that is too long, with its line end if it has one. `size`: the size of the line."""

    size: int

    @classmethod
    def from_text(cls, text: bytes, size: int) -> LongLine:
        """From a line with this size, or its first part."""
        made = cls(text[:KEPT].removesuffix(b"\n") + (b"\n" if text.endswith(b"\n") else b""))
        made.size = size
        return made

    def describe(self, longest: int) -> str:
        """The reason why the line is not read."""
        return (
            f"the line has {self.size} bytes, more than {longest}, which is {LONGER} times limits.message_bytes: "
            f"its first {KEPT} bytes are kept"
        )


def line_size(line: bytes) -> int:
    """The bytes of a line in its file."""
    return line.size if isinstance(line, LongLine) else len(line)


def read_bounded(stream: LineStream, longest: int, size: int | None = None) -> Iterator[bytes]:
    """The lines of `stream`, or the lines in its next `size` bytes. Lines longer than `longest` are returned as LongLine,
    so that no more is kept in memory. The last line may lack its line end."""
    left = size
    while left is None or left > 0:
        line = stream.readline(longest + 1 if left is None else min(longest + 1, left))
        if len(line) > longest:
            line = _skip_line(stream, line, left)
        if not line:
            return
        left = None if left is None else left - line_size(line)
        yield line


def _skip_line(stream: LineStream, begun: bytes, left: int | None) -> LongLine:
    """Skip the rest of a line that starts with `begun`."""
    count, last = len(begun), begun
    while not last.endswith(b"\n"):
        last = stream.readline(BLOCK if left is None else min(BLOCK, left - count))
        if not last:
            break
        count += len(last)
    return LongLine.from_text(begun[:KEPT] + (b"\n" if last.endswith(b"\n") else b""), count)
