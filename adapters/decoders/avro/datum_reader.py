"""Avro bodies to values, however hostile their bytes are.

Schemas must have been looked at: not recursive, without items that take no bytes, nested a bounded number of times."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from io import BytesIO
from typing import Any

from fastavro import schemaless_reader

from replicator.domain.errors import RejectCode

from ...arrow.record_errors import ValueMisfit

FREE_BYTES = 64 * 1024
"""No item of an array or map takes less than a byte, so a record of this size makes few objects whatever it counts."""
READS, READS_PER_COLUMN = 50_000, 100
"""How often a longer record may be read from: for each byte of a number and for each text, and a value has few of both."""
FAULTS = (EOFError, IndexError, KeyError, ValueError, OverflowError, TypeError, MemoryError, StopIteration, struct.error)
"""What fastavro raises of bytes that are no record."""


class _CountedBytes(BytesIO):
    """Bytes that may be read from a number of times: each object that is made of them costs a read or more."""

    def __init__(self, data: bytes, reads: int) -> None:
        super().__init__(data)
        self.left = reads

    def read(self, size: int | None = -1, /) -> bytes:
        """Raises Unfit after too many calls."""
        self.left -= 1
        if self.left < 0:
            raise ValueMisfit(RejectCode.TOO_LARGE, "it holds more values than a record may have")
        return super().read(size)


def read_datum(data: bytes, schema: Any, columns: int | None, *, named: bool = False) -> tuple[Any, bytes]:
    """What `data` holds as `schema` (parsed), and the bytes behind it. `columns`: how many a record may have, where items of
    arrays may be much larger than their bytes; None where they cannot. `named`: branches of unions are named. Raises Unfit
    for more values than that, one of FAULTS for bytes that are no such datum."""
    stream = _open_stream(data, columns)
    found = schemaless_reader(stream, schema, None, return_record_name=named)
    return found, data[stream.tell() :]


def read_data(block: bytes, count: int, schema: Any, columns: int | None) -> Iterator[Any]:
    """So many values that follow each other and fill `block`, each as of `read_datum`. Raises as that, and EOFError for
    bytes behind the last one."""
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
