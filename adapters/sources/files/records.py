"""Lines of files, and their records."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple, Protocol, TypeAlias

import msgspec
import pyarrow as pa

from replicator.domain.change import ERROR_HEADER, RAW
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.out_of_range import FIRST_MS, LAST_MS
from replicator.domain.position import TopicPartition

# Archive lines to records, and records that stand for unreadable lines.

PSEUDO_TOPIC = "archive:"
"""Topic prefix of such records. The file's path within the archive follows; the offset is the line number."""


class ArchiveBytes(msgspec.Struct):
    """Bytes that are not UTF-8 text."""

    base64: str


Value: TypeAlias = str | ArchiveBytes | None
Offset = Annotated[int, msgspec.Meta(ge=0, lt=2**63 - 1)]


class ArchiveLine(msgspec.Struct):
    """A line of an archive (the public contract's archive format)."""

    topic: Annotated[str, msgspec.Meta(min_length=1)]
    partition: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
    offset: Offset
    key: Value
    value: Value
    timestamp: int | tuple[int, int] | None = None
    headers: list[tuple[str, Value]] | None = None


class ArchiveRecord(NamedTuple):
    """One record, with fields in the order of `domain.change.RAW`."""

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    headers: list[tuple[str, bytes | None]] | None
    key: bytes | None
    value: bytes | None

    @property
    def place(self) -> TopicPartition:
        """The record's partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """Bytes of key and value."""
        return len(self.key or b"") + len(self.value or b"")


class RecordColumns:
    """Records by column. A tuple per record would be visited by Python's garbage collector again and again."""

    def __init__(self) -> None:
        self._columns: list[list[Any]] = [[] for _ in RAW]

    def __len__(self) -> int:
        return len(self._columns[0])

    def add(self, record: ArchiveRecord) -> None:
        """Add a record."""
        for column, value in zip(self._columns, record, strict=True):
            column.append(value)

    def to_batch(self) -> pa.RecordBatch:
        """All records in order."""
        arrays = [pa.array(column, field.type) for column, field in zip(self._columns, RAW, strict=True)]
        return pa.record_batch(arrays, schema=RAW)


_decoder = msgspec.json.Decoder(ArchiveLine)


def parse_line(line: bytes) -> ArchiveRecord:
    """The record of `line`. Raises ValueError for an invalid line; its text contains no value of the row."""
    try:
        read = _decoder.decode(line)
        headers = None if read.headers is None else [(name, _to_bytes(value)) for name, value in read.headers]
        return ArchiveRecord(
            read.topic,
            read.partition,
            read.offset,
            _to_time(read.timestamp),
            headers,
            _to_bytes(read.key),
            _to_bytes(read.value),
        )
    except (msgspec.MsgspecError, UnicodeDecodeError, binascii.Error) as error:
        raise ValueError(f"not a record of an archive: {error}") from None


def _to_bytes(value: Value) -> bytes | None:
    if isinstance(value, str):
        return value.encode()
    return None if value is None else b64decode(value.base64, validate=True)


def _to_time(timestamp: int | tuple[int, int] | None) -> int | None:
    # A Kafka timestamp of type 0 means that there is no timestamp.
    if isinstance(timestamp, tuple):
        timestamp = timestamp[1] if timestamp[0] else None
    return timestamp if timestamp is not None and FIRST_MS <= timestamp <= LAST_MS else None


class LineTooLong(ValueError):
    """A line that is longer than allowed."""


def unreadable_record(label: str, number: int, line: bytes, why: ValueError) -> ArchiveRecord:
    """The record that carries an unreadable line to the dead letters. Its event id names file and line."""
    code = RejectCode.TOO_LARGE if isinstance(why, LineTooLong) else RejectCode.MALFORMED
    reject = Reject(code, f"{label} line {number}: {why}")
    return ArchiveRecord(PSEUDO_TOPIC + label, 0, number, None, [(ERROR_HEADER, str(reject).encode())], None, line)


# Lines of files, with limited length.

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
