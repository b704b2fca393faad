"""A history in the format of Debezium's PostgreSQL connector: JSON envelopes, with or without schema.

Use histories with `toast=True`: Debezium can leave out only values of variable length, and marks them by a
placeholder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from replicator.domain.change import RAW
from replicator.domain.table import TableSpec

from .histories import History
from .model import Change, Key
from .source import KEY_TYPES, TOAST, VALUE_TYPES, SourceEvent, to_micros

Kinds = Mapping[str, str]
SOURCE_FIELDS: tuple[tuple[str, str, bool], ...] = (
    ("version", "string", False),
    ("connector", "string", False),
    ("name", "string", False),
    ("ts_ms", "int64", False),
    ("snapshot", "string", True),
    ("db", "string", False),
    ("sequence", "string", True),
    ("ts_us", "int64", True),
    ("ts_ns", "int64", True),
    ("schema", "string", False),
    ("table", "string", False),
    ("txId", "int64", True),
    ("lsn", "int64", True),
    ("xmin", "int64", True),
)
BLOCK_FIELDS = (("id", "string", False), ("total_order", "int64", False), ("data_collection_order", "int64", False))


def make_raw_frame(history: History, start: int = 0, end: int | None = None, *, schemas: bool = True) -> pa.Table:
    """The events [start, end) as records."""
    kinds = list_column_types(history)
    rows = []
    for event in history.events[start:end]:
        change, table = event.change, history.source.versions[event.version]
        key = value = None
        if event.key is not None:
            key_columns = [_make_field(name, kinds[name], optional=False) for name in table.keys]
            key_schema = _make_struct(key_columns, "cdc.public.items.Key")
            key = _make_document(key_schema, _make_key(event.key, table, kinds), schemas)
        if change is not None:
            envelope = _make_envelope(history, event, change, kinds)
            columns = [_make_field(name, kinds[name], optional=name not in table.keys) for name in table.column_names]
            row = _make_struct(columns, "cdc.public.items.Value", optional=True)
            fields = [
                {**row, "field": "before"},
                {**row, "field": "after"},
                {
                    **_make_plain_struct(SOURCE_FIELDS, "io.debezium.connector.postgresql.Source", optional=False),
                    "field": "source",
                },
                {**_make_plain_struct(BLOCK_FIELDS, "event.block", optional=True), "field": "transaction"},
                {"type": "string", "optional": False, "field": "op"},
                {"type": "int64", "optional": True, "field": "ts_ms"},
            ]
            value = _make_document(_make_struct(fields, "cdc.public.items.Envelope"), envelope, schemas)
        keys = {"__debezium.newkey": event.moved_to, "__debezium.oldkey": change.moved_from if change else None}
        headers = [
            {"name": name, "value": json.dumps(_make_key(other, table, kinds), ensure_ascii=False).encode()}
            for name, other in keys.items()
            if other
        ]
        position = {"topic": history.source.topic, "partition": event.partition, "offset": event.offset}
        timestamp = change.ts if change else None
        rows.append({**position, "timestamp": timestamp, "headers": headers, "key": key, "value": value})
    return pa.Table.from_pylist(rows, RAW)


def list_column_types(history: History) -> Kinds:
    """The type of every column that the table ever had."""
    keys = {f"k{i}": kind for i, kind in enumerate(KEY_TYPES[history.shape.key], 1)}
    return keys | history.source.kinds


def _make_document(schema: Mapping[str, Any], payload: Mapping[str, Any], schemas: bool) -> bytes:
    whole = {"schema": schema, "payload": payload} if schemas else payload
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode()


def _make_key(key: Key, table: TableSpec, kinds: Kinds) -> dict[str, Any]:
    return {name: VALUE_TYPES[kinds[name]].encode(value) for name, value in zip(table.keys, key, strict=True)}


def _make_envelope(history: History, event: SourceEvent, change: Change, kinds: Kinds) -> dict[str, Any]:
    image = {}
    for name in history.source.versions[event.version].column_names:
        value = change.image.get(name)
        encoded = None if value is None else VALUE_TYPES[kinds[name]].encode(value)
        image[name] = TOAST[kinds[name]] if name in change.unsent else encoded
    at = 0 if change.ts is None else to_micros(change.ts)
    transaction, lsn, number, *_ = change.sequence
    # The position in the transaction; 0 without transactions. If nothing depends on it, it differs each time the event is
    # sent, like from a connector that resumes in a transaction.
    order = int(number) or (1 + event.offset % 5 if history.shape.blocks else 0)
    block = {"id": f"{transaction}", "total_order": order, "data_collection_order": order}
    return {
        "before": image if change.op == "d" else None,
        "after": None if change.op in "dt" else image,
        "source": {
            "version": "3.7.0.Final",
            "connector": "postgresql",
            "name": "cdc",
            "ts_ms": at // 1000,
            "snapshot": "true" if change.op == "r" else "false",
            "db": "shop",
            "sequence": json.dumps([str(transaction), str(lsn)]),
            "ts_us": at,
            "ts_ns": at * 1000,
            "schema": "public",
            "table": "items",
            "txId": transaction,
            "lsn": lsn,
            "xmin": None,
        },
        "transaction": block if order else None,
        "op": change.op,
        "ts_ms": at // 1000,
    }


def _make_field(name: str, kind: str, *, optional: bool) -> dict[str, Any]:
    return {**VALUE_TYPES[kind].schema, "optional": optional, "field": name}


def _make_struct(fields: Sequence[Mapping[str, Any]], name: str, *, optional: bool = False) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields), "optional": optional, "name": name}


def _make_plain_struct(fields: Sequence[tuple[str, str, bool]], name: str, *, optional: bool) -> dict[str, Any]:
    return _make_struct([{"type": t, "optional": o, "field": n} for n, t, o in fields], name, optional=optional)
