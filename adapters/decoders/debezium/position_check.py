"""Whether the records of a table say where in their source's log they are, and what of it."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from ...arrow.record_errors import UNREADABLE
from ..json.schema_frames import split_record
from .positions import has_position
from .records import SourceBlock

SEEN = 200
"""Records that are looked at before it is said that none has a place."""


class PositionEvent(msgspec.Struct, gc=False):
    """What tells the place of a change."""

    op: str | None = None
    source: SourceBlock | None = None


_event = msgspec.json.Decoder(PositionEvent).decode


BY_COMMIT = ("postgresql", "oracle", "sqlserver")
"""Connectors whose changes begin their place in the log with their commit's (`sequence`)."""


def check_positions(values: pa.ChunkedArray, depth: int) -> tuple[bool, bool]:
    """Whether some record has a log position, or none can be read: those are rejected one by one, each with its reason. And
    whether the position begins with that of the commit."""
    readable = 0
    for text in (value.as_py() for value in values if value.is_valid):
        try:
            event = _event(split_record(text, depth)[1])
        except UNREADABLE:
            continue
        if event.source is not None and has_position(event.source, event.op):
            return True, event.source.connector in BY_COMMIT
        readable += 1
        if readable == SEEN:
            break
    return readable == 0, False
