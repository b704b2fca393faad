"""Routing of records to tables, and their envelopes. Records are grouped by schema bytes; the source block names the table,
and the key's schema its key."""

from __future__ import annotations

import string
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.errors import Reject
from replicator.ports.decoder import ROUTE

from ...arrow.frame_slices import Part, map_slices, select_records
from ...arrow.record_errors import UNREADABLE, build_or_reject, decode_or_reject, malformed_reject, unreadable_reject
from ...arrow.record_limits import reject_too_long
from ..common.pipeline import TOMBSTONE, Outcome, build_routes
from ..json.format_detection import guess_format
from ..json.headers import find_read_errors
from ..json.schema_frames import CachedFrames, SchemaGroup, build_envelope, build_envelopes, split_all
from ..options import DebeziumOptions
from .records import SourceBlock, TransactionBlock, read_event_times
from .schema import NO_KEY, KeySchema, KeySchemas, MessageSchema, read_message_schema
from .sequence import SequenceFacts, order_changes

MAX_SCHEMAS = 4096
BARE = "bare"
NO_TABLE = malformed_reject("its source block names no table")


class DebeziumRouter:
    """Routes frames and caches schemas. `once` is shared with the decoder of the same frames."""

    def __init__(self, options: DebeziumOptions, once: CachedFrames | None = None) -> None:
        self._options = options
        self._once = once or CachedFrames(options.limits.depth)
        self._keys = KeySchemas(options.limits.depth)
        self._schemas: dict[bytes, MessageSchema] = {}
        self._outcomes = RouteResults(options)

    def route(self, raw: pa.Table) -> pa.Table:
        self._once.clear()
        return map_slices(raw, ROUTE, self._route_slice)

    def read_schema(self, raw: bytes) -> MessageSchema:
        """The message schema of this JSON text."""
        if raw not in self._schemas:
            if len(self._schemas) >= MAX_SCHEMAS:
                self._schemas.clear()
            self._schemas[raw] = read_message_schema(raw, self._options.limits)
        return self._schemas[raw]

    def last_key(self, table: str, fingerprint: str) -> KeySchema:
        """The last key of records with that fingerprint; without names if there was none."""
        return self._outcomes.last_key(table, fingerprint)

    def read_key(self, text: bytes) -> KeySchema:
        """The key schema of this JSON text of a message key."""
        return self._keys.read_one(text)

    def _route_slice(self, raw: pa.RecordBatch) -> pa.Table:
        kinds, keys, topics = self._find_kinds(raw), self._keys.read_all(raw.column("key")), raw.column("topic")
        pairs = list(zip(kinds, keys, strict=True))
        distinct = {pair: code for code, pair in enumerate(dict.fromkeys(pairs))}
        self._outcomes.note_keys(distinct)
        if self._options.any_tombstone_deletes:
            return build_routes(
                [self._outcomes.route_record(*row) for row in zip(kinds, keys, topics.to_pylist(), strict=True)]
            )
        few = build_routes([self._outcomes.route_record(*pair, "") for pair in distinct])
        codes = [0] * len(pairs) if len(distinct) == 1 else list(map(distinct.__getitem__, pairs))
        return few.take(pa.array(codes, pa.int64()))

    def _find_kinds(self, raw: pa.RecordBatch) -> list[ValueKind]:
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
        return kinds

    def _route_group(self, group: SchemaGroup, rows: Sequence[int], values: pa.Array, topics: pa.Array) -> list[ValueKind]:
        if group.schema is None:
            return self._route_without_schema(group.payloads(), rows, topics)
        schema = self.read_schema(group.schema)
        if schema.row is None:
            return [get_kind(ignored=schema.ignored, error=schema.error)] * len(rows)
        if schema.plain_rows and group.payload_slices is not None:
            first = probe_payloads([group.payload_slices[0].as_py()])[0]
            if isinstance(first, RouteProbe) and first.source and _is_all_from(group.payload_slices, first.source):
                return [_table_kind(first, schema.fingerprint)] * len(rows)
        probes = probe_payloads(group.payloads())
        if group.payload_slices is not None:
            self._probe_whole(probes, rows, values)
        return [_table_kind(one, schema.fingerprint) for one in probes]

    def _probe_whole(self, probes: list[RouteProbe | Reject], rows: Sequence[int], values: pa.Array) -> None:
        """Probe records again whose payload was not readable behind the common prefix: they are parsed as a whole."""
        indices = [rows[i] for i, one in enumerate(probes) if isinstance(one, Reject)]
        readable, payloads, _ = split_all(values, indices, self._options.limits.depth)
        again = dict(zip(readable, probe_payloads(payloads), strict=True))
        for i, index in enumerate(rows) if again else ():
            probes[i] = again.get(index, probes[i])

    def _route_without_schema(self, payloads: list[bytes], rows: Sequence[int], topics: pa.Array) -> list[ValueKind]:
        out = []
        for probe, payload, index in zip(probe_payloads(payloads), payloads, rows, strict=True):
            if isinstance(probe, RouteProbe) and probe.source and probe.op:
                out.append(_table_kind(probe, BARE))
                continue
            kind = find_kind_without_schema(payload, topics[index].as_py())
            out.append(get_kind(error=kind) if isinstance(kind, Reject) else get_kind(ignored=kind))
        return out


def _is_all_from(payloads: pa.Array, origin: TableOrigin) -> bool:
    """True if every source block names the table of `origin`. Checked without parsing."""
    return to_table_name(origin) is not None and bool(
        pc.all(pc.match_substring_regex(payloads, make_block_pattern(origin))).as_py()
    )


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

    Created by `get_kind`, which returns the same object for equal arguments: kinds are compared by identity.
    """

    table: str | None = None
    fingerprint: str = ""
    ignored: str | None = None
    error: str | None = None


_kinds: dict[tuple[str | None, str, str | None, Reject | None], ValueKind] = {}


def get_kind(
    table: str | None = None, fingerprint: str = "", ignored: str | None = None, error: Reject | None = None
) -> ValueKind:
    """The kind with these fields."""
    words = (table, fingerprint, ignored, error)
    if words not in _kinds:
        if len(_kinds) >= MAX_KINDS:
            _kinds.clear()
        _kinds[words] = ValueKind(table, fingerprint, ignored, str(error) if error else None)
    return _kinds[words]


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
            return self._route_tombstone(key, topic)
        if kind.table is None:
            return None, None, kind.ignored, kind.error
        fingerprint = self._fingerprint(kind.table, kind.fingerprint, key)
        if isinstance(fingerprint, Reject):
            return None, None, None, str(fingerprint)
        if self._options.any_tombstone_deletes:
            self._tables[topic] = (kind.table, fingerprint)
        return kind.table, fingerprint, None, None

    def _fingerprint(self, table: str, fingerprint: str, key: KeySchema) -> str | Reject:
        if self._options.keys_of(table):
            return f"{fingerprint}.declared"
        if key is NO_KEY:
            return f"{fingerprint}.{self._keyed.get((table, fingerprint), NO_KEY).fingerprint}"
        return key.error or f"{fingerprint}.{key.fingerprint}"

    def _route_tombstone(self, key: KeySchema, topic: str) -> Outcome:
        """The table of the topic's other records. If there are only tombstones, the table in the name of the key's schema
        or of the topic."""
        if topic in self._tables:
            table, fingerprint = self._tables[topic]
        else:
            name = key.struct.name.removesuffix(".Key") if key.struct and key.struct.name else topic
            table, fingerprint = ".".join(name.split(".")[-2:]), f"key.{key.fingerprint}"
        if key.error or key is NO_KEY or not self._options.deletes_by_tombstone(table):
            return None, None, TOMBSTONE, None
        return table, fingerprint, None, None


# The table of a record, and the kinds of records without a table.


MESSAGE = "m"
"""The operation of PostgreSQL's logical messages, which do not change a table."""


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
    if "ts_ms" in names and set(names) <= {"ts_ms", "ts_us", "ts_ns"}:
        return "heartbeat"
    return find_control_kind(names, topic) or _unknown_record_reject(names)


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


def _unknown_record_reject(names: Collection[str]) -> Reject:
    if {"op", "source"} <= set(names):
        return malformed_reject("its op or its source block has another type than Debezium sends")
    if any(name.startswith("__") for name in names):
        return malformed_reject(
            "it looks like a row flattened by ExtractNewRecordState; write `flattened: true` at the source, or take that "
            "transform out of the connector"
        )
    if other := guess_format(names):
        return malformed_reject(f"it is no Debezium change event; it looks like `format: {other}`")
    lacking = " and ".join(f"no {name}" for name in ("op", "source") if name not in names)
    return malformed_reject(f"it is a JSON object, but no Debezium change event: it has {lacking}")


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
        payloads = group.payloads()
        events, errors = decode_or_reject(_event, payloads, NO_EVENT)
        if group.schema is None:
            fingerprint = BARE
            errors |= _find_unknown(events, payloads, subset.column("topic"))
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
            **self._read_order(raw, events, blocks),
        }
        return build_envelope(count, columns)

    def _read_order(
        self, raw: pa.RecordBatch, events: list[EnvelopeEvent], blocks: list[FullSourceBlock]
    ) -> dict[str, pa.Array]:
        """The sequence as in the changes frame. A record without a key belongs to a table without a key."""
        keyed: list[bool] = pc.is_valid(raw.column("key")).to_pylist()
        sources: list[SourceBlock] = list(blocks)
        facts = SequenceFacts(sources, [e.transaction for e in events], [e.op for e in events], raw.column("offset"), keyed)
        order = order_changes(facts, self._options.epoch)
        elements = order.elements
        if order.errors:
            has_order = pa.array([i not in order.errors for i in range(len(events))], pa.bool_())
            elements = [pc.if_else(has_order, e, None) for e in elements]
        padded = [*elements, pa.nulls(len(events), pa.int64())]
        return {**{f"seq_{i}": e for i, e in enumerate(padded, 1)}, "tx": order.tx}


def _find_unknown(events: list[EnvelopeEvent], payloads: list[bytes], topics: pa.Array) -> dict[int, Reject]:
    """Errors of records without a schema that are neither change events nor known control records."""
    kinds = {}
    for index, event in enumerate(events):
        if event.op is None or event.source is None:
            kind = find_kind_without_schema(payloads[index], topics[index].as_py())
            if isinstance(kind, Reject):
                kinds[index] = kind
    return kinds


def _string_array(objects: Sequence[object], name: str) -> pa.Array:
    return pa.array(list(map(attrgetter(name), objects)), pa.string())


def _text_array(images: Sequence[msgspec.Raw | None]) -> pa.Array:
    texts = [None if image is None else bytes(image) for image in images]
    texts = [msgspec.json.decode(t, type=str).encode() if t and t[:1] == b'"' else t for t in texts]  # Images of documents.
    return pa.array([None if t == b"null" else t for t in texts], pa.binary()).cast(pa.string())
