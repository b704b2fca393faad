"""Options that all decoders share: record limits, and lookup of options by table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field

from replicator.domain.errors import Reject, RejectCode
from replicator.domain.patterns import find_best

T = TypeVar("T")


class RecordLimits(BaseModel):
    """Limits of one record; a larger record is rejected as TOO_LARGE. Limits of other components are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)

    message_bytes: int = Field(default=16 * 1024 * 1024, ge=1)
    depth: int = Field(default=64, ge=2, le=500)
    columns: int = Field(default=4096, ge=1)


def find_table_entry(by_table: Mapping[str, T], table: str) -> T | None:
    """The entry that applies to the table (`domain.patterns.find_best`)."""
    pattern = find_best(by_table, table)
    return None if pattern is None else by_table[pattern]


def reject_too_long(values: pa.Array, limits: RecordLimits) -> tuple[pa.Array, dict[int, Reject]]:
    """`values` with null for those that are longer than allowed, and their rejects by index."""
    limit = limits.message_bytes
    large = pc.fill_null(pc.greater(pc.binary_length(values), limit), False)
    if not pc.any(large).as_py():
        return values, {}
    reject = Reject(RejectCode.TOO_LARGE, f"the record is longer than the {limit} bytes allowed (limits.message_bytes)")
    return pc.if_else(large, None, values), dict.fromkeys(pc.indices_nonzero(large).to_pylist(), reject)
