"""Bytes to a record, however hostile they are."""

from __future__ import annotations

from typing import Any

from replicator.domain.errors import RejectCode

from ...arrow.avro import FAULTS, datum
from ...arrow.json.faults import Unfit
from ...arrow.json.limits import Limits
from .schema import RECORD

LONG_BYTES = 10


def record_of(data: bytes, limits: Limits) -> dict[str, Any]:
    """The record, values of images as (branch, value) or None. Raises Unfit for bytes that are no record, or one with more
    values than `limits` allow."""
    return with_rest(data, limits)[0]


def with_rest(data: bytes, limits: Limits) -> tuple[dict[str, Any], bytes]:
    """The record, and the bytes of the number behind it. Raises as `record_of`."""
    try:
        record, rest = datum(data, RECORD, limits.columns, named=True)
    except Unfit:
        raise
    except FAULTS:
        raise Unfit(RejectCode.MALFORMED, "it is no Avro record of DTS, or it is cut short") from None
    if rest and not _is_long(rest):
        raise Unfit(RejectCode.MALFORMED, f"it goes on for {len(rest)} bytes behind its record, which are no bornTimestamp")
    return dict(record), rest


def _is_long(rest: bytes) -> bool:
    """One number: all its bytes but the last have the highest bit set."""
    return len(rest) <= LONG_BYTES and rest[-1] < 0x80 and all(byte >= 0x80 for byte in rest[:-1])
