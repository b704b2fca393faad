"""The connector that wrote the records of a frame, by their source blocks."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pyarrow as pa

from replicator.domain.connectors import Connector

from ...arrow.record_errors import UNREADABLE
from ..json.schema_frames import split_record


class ConnectorOrigin(msgspec.Struct, gc=False):
    """The part of a `source` block that names the connector."""

    connector: str | None = None
    version: str | None = None
    name: str | None = None
    snapshot: str | bool | None = None


class ConnectorEvent(msgspec.Struct, gc=False):
    """The part of a change event that names the connector, and shows how it is set."""

    source: ConnectorOrigin | None = None
    transaction: msgspec.Raw = msgspec.Raw()


STREAMED = (None, False, "false")
"""What `source.snapshot` is in records of the log. Those of a snapshot never have a transaction."""


_event = msgspec.json.Decoder(ConnectorEvent, strict=False).decode


def find_connector(raw: pa.Table, depth: int, read: Callable[[pa.Table], pa.Table] = lambda raw: raw) -> Connector | None:
    """See `ports.decoder.ReadsTransactionMarks.connector`. Looks at the last record of each topic, until one names it.
    `read` makes JSON of a frame, without the records that it cannot read."""
    last = {topic: row for row, topic in enumerate(raw["topic"].to_pylist())}
    for row in sorted(last.values(), reverse=True):
        text = next(iter(read(raw.slice(row, 1))["value"].to_pylist()), None)  # No row of a record that cannot be read.
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
