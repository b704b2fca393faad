"""Bytes to a record, however hostile they are."""

from __future__ import annotations

import struct
from io import BytesIO
from typing import Any

from fastavro import schemaless_reader

from replicator.domain.errors import RejectCode

from ...arrow.json.faults import Unfit
from ...arrow.json.limits import Limits
from .schema import RECORD

FREE_BYTES = 64 * 1024
"""No item of an array or map takes less than a byte, so a record of this size makes few objects whatever it counts."""
READS, READS_PER_COLUMN = 50_000, 100
"""How often a longer record may be read from: for each byte of a number and for each text, and a value has few of both."""
LONG_BYTES = 10
FAULTS = (EOFError, IndexError, KeyError, ValueError, OverflowError, TypeError, MemoryError, StopIteration, struct.error)
"""What fastavro raises of bytes that are no record."""


class _Counted(BytesIO):
    """Bytes that may be read from a number of times: each object that is made of them costs a read or more."""

    def __init__(self, data: bytes, reads: int) -> None:
        super().__init__(data)
        self._left = reads

    def read(self, size: int | None = -1, /) -> bytes:
        """See `BytesIO.read`. Raises Unfit after too many calls."""
        self._left -= 1
        if self._left < 0:
            raise Unfit(RejectCode.TOO_LARGE, "it holds more values than a record may have")
        return super().read(size)


def record_of(data: bytes, limits: Limits) -> dict[str, Any]:
    """The record, values of images as (branch, value) or None. Raises Unfit for bytes that are no record, or one with more
    values than `limits` allow."""
    stream = BytesIO(data) if len(data) <= FREE_BYTES else _Counted(data, READS + READS_PER_COLUMN * limits.columns)
    try:
        record: Any = schemaless_reader(stream, RECORD, None, return_record_name=True)
    except Unfit:
        raise
    except FAULTS:
        raise Unfit(RejectCode.MALFORMED, "it is no Avro record of DTS, or it is cut short") from None
    rest = data[stream.tell() :]
    if rest and not _is_long(rest):
        raise Unfit(RejectCode.MALFORMED, f"it goes on for {len(rest)} bytes behind its record, which are no bornTimestamp")
    return dict(record)


def _is_long(rest: bytes) -> bool:
    """One number: all its bytes but the last have the highest bit set."""
    return len(rest) <= LONG_BYTES and rest[-1] < 0x80 and all(byte >= 0x80 for byte in rest[:-1])
