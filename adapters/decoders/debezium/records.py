"""Source and transaction blocks of a change event, payload readers generated for one schema of one table, and the records
of transactions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any, Literal

import msgspec
import pyarrow as pa

from replicator.domain.change import TIMESTAMP, Op
from replicator.domain.errors import Reject
from replicator.domain.out_of_range import FIRST_MS, LAST_MS, null_out_of_range
from replicator.domain.plain_values import EPOCH
from replicator.domain.position import TopicPartition
from replicator.domain.table import TableSpec
from replicator.domain.transactions import Connector, TransactionMark

from ...arrow import decimals
from ...arrow.record_errors import (
    UNREADABLE,
    DecodedValues,
    ValueMisfit,
    build_or_reject,
    decode_or_reject,
    malformed_reject,
)
from ...arrow.temporal_values import make_lenient
from ...arrow.value_readers import UNSET, ValueReader, choose_objects
from ..json.schema_frames import split_record
from ..options import DebeziumOptions
from .schema import ConnectSchema, find_readers, find_schema_reader, holds_decimals, read_key_schema, read_message_schema


class SourceBlock(msgspec.Struct, gc=False):
    """The fields of a `source` block that order and date a change, for all connectors."""

    connector: str | None = None
    ts_ms: int | None = None
    ts_us: int | None = None
    ts_ns: int | None = None
    sequence: str | None = None
    lsn: int | None = None
    txId: int | str | None = None  # noqa: N815 - the field's own name
    file: str | None = None
    pos: int | None = None
    row: int | None = None
    gtid: str | None = None
    version: str | None = None
    snapshot: str | bool | None = None
    scn: str | int | None = None
    commit_scn: str | int | None = None
    txSeq: str | int | None = None  # noqa: N815 - the field's own name
    commit_lsn: str | None = None
    change_lsn: str | None = None
    event_serial_no: str | int | None = None
    ord: str | int | None = None


def read_event_time(source: SourceBlock) -> int | None:
    """The source time in microseconds since 1970, from the most precise field."""
    if source.ts_us is not None:
        return source.ts_us
    if source.ts_ns is not None:
        return source.ts_ns // 1_000
    return None if source.ts_ms is None else source.ts_ms * 1_000


def read_event_times(sources: Sequence[SourceBlock]) -> pa.Array:
    """The source time of each change; null if it is missing or outside the years 1 to 9999."""
    micros = [s.ts_us for s in sources]
    if None in micros:
        micros = list(map(read_event_time, sources))
    times, _ = build_or_reject(lambda numbers: pa.array(numbers, pa.int64()).view(TIMESTAMP), micros, "source.ts_us")
    return null_out_of_range(times)


class TableOrigin(msgspec.Struct, gc=False):
    """The fields of a `source` block that name the table."""

    connector: str | None = None
    name: str | None = None
    db: str | None = None
    schema: str | None = None
    table: str | None = None
    collection: str | None = None


class RouteProbe(msgspec.Struct, gc=False):
    """The fields of a payload that routing needs."""

    op: str | None = None
    source: TableOrigin | None = None


class TransactionBlock(msgspec.Struct, gc=False):
    """The `transaction` block; old connectors send its numbers as text."""

    id: str | int | None = None
    total_order: int | str | None = None


NO_SOURCE = SourceBlock()
NULL = msgspec.Raw(b"null")


class ChangeReader:
    """Decodes payloads with one schema of one table: the columns of `table` that the schema has.

    `before` and `after` images are objects of `images`; `images.values` returns a column's values. `holds_decimals`:
    records may have numbers for decimals. `row`: the schema of the rows, or None. `telling` and `defaults` are derived
    from it.
    """

    def __init__(
        self, table: TableSpec, nodes: Mapping[str, ValueReader], row: ConnectSchema | None, *, holds_decimals: bool = False
    ) -> None:
        readers = {c.name: nodes[c.name].with_type(c.type) for c in table.columns if c.name in nodes}
        self.table, self.holds_decimals = table, holds_decimals
        self.telling = row.find_telling_columns() if row else {}
        self.defaults = row.defaults() if row else {}
        kind = choose_objects(readers)
        self.images = kind(readers)
        self.keys = kind({k: readers[k] for k in table.keys if k in readers})
        self.old_keys = kind({k: decimals.accept_numbers(node) for k, node in self.keys.nodes.items()})
        wire: Any = self.images.wire | None
        blocks = [("source", SourceBlock | None, None), ("transaction", TransactionBlock | None, None)]
        after = msgspec.defstruct("Change", [("op", str | None, None), *blocks, ("after", wire, None)], gc=False)
        before = msgspec.defstruct("Before", [("before", wire, None)], gc=False)
        self.blank: Any = after()
        self._after: Callable[[bytes], Any] = msgspec.json.Decoder(after).decode
        self._before: Callable[[bytes], Any] = msgspec.json.Decoder(before).decode
        self._key: Callable[[bytes], Any] = msgspec.json.Decoder(self.keys.wire).decode
        self._old_key: Callable[[bytes], Any] = msgspec.json.Decoder(self.old_keys.wire).decode

    def read_changes(self, payloads: list[bytes]) -> DecodedValues:
        """One change per payload with `op`, `source`, `transaction`, `after`; `blank` for unreadable payloads."""
        return decode_or_reject(self._after, payloads, self.blank)

    def find_unreadable_deletes(self, changes: DecodedValues, payloads: list[bytes]) -> dict[int, Reject]:
        """Errors of deletes whose row is unreadable."""
        records, errors = changes
        deletes = [i for i, one in enumerate(records) if one.op == Op.DELETE and i not in errors]
        _, bad = decode_or_reject(self._before, [payloads[i] for i in deletes], None)
        return {deletes[i]: reject for i, reject in bad.items()}

    def read_before(self, payload: bytes) -> Any:
        """The before image of a payload that `read_changes` has read, or None. Raises one of UNREADABLE."""
        return self._before(payload).before

    def read_key(self, text: bytes, depth: int) -> dict[str, Any]:
        """The key columns of a message key, with or without a schema, if present and not null. Raises one of
        UNREADABLE."""
        return _drop_nulls(self.keys, self._key(split_record(text, depth)[1]))

    def read_old_key(self, text: bytes, depth: int) -> dict[str, Any]:
        """The same for headers, with `old_keys`: Connect's usual header converter writes decimals as numbers."""
        return _drop_nulls(self.old_keys, self._old_key(split_record(text, depth)[1]))


def _drop_nulls(keys: Any, key: Any) -> dict[str, Any]:
    values = {k: keys.values([key], k)[0] for k in keys.nodes}
    return {k: v for k, v in values.items() if v is not None and v is not UNSET and v != NULL}


# Cache of payload readers, which are generated for each schema and table.


MAX_READERS = 512


def schema_readers(row: ConnectSchema, *, numeric: bool = False) -> dict[str, ValueReader]:
    """The reader of each column of a row. Raises ValueMisfit for an unknown type."""
    return {f.field or "": find_schema_reader(f, numeric=numeric) for f in row.fields or ()}


class PayloadReaders:
    """The readers of one decoder. An unreadable schema has a reject instead."""

    def __init__(self, options: DebeziumOptions) -> None:
        self._options = options
        self._get_reader = lru_cache(MAX_READERS)(self.make_reader)

    def get_reader(self, schema: bytes | None, table: TableSpec, *, numeric: bool = False) -> ChangeReader | Reject:
        """The reader of payloads with this schema (JSON text), or for None, with the declared columns of `table`.
        `numeric`: decimals may be JSON numbers."""
        return self._get_reader(schema, table, "numeric" if numeric else "plain")

    def get_key_reader(self, schema: bytes | None, table: TableSpec) -> ChangeReader | Reject:
        """The reader of message keys with this schema, for tombstones."""
        return self._get_reader(schema, table, "key")

    def make_reader(
        self, schema: bytes | None, table: TableSpec, kind: Literal["plain", "numeric", "key"]
    ) -> ChangeReader | Reject:
        """The reader of payloads or keys with this schema, or None for the declared columns of `table`."""
        row = None
        if schema is not None:
            if kind == "key":
                key_schema = read_key_schema(schema)
                row, reject = key_schema.struct, key_schema.error
            else:
                message_schema = read_message_schema(schema, self._options.limits)
                row, reject = message_schema.row, message_schema.error
            if row is None:
                return reject or malformed_reject("it is no change event")
        has_decimals = row is not None and holds_decimals(row)
        try:
            nodes = (
                self.declared_readers(table.name)
                if row is None
                else schema_readers(row, numeric=has_decimals and kind != "plain")
            )
            for name, node in nodes.items():
                if name not in table.keys:
                    nodes[name] = make_lenient(node, self._options.reading_of(table.name, name))
            return ChangeReader(table, nodes, row, holds_decimals=has_decimals and kind == "plain")
        except ValueMisfit as error:
            return error.reject

    def declared_readers(self, table: str) -> dict[str, ValueReader]:
        """The readers of the declared columns of `table`; empty if none are declared."""
        return find_readers(table, self._options.columns_of(table) or {}, decimals_are=self._options.decimals)


# Records of Debezium's transaction topic (`provide.transaction.metadata`).


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
    markers = []
    columns = (raw[name].to_pylist() for name in ("topic", "partition", "offset", "value"))
    for topic, partition, offset, text in zip(*columns, strict=True):
        try:
            value = _value(split_record(text, depth)[1]) if text is not None else None
        except UNREADABLE:
            continue
        if value is not None and value.status in ("BEGIN", "END"):
            source = TopicPartition(topic, partition)
            events = {c.data_collection: c.event_count for c in value.data_collections or ()}
            inside = value.ts_ms is not None and FIRST_MS <= value.ts_ms <= LAST_MS
            at = EPOCH + timedelta(milliseconds=value.ts_ms or 0) if inside else None
            of_postgres = OF_POSTGRES.fullmatch(value.id)
            id_ = of_postgres[1] if of_postgres else value.id  # As in the `_tx` of its changes.
            markers.append(TransactionMark(source, offset, id_, value.id, value.status == "END", events, at))
    return markers


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
    connector. `read` converts a frame to JSON."""
    last = {topic: row for row, topic in enumerate(raw["topic"].to_pylist())}
    for row in sorted(last.values(), reverse=True):
        text = read(raw.slice(row, 1))["value"][0].as_py()
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
