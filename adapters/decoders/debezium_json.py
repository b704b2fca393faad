"""Debezium's JSON change events, with and without a schema.

With a schema (Kafka Connect's JsonConverter, `schemas.enable=true`) the bytes before the payload are equal in most
records. They are compared and hashed once, and only payloads are parsed, into structs generated for that schema. Other
layouts of the same JSON are parsed as a whole. Without a schema the configuration declares the columns, and other fields
are left out. For types, rejects, order and transactions see `adapters.decoders.debezium`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from replicator.domain.table import TableSpec

from ..arrow.frame_slices import split_frame
from ..arrow.record_errors import UNREADABLE
from .debezium.masking import DebeziumDecoder
from .debezium.records import SourceBlock, TableOrigin, TransactionBlock
from .debezium.router import find_control_kind
from .debezium.schema import find_schema_kind, refuse_types
from .json.headers import WITHHELD, find_entries
from .json.schema_frames import SchemaGroup, find_frames
from .options import DebeziumJsonOptions


class DebeziumJsonDecoder(DebeziumDecoder):
    """`ports.decoder.Decoder` of Debezium's JSON change events, with and without a schema.

    `options` as in `options.DebeziumJsonOptions`; raises ConfigProblem that names every wrong one.
    """

    def __init__(self, options: DebeziumJsonOptions | Mapping[str, object] | None = None) -> None:
        checked = DebeziumJsonOptions.read(options or {})
        refuse_types(checked.declared)
        super().__init__(checked)
        self._flattened = FlattenedRows(self._depth) if checked.flattened else None

    def _to_events(self, raw: pa.Table, table: str | None = None) -> pa.Table:
        """`table`: the table of all records, if known."""
        if self._flattened is None:
            return raw
        masks = self._private.get_masks(table) if table is not None else {}
        own = OwnFields(self._options.columns_of(table) or {}, masks) if table is not None and masks else None
        return self._flattened.to_events(raw, own)

    def route(self, raw: pa.Table) -> pa.Table:
        return super().route(self._to_events(raw))

    def learn(self, sample: pa.Table, table: str, fingerprint: str) -> TableSpec:
        return super().learn(self._to_events(sample, table), table, fingerprint)

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        return super().decode(self._to_events(raw, table.name), table)

    def envelope(self, raw: pa.Table) -> pa.Table:
        return super().envelope(self._to_events(raw))

    def _to_maskable(self, raw: pa.Table, tables: Sequence[str | None], errors: Sequence[str | None]) -> pa.Table:  # noqa: ARG002
        """Rows of tables with private columns become change events."""
        events_of: dict[str, list[int]] = defaultdict(list)
        for index, name in enumerate(tables if self._flattened is not None else ()):
            if name is not None and self._private.get_masks(name):
                events_of[name].append(index)
        if not events_of:
            return raw
        values = raw["value"].to_pylist()
        for table, indices in events_of.items():
            events = self._to_events(raw.take(pa.array(indices, pa.int64())), table)
            for index, value in zip(indices, events["value"].to_pylist(), strict=True):
                values[index] = value
        at = raw.schema.get_field_index("value")
        return raw.set_column(at, raw.schema.field(at), pa.chunked_array([pa.array(values, pa.binary())]))


# Rows flattened by the transformation ExtractNewRecordState, converted back to change events.
#
# The other parts of the event come from fields that the transformation added to the row or its headers: `__deleted`,
# `__op`, and source fields such as `__lsn` or `__source_lsn`. A row without an operation is an update with the columns that
# it has; it inserts a missing row. Heartbeats, transaction marks and complete change events stay as they are.
#
# For a table with private columns the event contains only the row's own fields (`OwnFields`). Other added fields may repeat
# values, such as the SQL statement.


MARK = "__"
DELETED = f"{MARK}deleted"
SOURCE_FIELDS = tuple(dict.fromkeys((*SourceBlock.__struct_fields__, *TableOrigin.__struct_fields__)))
NUMBERS = frozenset(("ts_ms", "ts_us", "ts_ns", "lsn", "pos", "row"))
"""Fields of a source block that may be sent as text."""
OF_EVENT = ("deleted", "op", "ts_ms", "ts_us", "ts_ns")
TIMES = ("ts_ms", "ts_us", "ts_ns")
"""Fields that exist in both the event and its source block, with different meanings."""
STRUCTS = (f"{MARK}source_", f"{MARK}transaction_")
ADDED = frozenset(MARK + name for name in (*OF_EVENT, *SOURCE_FIELDS))
CONNECTORS_BY_FIELD: Mapping[str, str] = {
    "file": "mysql",
    "commit_scn": "oracle",
    "scn": "oracle",
    "commit_lsn": "sqlserver",
    "lsn": "postgresql",
    "sequence": "postgresql",
    "ord": "mongodb",
}
"""The connector by a field that only it sends, for rows that do not name their connector."""
OF_TRANSACTION = TransactionBlock.__struct_fields__
HEADERS = (
    *ADDED,
    *(f"{MARK}source_{name}" for name in SOURCE_FIELDS),
    *(f"{MARK}transaction_{name}" for name in OF_TRANSACTION),
)
Meta = dict[str, bytes]
"""The added fields of a row, without the `__` prefix, as JSON."""
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def is_added(name: str) -> bool:
    """True if a transformation added the field to the row."""
    return name in ADDED or name.startswith(STRUCTS)


@dataclass(frozen=True)
class OwnFields:
    """The own fields of rows of a table with `private` columns. `declared` are its declared columns, if any."""

    declared: Collection[str]
    private: Collection[str]

    def has(self, name: str, *, is_typed: bool) -> bool:
        """`is_typed`: the record's schema has the field. A name with the `__` prefix must be declared as a column."""
        return name in self.declared or (not name.startswith(MARK) and (is_typed or not self.declared))


class FlattenedRows:
    """Converts flattened rows to change events."""

    def __init__(self, depth: int) -> None:
        self._depth = depth

    def to_events(self, raw: pa.Table, own: OwnFields | None = None) -> pa.Table:
        """The records with rows replaced by change events. Unreadable records stay as they are. `own`: given if all
        records are of one table with private columns."""
        if not raw.num_rows:
            return raw
        values = [self._convert_slice(piece, own) for piece in split_frame(raw)]
        index = raw.schema.get_field_index("value")
        return raw.set_column(index, raw.schema.field(index), pa.chunked_array(values, pa.binary())).combine_chunks()

    def _convert_slice(self, raw: pa.RecordBatch, own: OwnFields | None) -> pa.Array:
        values = raw.column("value")
        texts: list[bytes | None] = values.to_pylist()
        topics = raw.column("topic").to_pylist()
        headers: dict[int, Meta] = {}
        for index, name, value in find_entries(raw.column("headers"), *HEADERS):
            try:
                token = bytes(msgspec.json.decode(value, type=msgspec.Raw))
            except UNREADABLE:  # Plain text.
                token = msgspec.json.encode(value.decode(errors="replace"))
            headers.setdefault(index, {})[name.removeprefix(MARK)] = token
        for group in find_frames(values, self._depth).groups:
            rows = range(len(texts)) if group.rows is None else group.rows
            shape = _GroupSchema(group, own)
            for index, payload in zip(rows, group.payloads() if shape.rows else (), strict=shape.rows):
                texts[index] = shape.to_event(payload, headers.get(index, {}), topics[index]) or texts[index]
        return pa.array(texts, pa.binary())


class _GroupSchema:
    """The schema of a group of records. Without a schema each record is examined on its own."""

    def __init__(self, group: SchemaGroup, own: OwnFields | None) -> None:
        self._own = own
        self.schema = None if group.schema is None else _decode_schema(group.schema)
        self.name = str(self.schema.get("name") or "") if self.schema else ""
        fields = self.schema.get("fields") if self.schema else None
        names = {f.get("field") for f in fields if isinstance(f, dict)} if isinstance(fields, list) else set()
        whole = {"op", "source"} <= names or find_schema_kind(self.name) is not None
        self.rows = group.schema is None or (bool(names) and not whole)
        columns = [f for f in fields if self._is_column(f)] if isinstance(fields, list) else []
        self._columns = {str(f.get("field")) for f in columns if isinstance(f, dict)}
        self._opening = b""
        if self.rows and isinstance(fields, list):
            row = {"type": "struct", "fields": columns, "optional": True, "name": self.name}
            source = {"type": "struct", "fields": [], "optional": False, "field": "source"}
            op = {"type": "string", "optional": False, "field": "op"}
            parts = [row | {"field": "before"}, row | {"field": "after"}, source, op]
            name = f"{self.name.removesuffix('.Value')}.Envelope"
            schema = {"type": "struct", "fields": parts, "optional": False, "name": name}
            self._opening = b'{"schema":' + msgspec.json.encode(schema) + b',"payload":'

    def _is_column(self, field: Any) -> bool:
        if not isinstance(field, dict):
            return True
        name = str(field.get("field"))
        return not is_added(name) and (self._own is None or self._own.has(name, is_typed=True))

    def to_event(self, payload: bytes, meta: Meta, topic: str) -> bytes | None:
        """The change event of a row; None for any other record."""
        if payload == WITHHELD:
            return None
        try:
            fields = _fields(payload)
        except UNREADABLE:
            return None
        if self.schema is None:
            is_event = "op" in fields and b'"connector"' in bytes(fields.get("source", b""))
            if is_event or find_control_kind(fields, topic):
                return None
        meta = meta | {n.removeprefix(MARK): bytes(raw) for n, raw in fields.items() if n.startswith(MARK)}
        full_name = self.name.removesuffix(".Value") if self.name.endswith(".Value") else topic
        if self._own is not None:
            is_typed = self.schema is not None
            names = self._columns if is_typed else {name for name in fields if self._own.has(name, is_typed=False)}
            payload = msgspec.json.encode({name: raw for name, raw in fields.items() if name in names})
            meta = {n: raw for n, raw in meta.items() if MARK + n not in self._own.private}
        meta = {name: raw for name, raw in meta.items() if raw != b"null"}
        is_deleted = meta.get("deleted") in (b"true", b'"true"')
        op = b'"d"' if is_deleted else meta.get("op", b'"u"')
        image = b'"before":' if op == b'"d"' else b'"after":'
        source = _build_source(meta, full_name)
        of_transaction = {n: msgspec.Raw(meta[f"transaction_{n}"]) for n in OF_TRANSACTION if f"transaction_{n}" in meta}
        transaction = msgspec.json.encode(of_transaction or None)
        event = b'{"op":' + op + b',"source":' + source + b',"transaction":' + transaction + b"," + image + payload + b"}"
        return self._opening + event + b"}" if self.schema else event


def _build_source(meta: Meta, full_name: str) -> bytes:
    """The source block from the added fields. Missing table names come from the topic or the schema name."""
    fields: dict[str, msgspec.Raw] = {}
    for name in SOURCE_FIELDS:
        raw = meta.get(f"source_{name}", None if name in TIMES else meta.get(name))
        if raw is not None:
            fields[name] = msgspec.Raw(raw.strip(b'"') if name in NUMBERS and raw[1:-1].isdigit() else raw)
    if "connector" not in fields:
        kind = next((connector for name, connector in CONNECTORS_BY_FIELD.items() if name in fields), None)
        fields["connector"] = msgspec.Raw(msgspec.json.encode(kind))
    above, _, table = full_name.rpartition(".")
    names = {"schema": above.rpartition(".")[2] or None, "table": table}
    if not ("table" in fields or "collection" in fields) or not ("schema" in fields or "db" in fields):
        fields = {n: raw for n, raw in fields.items() if n not in ("db", "schema", "table", "collection")}
        fields |= {n: msgspec.Raw(msgspec.json.encode(text)) for n, text in names.items()}
    return msgspec.json.encode(fields)


def _decode_schema(schema: bytes) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(schema)
    except UNREADABLE:
        return {}
    return decoded if isinstance(decoded, dict) else {}
