"""Avro bodies to values, with limits against hostile bytes.

The schema must be checked before: not recursive, no items without bytes, and limited nesting.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from io import BytesIO
from typing import Any

from fastavro import schemaless_reader

from replicator.domain.errors import RejectCode

from ...arrow.record_errors import ValueMisfit

FREE_BYTES = 64 * 1024
"""Size up to which a record needs no limit: an item of an array or map takes at least a byte, so there are few."""
READS, READS_PER_COLUMN = 50_000, 100
"""The most reads from a longer record: one for each byte of a number and for each text. A value needs few reads."""
FAULTS = (EOFError, IndexError, KeyError, ValueError, OverflowError, TypeError, MemoryError, StopIteration, struct.error)
"""Errors of fastavro for bytes that are not a record."""


class _CountedBytes(BytesIO):
    """Bytes with a limited number of reads. Every object that is built from them costs at least one."""

    def __init__(self, data: bytes, reads: int) -> None:
        super().__init__(data)
        self.left = reads

    def read(self, size: int | None = -1, /) -> bytes:
        """Raises ValueMisfit after too many calls."""
        self.left -= 1
        if self.left < 0:
            raise ValueMisfit(RejectCode.TOO_LARGE, "it holds more values than a record may have")
        return super().read(size)


def read_datum(data: bytes, schema: Any, columns: int | None, *, named: bool = False) -> tuple[Any, bytes]:
    """The value in `data` for the parsed `schema`, and the bytes after it. `columns`: the limit for schemas whose array
    items may be much larger than their bytes; None for others. `named`: include the names of union branches. Raises
    ValueMisfit for too many values, and one of FAULTS for bytes that do not fit the schema."""
    stream = _open_stream(data, columns)
    found = schemaless_reader(stream, schema, None, return_record_name=named)
    return found, data[stream.tell() :]


def read_data(block: bytes, count: int, schema: Any, columns: int | None) -> Iterator[Any]:
    """`count` consecutive values that fill `block`, each as from `read_datum`. Raises the same errors, and EOFError for
    bytes after the last value."""
    stream = _open_stream(block, columns)
    for _ in range(count):
        if isinstance(stream, _CountedBytes):
            stream.left = _max_reads(columns)
        yield schemaless_reader(stream, schema, None)
    if stream.tell() < len(block):
        raise EOFError("there are bytes behind the last value")


def _open_stream(data: bytes, columns: int | None) -> BytesIO:
    long = columns is not None and len(data) > FREE_BYTES
    return _CountedBytes(data, _max_reads(columns)) if long else BytesIO(data)


def _max_reads(columns: int | None) -> int:
    return READS + READS_PER_COLUMN * (columns or 0)
