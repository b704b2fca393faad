"""Check for log positions in the records of a table."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from ...arrow.record_errors import UNREADABLE
from ..json.schema_frames import split_record
from .positions import has_position
from .records import SourceBlock

SEEN = 200
"""Records that are examined before a table counts as one without log positions."""


class PositionEvent(msgspec.Struct, gc=False):
    """The fields of a change event with its log position."""

    op: str | None = None
    source: SourceBlock | None = None


_event = msgspec.json.Decoder(PositionEvent).decode


BY_COMMIT = ("postgresql", "oracle", "sqlserver")
"""Connectors whose sequences begin with the position of the commit (see `sequence`)."""


def check_positions(values: pa.ChunkedArray, depth: int) -> tuple[bool, bool]:
    """Two flags. First: some record has a log position, or no record is readable (those are rejected one by one, with
    their errors). Second: the position begins with that of the commit."""
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
