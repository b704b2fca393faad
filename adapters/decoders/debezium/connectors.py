"""Connector of a frame's records, read from their source blocks."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pyarrow as pa

from replicator.domain.connectors import Connector

from ...arrow.record_errors import UNREADABLE
from ..json.schema_frames import split_record


class ConnectorOrigin(msgspec.Struct, gc=False):
    """The fields of a `source` block that identify the connector."""

    connector: str | None = None
    version: str | None = None
    name: str | None = None
    snapshot: str | bool | None = None


class ConnectorEvent(msgspec.Struct, gc=False):
    """The fields of a change event that identify the connector and its settings."""

    source: ConnectorOrigin | None = None
    transaction: msgspec.Raw = msgspec.Raw()


STREAMED = (None, False, "false")
"""Values of `source.snapshot` in records of the log. Snapshot records never have a transaction."""


_event = msgspec.json.Decoder(ConnectorEvent, strict=False).decode


def find_connector(raw: pa.Table, depth: int, read: Callable[[pa.Table], pa.Table] = lambda raw: raw) -> Connector | None:
    """See `ports.decoder.ReadsTransactionMarks.connector`. Reads the last record of each topic until one names the
    connector. `read` converts a frame to JSON and drops unreadable records."""
    last = {topic: row for row, topic in enumerate(raw["topic"].to_pylist())}
    for row in sorted(last.values(), reverse=True):
        text = next(iter(read(raw.slice(row, 1))["value"].to_pylist()), None)  # `read` may have dropped the row.
        try:
            event = _event(split_record(text, depth)[1]) if text is not None else ConnectorEvent()
        except UNREADABLE:
            continue
        origin = event.source
        if origin is not None and origin.connector and origin.version:
            has_block = bytes(event.transaction) not in (b"", b"null")
            has_metadata = has_block if origin.snapshot in STREAMED else None
            return Connector(origin.connector, origin.version, has_metadata, origin.name or "")
    return None
