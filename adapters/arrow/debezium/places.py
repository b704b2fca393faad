"""Whether the records of a table say where in their source's log they are, and what of it."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from ..json.faults import UNREADABLE
from ..json.framing import split
from .positions import positioned
from .records import Source

SEEN = 200
"""Records that are looked at before it is said that none has a place."""


class Event(msgspec.Struct, gc=False):
    """What tells the place of a change."""

    op: str | None = None
    source: Source | None = None


_event = msgspec.json.Decoder(Event).decode


BY_COMMIT = ("postgresql", "oracle", "sqlserver")
"""Connectors whose changes begin their place in the log with their commit's (`sequence`)."""


def placed(values: pa.ChunkedArray, depth: int) -> tuple[bool, bool]:
    """Whether some record has a log position, or none can be read: those are rejected one by one, each with its reason. And
    whether the position begins with that of the commit."""
    readable = 0
    for text in (value.as_py() for value in values if value.is_valid):
        try:
            event = _event(split(text, depth)[1])
        except UNREADABLE:
            continue
        if event.source is not None and positioned(event.source, event.op):
            return True, event.source.connector in BY_COMMIT
        readable += 1
        if readable == SEEN:
            break
    return readable == 0, False
