"""Records of Debezium's transaction topic (`provide.transaction.metadata`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
import pyarrow as pa

from replicator.domain.connectors import Connector
from replicator.domain.out_of_range import FIRST_MS, LAST_MS
from replicator.domain.position import TopicPartition
from replicator.domain.transactions import TransactionMark

from ...arrow.record_errors import UNREADABLE
from ..json.schema_frames import split_record

OF_POSTGRES = re.compile(r"(\d+):\d+")
"""Transaction number and log position. The position differs in each change and mark."""


class MarkerCollection(msgspec.Struct, gc=False):
    """The number of changes that a transaction made to one table."""

    data_collection: str
    event_count: int


class MarkerValue(msgspec.Struct, gc=False):
    """The value of a transaction mark."""

    status: str
    id: str
    data_collections: list[MarkerCollection] | None = None
    ts_ms: int | None = None


_value = msgspec.json.Decoder(MarkerValue, strict=False).decode


def read_markers(raw: pa.Table, depth: int) -> Sequence[TransactionMark]:
    """See `ports.decoder.DecoderFeatures.read_marks`."""
    found = []
    columns = (raw[name].to_pylist() for name in ("topic", "partition", "offset", "value"))
    for topic, partition, offset, text in zip(*columns, strict=True):
        try:
            value = _value(split_record(text, depth)[1]) if text is not None else None
        except UNREADABLE:
            continue
        if value is not None and value.status in ("BEGIN", "END"):
            found.append(_to_marker(TopicPartition(topic, partition), offset, value))
    return found


def _to_marker(partition: TopicPartition, offset: int, value: MarkerValue) -> TransactionMark:
    events = {c.data_collection: c.event_count for c in value.data_collections or ()}
    inside = value.ts_ms is not None and FIRST_MS <= value.ts_ms <= LAST_MS
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=value.ts_ms or 0) if inside else None
    return TransactionMark(partition, offset, to_transaction_id(value.id), value.id, value.status == "END", events, at)


def to_transaction_id(name: str) -> str:
    """The transaction id as in the `_tx` of its changes."""
    found = OF_POSTGRES.fullmatch(name)
    return found[1] if found else name


# Connector of a frame's records, read from their source blocks.


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
    """See `ports.decoder.DecoderFeatures.find_connector`. Reads the last record of each topic until one names the
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
