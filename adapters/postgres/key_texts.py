"""Key values of a target as text that PostgreSQL can read."""

from __future__ import annotations

from datetime import date, datetime
from datetime import time as clock_time
from typing import Any

import pyarrow as pa


def to_texts(values: pa.ChunkedArray) -> list[str]:
    """Each value as text; no value may be null."""
    return [_to_text(value) for value in values.to_pylist()]


def _to_text(value: Any) -> str:
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    if isinstance(value, date | datetime | clock_time):
        return value.isoformat()
    return str(value)
