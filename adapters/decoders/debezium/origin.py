"""The table of a record, and the kinds of records without a table."""

from __future__ import annotations

import string
from collections.abc import Collection
from typing import Protocol

import msgspec

from replicator.domain.errors import Reject

from ...arrow.record_errors import UNREADABLE, decode_or_reject, malformed_reject, unreadable_reject
from ..json.format_detection import guess_format

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
    found, errors = decode_or_reject(_probe, payloads, NO_PROBE)
    return [errors.get(i, p) for i, p in enumerate(found)] if errors else found


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
    has = set(names)
    if has >= {"status", "id", "data_collections"}:
        return "transaction"
    if "ddl" in has and has & {"databaseName", "tableChanges"}:
        return "schema_change"
    if {"id", "aggregate_type", "type"} <= has <= {"id", "aggregate_type", "type", "additional_data", "timestamp"}:
        return "notification"
    if has == {"type", "data"} and "signal" in topic:
        return "signal"
    return "heartbeat" if "ts_ms" in has and len(has) <= 3 and "heartbeat" in topic else None


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
