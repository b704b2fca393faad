"""Archive lines to records, and records that stand for unreadable lines."""

from __future__ import annotations

import binascii
from base64 import b64decode
from typing import Annotated, NamedTuple, TypeAlias

import msgspec

from replicator.domain.change import ERROR_HEADER
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.position import TopicPartition
from replicator.domain.time_bounds import FIRST_MS, LAST_MS

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
