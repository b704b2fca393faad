"""Routing of records to tables, table specifications, and envelopes. Records are grouped by schema bytes; the source block
names the table, and the key's schema its key."""

from __future__ import annotations

import string
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from operator import attrgetter
from typing import Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import refuse_frame_names
from replicator.domain.errors import ConfigProblem, Fatal, Reject
from replicator.domain.table import Column, TableSpec
from replicator.ports.decoder import ROUTE

from ...arrow.frame_slices import Part, map_slices, select_records
from ...arrow.record_errors import (
    UNREADABLE,
    ValueMisfit,
    build_or_reject,
    decode_or_reject,
    malformed_reject,
    reject_too_long,
    unreadable_reject,
)
from ..common.pipeline import TOMBSTONE, Outcome, build_routes
from ..json.headers import find_read_errors
from ..json.schema_frames import (
    CachedFrames,
    SchemaGroup,
    build_envelope,
    build_envelopes,
    decode_group,
    extract_schema,
    find_prefix,
    guess_format,
    split_record,
)
from ..options import DebeziumOptions
from .documents import ID, has_documents, refuse_undeclared
from .records import PayloadReaders, RouteProbe, SourceBlock, TableOrigin, TransactionBlock, read_event_times, schema_readers
from .schema import FLATTENED, NO_KEY, ConnectSchema, KeySchema, MessageSchema, read_key, read_keys, read_message_schema
from .sequence import ELEMENTS, SequenceFacts, check_positions, order_changes

MAX_SCHEMAS = 4096
BARE = "bare"
NO_TABLE = malformed_reject("its source block names no table")


class DebeziumRouter:
    """Routes frames and caches schemas. `once` is shared with the decoder of the same frames."""

    def __init__(self, options: DebeziumOptions, once: CachedFrames) -> None:
        self._options, self._once = options, once
        self._results = RouteResults(options)
        self._read_schema = lru_cache(MAX_SCHEMAS)(partial(read_message_schema, limits=options.limits))

    def route(self, raw: pa.Table) -> pa.Table:
        self._once.clear()
        return map_slices(raw, ROUTE, self._route_slice)

    def read_schema(self, raw: bytes) -> MessageSchema:
        """The message schema of this JSON text."""
        return self._read_schema(raw)

    def last_key(self, table: str, fingerprint: str) -> KeySchema:
        """The last key of records with that fingerprint; without names if there was none."""
        return self._results.last_key(table, fingerprint)

    def read_key(self, text: bytes) -> KeySchema:
        """The key schema of this JSON text of a message key."""
        return read_key(text, self._options.limits.depth)

    def _route_slice(self, raw: pa.RecordBatch) -> pa.Table:
        values, topics = raw.column("value"), raw.column("topic")
        values, large = reject_too_long(values, self._options.limits)
        kinds = [NOTHING] * len(values)
        frames = self._once.find(values)
        for group in frames.groups:
            rows = range(len(values)) if group.rows is None else group.rows
            for index, kind in zip(rows, self._route_group(group, rows, values, topics), strict=True):
                kinds[index] = kind
        for index, error in (frames.errors | large | find_read_errors(raw)).items():
            kinds[index] = get_kind(error=error)

        # The kind of a value and the key decide, so each pair of them is routed once, unless tombstones are deletes.
        keys = read_keys(raw.column("key"), self._options.limits.depth)
        pairs = list(zip(kinds, keys, strict=True))
        distinct = {pair: code for code, pair in enumerate(dict.fromkeys(pairs))}
        self._results.note_keys(distinct)
        if self._options.any_tombstone_deletes:
            return build_routes(
                [self._results.route_record(*row) for row in zip(kinds, keys, topics.to_pylist(), strict=True)]
            )
        few = build_routes([self._results.route_record(*pair, "") for pair in distinct])
        codes = [0] * len(pairs) if len(distinct) == 1 else list(map(distinct.__getitem__, pairs))
        return few.take(pa.array(codes, pa.int64()))

    def _route_group(self, group: SchemaGroup, rows: Sequence[int], values: pa.Array, topics: pa.Array) -> list[ValueKind]:
        if group.schema is None:
            return self._route_without_schema(group.payloads(), rows, topics)
        schema = self.read_schema(group.schema)
        if schema.row is None:
            return [get_kind(ignored=schema.ignored, error=schema.error)] * len(rows)
        if schema.plain_rows and group.payload_slices is not None:
            # If every source block names the table of the first one, the others need no parsing.
            first = probe_payloads([group.payload_slices[0].as_py()])[0]
            if isinstance(first, RouteProbe) and first.source and to_table_name(first.source) is not None:
                has_table = pc.match_substring_regex(group.payload_slices, make_block_pattern(first.source))
                if pc.all(has_table).as_py():
                    return [_table_kind(first, schema.fingerprint)] * len(rows)
        _, (probes, errors) = decode_group(_probe, values, group, NO_PROBE, self._options.limits.depth)
        return [_table_kind(errors.get(i, probe), schema.fingerprint) for i, probe in enumerate(probes)]

    def _route_without_schema(self, payloads: list[bytes], rows: Sequence[int], topics: pa.Array) -> list[ValueKind]:
        out = []
        for probe, payload, index in zip(probe_payloads(payloads), payloads, rows, strict=True):
            if isinstance(probe, RouteProbe) and probe.source and probe.op:
                out.append(_table_kind(probe, BARE))
                continue
            kind = find_kind_without_schema(payload, topics[index].as_py())
            out.append(get_kind(error=kind) if isinstance(kind, Reject) else get_kind(ignored=kind))
        return out


def _table_kind(probe: RouteProbe | Reject, fingerprint: str) -> ValueKind:
    if isinstance(probe, Reject):
        return get_kind(error=probe)
    if probe.op == MESSAGE:
        return get_kind(ignored="message")
    table = to_table_name(probe.source) if probe.source else None
    return get_kind(table, fingerprint) if table else get_kind(error=NO_TABLE)


# Routes of records, from the kind of their value and their key.


MAX_KINDS = 65_536


@dataclass(frozen=True, slots=True, eq=False)
class ValueKind:
    """The kind of a record's value: a table and a schema fingerprint, an ignored kind, or an error.

    Kinds are compared by identity. Equal ones are usually one object, created by `get_kind`.
    """

    table: str | None = None
    fingerprint: str = ""
    ignored: str | None = None
    error: str | None = None


@lru_cache(MAX_KINDS)
def get_kind(
    table: str | None = None, fingerprint: str = "", ignored: str | None = None, error: Reject | None = None
) -> ValueKind:
    """The kind with these fields."""
    return ValueKind(table, fingerprint, ignored, str(error) if error else None)


NOTHING = ValueKind(ignored=TOMBSTONE)
"""The kind of a null value."""


class RouteResults:
    """Combines kinds of values and keys. A truncate has no key and a tombstone no value. So this stores the last key of each
    table and the last table of each topic."""

    def __init__(self, options: DebeziumOptions) -> None:
        self._options = options
        self._keyed: dict[tuple[str, str], KeySchema] = {}
        self._tables: dict[str, tuple[str, str]] = {}

    def note_keys(self, keys: Iterable[tuple[ValueKind, KeySchema]]) -> None:
        """Store the keys of tables."""
        for kind, key in keys:
            if kind.table and key.names:
                self._keyed[kind.table, kind.fingerprint] = key

    def last_key(self, table: str, fingerprint: str) -> KeySchema:
        """The last key under that fingerprint, which `route_record` must have returned; `NO_KEY` if there was none."""
        return self._keyed.get((table, fingerprint.rpartition(".")[0]), NO_KEY)

    def route_record(self, kind: ValueKind, key: KeySchema, topic: str) -> Outcome:
        """The route of one record."""
        if kind is NOTHING and self._options.any_tombstone_deletes:
            # The table of the topic's other records. If there are only tombstones, the table in the name of the key's schema
            # or of the topic.
            if topic in self._tables:
                table, fingerprint = self._tables[topic]
            else:
                name = key.struct.name.removesuffix(".Key") if key.struct and key.struct.name else topic
                table, fingerprint = ".".join(name.split(".")[-2:]), f"key.{key.fingerprint}"
            if key.error or key is NO_KEY or not self._options.deletes_by_tombstone(table):
                return None, None, TOMBSTONE, None
            return table, fingerprint, None, None
        if kind.table is None:
            return None, None, kind.ignored, kind.error
        if self._options.keys_of(kind.table):
            key_print = "declared"
        elif key is NO_KEY:
            key_print = self._keyed.get((kind.table, kind.fingerprint), NO_KEY).fingerprint
        elif key.error:
            return None, None, None, str(key.error)
        else:
            key_print = key.fingerprint
        fingerprint = f"{kind.fingerprint}.{key_print}"
        if self._options.any_tombstone_deletes:
            self._tables[topic] = (kind.table, fingerprint)
        return kind.table, fingerprint, None, None


# The table of a record, and the kinds of records without a table.


MESSAGE = "m"
"""The operation of PostgreSQL's logical messages, which do not change a table."""


NO_PROBE = RouteProbe()
_probe = msgspec.json.Decoder(RouteProbe).decode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def probe_payloads(payloads: list[bytes]) -> list[RouteProbe | Reject]:
    """The routing fields of each payload, or the error of an unreadable one."""
    probes, errors = decode_or_reject(_probe, payloads, NO_PROBE)
    return [errors.get(i, p) for i, p in enumerate(probes)] if errors else probes


class SourceNames(Protocol):
    """The names in a `source` block."""

    db: str | None
    schema: str | None
    table: str | None
    collection: str | None


def to_table_name(origin: SourceNames) -> str | None:
    """The table name in the database: `schema.table` if the database has schemas, otherwise `db.table` or
    `db.collection`."""
    name = origin.table or origin.collection
    if not name:
        return None
    above = origin.schema if origin.schema is not None else origin.db
    return f"{above}.{name}" if above else name


PLAIN = b'_"' + (string.ascii_letters + string.digits).encode()
"""Bytes without special meaning in a regular expression."""


def make_block_pattern(origin: TableOrigin) -> str:
    """A regular expression for the bytes of the two names in a source block that `to_table_name` uses."""
    above, name = ("schema", origin.schema) if origin.schema is not None else ("db", origin.db)
    return rf"{_pair_pattern(above, name)}[^{{}}]*{_pair_pattern('table', origin.table)}"


def _pair_pattern(name: str, value: str | None) -> str:
    text = msgspec.json.encode(value)
    return f'"{name}":' + "".join(chr(b) if b in PLAIN else rf"\x{{{b:x}}}" for b in text)


def find_kind_without_schema(payload: bytes, topic: str) -> str | Reject:
    """The kind of a control record without a schema, or the error of a record that is not a change event."""
    try:
        names = _fields(payload).keys()
    except UNREADABLE as error:
        return unreadable_reject(error)
    is_heartbeat = "ts_ms" in names and set(names) <= {"ts_ms", "ts_us", "ts_ns"}
    kind = "heartbeat" if is_heartbeat else find_control_kind(names, topic)
    if kind is not None:
        return kind
    if {"op", "source"} <= set(names):
        return malformed_reject("its op or its source block has another type than Debezium sends")
    if any(name.startswith("__") for name in names):
        return FLATTENED
    if other := guess_format(names):
        return malformed_reject(f"it is no Debezium change event; it looks like `format: {other}`")
    lacking = " and ".join(f"no {name}" for name in ("op", "source") if name not in names)
    return malformed_reject(f"it is a JSON object, but no Debezium change event: it has {lacking}")


def find_control_kind(names: Collection[str], topic: str) -> str | None:
    """The kind of a control record without a schema, from its field names; None for any other record."""
    fields = set(names)
    if fields >= {"status", "id", "data_collections"}:
        return "transaction"
    if "ddl" in fields and fields & {"databaseName", "tableChanges"}:
        return "schema_change"
    if {"id", "aggregate_type", "type"} <= fields <= {"id", "aggregate_type", "type", "additional_data", "timestamp"}:
        return "notification"
    if fields == {"type", "data"} and "signal" in topic:
        return "signal"
    return "heartbeat" if "ts_ms" in fields and len(fields) <= 3 and "heartbeat" in topic else None


# Table specifications, from the schemas in records or from declared columns.


class TableLearner:
    """Builds table specifications."""

    def __init__(self, options: DebeziumOptions, routing: DebeziumRouter, readers: PayloadReaders) -> None:
        self._options, self._routing, self._readers = options, routing, readers

    def learn(self, sample: pa.Table, table: str, fingerprint: str) -> TableSpec:
        key_row = pc.index(pc.is_valid(sample["key"]), True).as_py()
        key: bytes | None = sample["key"][key_row].as_py() if key_row >= 0 else None
        sequence = 1 if self._options.deletes_by_tombstone(table) else ELEMENTS
        documents = has_documents(sample["value"], self._options.limits.depth)
        if documents:
            refuse_undeclared(table, self._options.columns_of(table) or {})
        columns = self._declared_columns(table) if documents else self._find_columns(sample["value"], key, table)
        has_place, begins_with_commit = check_positions(sample["value"], self._options.limits.depth)
        unordered = sequence > 1 and not has_place
        counted = sequence > 1 and not unordered
        spec = TableSpec(
            table, columns, (), sequence, fingerprint, counted, unordered=unordered, by_commit=counted and begins_with_commit
        )
        refuse_frame_names(spec)
        names = tuple(self._options.keys_of(table) or ((ID,) if documents else ()))
        if not names:
            # The message key has the key columns, in their order. With truncates only, that of the last routed record.
            key_schema = self._routing.last_key(table, fingerprint) if key is None else self._routing.read_key(key)
            names = key_schema.names
            missing = [name for name in names if name not in spec.column_names]
            if missing:
                raise ConfigProblem(
                    f"the key of table {table} names {missing[0]!r}, which is no column of its rows",
                    next_step="Name the columns of its key with `keys: [...]` in this table's entry under `tables`.",
                )
        # Tombstones have only the key. ExtractNewDocumentState gives each document a schema of its own fields.
        partial = sample["value"].null_count == sample.num_rows or (self._options.flattened and names == (ID,))
        return self._options.to_read_types(replace(spec.with_keys(names), partial=partial))

    def _find_columns(self, values: pa.ChunkedArray, key: bytes | None, table: str) -> tuple[Column, ...]:
        row = None
        if values.null_count < len(values):
            row = self._find_row_schema(values)
        elif key is not None:  # All records are tombstones.
            row = self._routing.read_key(key).struct
        if row is None:
            return self._declared_columns(table)
        try:
            nodes = schema_readers(row)
        except ValueMisfit as error:
            raise Fatal(
                f"table {table} cannot be represented: {error}",
                next_step="Leave the column out with the connector's column.exclude.list, or change its type there.",
            ) from None
        return tuple(Column(f.field or "", nodes[f.field or ""].type, f.optional, f.name or "") for f in row.fields or ())

    def _find_row_schema(self, values: pa.ChunkedArray) -> ConnectSchema | None:
        """The row schema of the first readable record; None for records without a schema. Partly readable records are
        rejected when they are decoded, and must not block others."""
        for text in (value.as_py() for value in values if value.is_valid):
            prefix = find_prefix(text, self._options.limits.depth)
            try:
                schema = extract_schema(prefix) if prefix else split_record(text, self._options.limits.depth)[0]
            except UNREADABLE:
                continue
            return self._routing.read_schema(schema).row if schema is not None else None
        return None

    def _declared_columns(self, table: str) -> tuple[Column, ...]:
        nodes = self._readers.declared_readers(table)
        if not nodes:
            raise ConfigProblem(
                f"the events of table {table} carry no schema, and none is declared for it",
                next_step="Add to this table's entry under `tables`: `schema: {id: int64, ...}`, all columns with their "
                "Arrow types; or set `value.converter.schemas.enable=true` in the connector.",
            )
        return tuple(Column(name, node.type) for name, node in nodes.items())


# Envelope columns of the event log.


NULL = msgspec.Raw(b"null")


class FullSourceBlock(SourceBlock, gc=False):
    """All fields of a source block: the table, and the position and time of the change."""

    name: str | None = None
    db: str | None = None
    schema: str | None = None
    table: str | None = None
    collection: str | None = None


class EnvelopeEvent(msgspec.Struct, gc=False):
    """A change event with its images as JSON text."""

    op: str | None = None
    source: FullSourceBlock | None = None
    transaction: TransactionBlock | None = None
    before: msgspec.Raw = NULL
    after: msgspec.Raw = NULL


NO_BLOCK, NO_EVENT = FullSourceBlock(), EnvelopeEvent()
_event = msgspec.json.Decoder(EnvelopeEvent).decode


class DebeziumEnvelopes:
    """Reads the envelopes of any records. Unreadable values are null, with the reason in `error`."""

    def __init__(self, options: DebeziumOptions, routing: DebeziumRouter) -> None:
        self._options, self._routing = options, routing

    def envelope(self, raw: pa.Table) -> pa.Table:
        return build_envelopes(raw, self._options.limits.depth, self._read_group)

    def _read_group(self, raw: pa.RecordBatch, group: SchemaGroup) -> Part:
        subset = select_records(raw, group.rows)
        depth = self._options.limits.depth
        payloads, (events, errors) = decode_group(_event, raw.column("value"), group, NO_EVENT, depth)
        if group.schema is None:
            # A record without a schema is a change event, a known control record, or an error.
            fingerprint = BARE
            others = [i for i, event in enumerate(events) if event.op is None or event.source is None]
            topics = subset.column("topic")
            kinds = {i: find_kind_without_schema(payloads[i], topics[i].as_py()) for i in others}
            errors |= {i: kind for i, kind in kinds.items() if isinstance(kind, Reject)}
        else:
            schema = self._routing.read_schema(group.schema)
            fingerprint = schema.fingerprint
            errors |= dict.fromkeys(range(len(events)), schema.error) if schema.error else {}
        return group.rows, self._build_columns(subset, events, fingerprint, errors)

    def _build_columns(
        self, raw: pa.RecordBatch, events: list[EnvelopeEvent], fingerprint: str, errors: dict[int, Reject]
    ) -> pa.Table:
        blocks = [e.source or NO_BLOCK for e in events]
        count = len(events)
        before, bad_before = build_or_reject(_text_array, [e.before for e in events], "its before image")
        after, bad_after = build_or_reject(_text_array, [e.after for e in events], "its after image")
        reasons = {**bad_after, **bad_before, **errors}

        # The sequence, as in the changes frame. A record without a key belongs to a table without a key.
        keyed: list[bool] = pc.is_valid(raw.column("key")).to_pylist()
        sources: list[SourceBlock] = list(blocks)
        facts = SequenceFacts(sources, [e.transaction for e in events], [e.op for e in events], raw.column("offset"), keyed)
        order = order_changes(facts, self._options.epoch)
        elements = [*order.elements, pa.nulls(count, pa.int64())]
        if order.errors:
            has_order = pa.array([i not in order.errors for i in range(count)], pa.bool_())
            elements = [pc.if_else(has_order, element, None) for element in elements]
        columns = {
            "source": _string_array(blocks, "name"),
            "connector": _string_array(blocks, "connector"),
            "db": _string_array(blocks, "db"),
            "table": pa.array([to_table_name(b) for b in blocks], pa.string()),
            "op": _string_array(events, "op"),
            "before": before,
            "after": after,
            "ts": read_event_times(blocks),
            "schema_id": pa.repeat(pa.scalar(fingerprint), count),
            "error": pa.array([str(reasons[i]) if i in reasons else None for i in range(count)], pa.string()),
            **{f"seq_{i}": element for i, element in enumerate(elements, 1)},
            "tx": order.tx,
        }
        return build_envelope(count, columns)


def _string_array(objects: Sequence[object], name: str) -> pa.Array:
    return pa.array(list(map(attrgetter(name), objects)), pa.string())


def _text_array(images: Sequence[msgspec.Raw | None]) -> pa.Array:
    texts = [None if image is None else bytes(image) for image in images]
    texts = [msgspec.json.decode(t, type=str).encode() if t and t[:1] == b'"' else t for t in texts]  # Images of documents.
    return pa.array([None if t == b"null" else t for t in texts], pa.binary()).cast(pa.string())
