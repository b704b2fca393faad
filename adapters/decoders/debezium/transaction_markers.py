"""Records of Debezium's transaction topic (`provide.transaction.metadata`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec
import pyarrow as pa

from replicator.domain.position import TopicPartition
from replicator.domain.time_bounds import FIRST_MS, LAST_MS
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
    """See `ports.decoder.ReadsTransactionMarks.marks`."""
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
