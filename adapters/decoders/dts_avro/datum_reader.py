"""Bytes to DTS records, with limits against hostile bytes."""

from __future__ import annotations

from typing import Any

from replicator.domain.errors import RejectCode
from replicator.domain.plain_values import format_count

from ...arrow.record_errors import ValueMisfit
from ...arrow.record_limits import RecordLimits
from ..avro.datum_reader import FAULTS, read_datum
from .schema import RECORD

LONG_BYTES = 10


def read_record(data: bytes, limits: RecordLimits) -> dict[str, Any]:
    """The record, with values of images as (branch, value) or None. Raises ValueMisfit for bytes that are not a record,
    and for more values than `limits` allow."""
    return read_with_rest(data, limits)[0]


def read_with_rest(data: bytes, limits: RecordLimits) -> tuple[dict[str, Any], bytes]:
    """The record, and the bytes of the number after it. Raises the same errors as `read_record`."""
    try:
        record, rest = read_datum(data, RECORD, limits.columns, named=True)
    except ValueMisfit:
        raise
    except FAULTS:
        raise ValueMisfit(RejectCode.MALFORMED, "it is no Avro record of DTS, or it is cut short") from None
    if rest and not _is_long(rest):
        raise ValueMisfit(
            RejectCode.MALFORMED, f"it goes on for {format_count(len(rest), 'byte')} behind its record, not a bornTimestamp"
        )
    return dict(record), rest


def _is_long(rest: bytes) -> bool:
    """True for one Avro number: the highest bit is set in all bytes but the last."""
    return len(rest) <= LONG_BYTES and rest[-1] < 0x80 and all(byte >= 0x80 for byte in rest[:-1])
