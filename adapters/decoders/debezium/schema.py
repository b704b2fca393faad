"""Schemas in records (Kafka Connect's JSON form), and the kinds of records that they announce."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import msgspec
import pyarrow as pa

from replicator.domain.errors import Reject, RejectCode

from ...arrow.record_errors import UNREADABLE, malformed_reject
from ...arrow.record_limits import RecordLimits
from ...arrow.value_readers import UNSET
from ..json.schema_frames import find_frames, split_record

CONTROL = {
    "io.debezium.connector.common.Heartbeat": "heartbeat",
    "io.debezium.connector.common.TransactionMetadataValue": "transaction",
}
CONTROL_ENDINGS = {
    ".SchemaChangeValue": "schema_change",
    ".MessageValue": "message",
    ".Notification": "notification",
}
STRUCT = "struct"
NESTED = (STRUCT, "array", "map")
SOURCE_NAMES = ("db", "schema", "table")
"""The names by which source blocks are compared without parsing (see `origin.make_block_pattern`)."""


class ConnectSchema(msgspec.Struct, frozen=True, gc=False):
    """A schema as in `org.apache.kafka.connect.json.JsonSchema`."""

    type: str
    optional: bool = False
    field: str | None = None
    name: str | None = None
    parameters: dict[str, str] | None = None
    fields: tuple[ConnectSchema, ...] | None = None
    items: ConnectSchema | None = None
    keys: ConnectSchema | None = None
    values: ConnectSchema | None = None
    default: Any = UNSET

    def child(self, name: str) -> ConnectSchema | None:
        """The field of a struct with that name, if any."""
        return next((f for f in self.fields or () if f.field == name), None)

    def find_telling_columns(self) -> dict[str, bool]:
        """Columns of a row whose value can show that the connector received it, and did not fill it in.

        A connector fills in the default, NULL, or in NOT NULL columns 0, false or empty text
        (`JdbcValueConverters.convertValue`, and `replace.null.with.default` of Connect's converters). The flag is true
        for nullable columns, in which any value is proof. In others, only a value that is not 0, false or empty is.
        """
        plain = [f for f in self.fields or () if f.default is UNSET]
        return {f.field or "": f.optional for f in plain if f.optional or (f.name is None and f.type not in NESTED)}

    def defaults(self) -> dict[str, Any]:
        """The defaults of a row's columns, by name."""
        return {f.field or "": f.default for f in self.fields or () if f.default is not UNSET}

    @property
    def children(self) -> Iterator[ConnectSchema]:
        """The schemas directly below this one."""
        yield from self.fields or ()
        yield from (s for s in (self.items, self.keys, self.values) if s is not None)


@dataclass(frozen=True)
class MessageSchema:
    """The content of a message's schema: either `row` (a change event), `ignored` (a kind of control record) or
    `error`."""

    fingerprint: str
    row: ConnectSchema | None = None
    ignored: str | None = None
    error: Reject | None = None
    documents: bool = False
    """Images are documents in text, so `row` has no columns (see `documents`)."""
    plain_rows: bool = False
    """No row can contain bytes like the names in a source block: no nested objects, and no columns with these names."""


@dataclass(frozen=True, eq=False)
class KeySchema:
    """The fields of a message key, in order, and the fingerprint of its schema."""

    fingerprint: str
    names: tuple[str, ...] = ()
    struct: ConnectSchema | None = None
    error: Reject | None = None


def compute_fingerprint(raw: bytes) -> str:
    """A fingerprint that ignores white space and the order of keys."""
    canonical = msgspec.json.encode(msgspec.json.decode(raw), order="sorted")
    return sha256(canonical).hexdigest()[:16]


def read_message_schema(raw: bytes, limits: RecordLimits) -> MessageSchema:
    """The message schema of the JSON text `raw`. Never raises."""
    try:
        fingerprint = compute_fingerprint(raw)
        schema = msgspec.json.decode(raw, type=ConnectSchema)
    except UNREADABLE:
        return MessageSchema(
            sha256(raw).hexdigest()[:16], error=malformed_reject("its schema is not a Kafka Connect schema")
        )
    kind = find_schema_kind(schema.name or "")
    if kind:
        return MessageSchema(fingerprint, ignored=kind)
    row = schema.child("after") or schema.child("before")
    if not row or not schema.child("op") or not schema.child("source"):
        return MessageSchema(fingerprint, error=_no_envelope_reject(schema))
    if row.type == "string":
        return MessageSchema(fingerprint, row, documents=True)
    error = _check_row(row, limits)
    plain = not any(_holds_object(f) or f.field in SOURCE_NAMES for f in row.fields or ())
    return MessageSchema(fingerprint, None if error else row, error=error, plain_rows=plain)


def find_schema_kind(name: str) -> str | None:
    """The kind of a control record from the name of its schema; None for other records."""
    return CONTROL.get(name) or next((kind for end, kind in CONTROL_ENDINGS.items() if name.endswith(end)), None)


def read_key_schema(raw: bytes) -> KeySchema:
    """The key schema of the JSON text `raw`. Never raises."""
    try:
        schema = msgspec.json.decode(raw, type=ConnectSchema)
        names = tuple(f.field for f in schema.fields or () if f.field is not None)
        print_ = compute_fingerprint(raw)
    except UNREADABLE:
        return KeySchema("", error=malformed_reject("the schema of its key is not a Kafka Connect schema"))
    if schema.type != STRUCT or not names:
        return KeySchema("", error=malformed_reject("its key is not a struct of key columns"))
    return KeySchema(print_, names, schema)


def _no_envelope_reject(schema: ConnectSchema) -> Reject:
    names = {f.field for f in schema.fields or ()}
    if "__op" in names or "__deleted" in names or (schema.name and schema.name.endswith(".Value")):
        return malformed_reject(
            "it looks like a row flattened by ExtractNewRecordState; write `flattened: true` at the source, or take that "
            "transform out of the connector"
        )
    return malformed_reject("its schema is not that of a Debezium change event: it has no op, source and after")


def _check_row(row: ConnectSchema, limits: RecordLimits) -> Reject | None:
    names = [f.field for f in row.fields or ()]
    if row.type != STRUCT or not names or None in names:
        return malformed_reject("its schema describes a row without columns")
    if len(set(names)) < len(names):
        return malformed_reject("its schema names a column twice")
    if len(names) > limits.columns:
        return Reject(RejectCode.TOO_LARGE, f"its schema has {len(names)} columns, more than the {limits.columns} allowed")
    if _measure_depth(row, limits.depth) > limits.depth:
        return Reject(RejectCode.TOO_LARGE, f"its schema is nested deeper than the {limits.depth} levels allowed")
    return None


def _measure_depth(schema: ConnectSchema, left: int) -> int:
    """Levels of `schema`, counted up to one more than `left`."""
    if left < 0:
        return 1
    return 1 + max((_measure_depth(child, left - 1) for child in schema.children), default=0)


def _holds_object(schema: ConnectSchema) -> bool:
    if schema.type in (STRUCT, "map"):
        return schema.name != "io.debezium.data.VariableScaleDecimal"
    return any(_holds_object(child) for child in schema.children)


# Key columns that the message keys of a frame name.


MAX_KEYS = 4096
NO_KEY = KeySchema("nokey")
NOT_JSON = KeySchema("", error=malformed_reject("its key is not JSON"))
NOT_AN_OBJECT = KeySchema("", error=malformed_reject("its key is not a JSON object of key columns"))
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class KeySchemas:
    """Reads the keys of records and caches their schemas."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._known: dict[bytes | tuple[str, ...], KeySchema] = {}

    def read_all(self, keys: pa.Array) -> list[KeySchema]:
        """The key schema of every record; `NO_KEY` for a null key. Without a schema, field names identify a key."""
        out = [NO_KEY] * len(keys)
        found = find_frames(keys, self._depth)
        for group in found.groups:
            if group.schema is not None:
                said = [self._read_schema(group.schema)] * (len(keys) if group.rows is None else len(group.rows))
            else:
                said = [self._read_bare(payload) for payload in group.payloads()]
            if group.rows is None:
                return said
            for place, key in zip(group.rows, said, strict=True):
                out[place] = key
        for place in found.errors:
            out[place] = NOT_JSON
        return out

    def read_one(self, key: bytes) -> KeySchema:
        """The key schema of one key."""
        try:
            schema, payload = split_record(key, self._depth)
        except UNREADABLE:
            return NOT_JSON
        return self._read_bare(payload) if schema is None else self._read_schema(schema)

    def _read_schema(self, schema: bytes) -> KeySchema:
        return self._store(schema, lambda: read_key_schema(schema))

    def _read_bare(self, payload: bytes) -> KeySchema:
        try:
            names = tuple(_fields(payload))
        except UNREADABLE:
            return NOT_AN_OBJECT
        if not names:
            return NOT_AN_OBJECT
        return self._store(names, lambda: KeySchema(sha256(repr(names).encode()).hexdigest()[:16], names))

    def _store(self, of: bytes | tuple[str, ...], read: Callable[[], KeySchema]) -> KeySchema:
        if of not in self._known:
            if len(self._known) >= MAX_KEYS:
                self._known.clear()
            self._known[of] = read()
        return self._known[of]
