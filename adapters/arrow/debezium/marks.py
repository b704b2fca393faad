"""The records of the topic in which Debezium tells where transactions begin and end (`provide.transaction.metadata`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec
import pyarrow as pa

from replicator.domain.moments import FIRST_MS, LAST_MS
from replicator.domain.position import TopicPartition
from replicator.domain.transactions import Mark

from ..json.faults import UNREADABLE
from ..json.framing import split

OF_POSTGRES = re.compile(r"(\d+):\d+")
"""Number of the transaction and log position. The position is another one in each change and each mark."""


class Collection(msgspec.Struct, gc=False):
    """How many changes a transaction made to one table."""

    data_collection: str
    event_count: int


class Value(msgspec.Struct, gc=False):
    """The value of a mark."""

    status: str
    id: str
    data_collections: list[Collection] | None = None
    ts_ms: int | None = None


_value = msgspec.json.Decoder(Value, strict=False).decode


def marks(raw: pa.Table, depth: int) -> Sequence[Mark]:
    """See `ports.decoder.TellsTransactions.marks`."""
    found = []
    columns = (raw[name].to_pylist() for name in ("topic", "partition", "offset", "value"))
    for topic, partition, offset, text in zip(*columns, strict=True):
        try:
            value = _value(split(text, depth)[1]) if text is not None else None
        except UNREADABLE:
            continue
        if value is not None and value.status in ("BEGIN", "END"):
            found.append(_mark(TopicPartition(topic, partition), offset, value))
    return found


def _mark(partition: TopicPartition, offset: int, value: Value) -> Mark:
    events = {c.data_collection: c.event_count for c in value.data_collections or ()}
    inside = value.ts_ms is not None and FIRST_MS <= value.ts_ms <= LAST_MS
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=value.ts_ms or 0) if inside else None
    return Mark(partition, offset, transaction(value.id), value.id, value.status == "END", events, at)


def transaction(name: str) -> str:
    """The transaction as the `_tx` of its changes has it."""
    found = OF_POSTGRES.fullmatch(name)
    return found[1] if found else name
