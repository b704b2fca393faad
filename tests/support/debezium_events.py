"""Change events as Debezium writes them, for tests of decoders."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from replicator.domain.change import RAW

TOPIC = "cdc.public.t"


def make_column(name: str, kind: str, logical: str | None = None, *, optional: bool = True, **more: Any) -> dict[str, Any]:
    """The schema of a column."""
    named = {"name": logical, "version": 1} if logical else {}
    return {"type": kind, "optional": optional, **named, **more, "field": name}


ID = make_column("id", "int64", optional=False)
LOGICAL = "io.debezium.connector.postgresql"
SOURCE = [
    *(
        make_column(name, "string")
        for name in ("version", "connector", "name", "snapshot", "db", "sequence", "schema", "table")
    ),
    *(make_column(name, "int64") for name in ("ts_ms", "ts_us", "ts_ns", "txId", "lsn")),
]
"""The source block of `make_payload`, with further fields that a record may have."""


def make_envelope_schema(columns: Sequence[Mapping[str, Any]], table: str = "t") -> dict[str, Any]:
    """The schema of a table's envelope with these columns."""
    row = {"type": "struct", "fields": list(columns), "optional": True, "name": f"cdc.public.{table}.Value"}
    source = {"type": "struct", "fields": SOURCE, "optional": False, "name": f"{LOGICAL}.Source", "field": "source"}
    fields = [{**row, "field": "before"}, {**row, "field": "after"}, source, make_column("op", "string", optional=False)]
    return {"type": "struct", "fields": fields, "optional": False, "name": f"cdc.public.{table}.Envelope"}


def make_payload(op: str = "c", after: Any = None, before: Any = None, at: int = 1_000, **changed: Any) -> dict[str, Any]:
    """The envelope of one change of PostgreSQL's `public.t`. `source` changes fields of the source block."""
    source = {
        "version": "3.7.0.Final", "connector": "postgresql", "name": "cdc", "ts_ms": 1, "snapshot": "false",
        "db": "shop",
        "sequence": json.dumps([str(at - 1), str(at)]), "ts_us": 1_700_000_000_000_000 + at,
        "schema": "public", "table": "t",
        "txId": 7, "lsn": at,
    } | changed.pop("source", {})  # fmt: skip
    return {"before": before, "after": after, "source": source, "transaction": None, "op": op, **changed}


def make_change_event(columns: Sequence[Mapping[str, Any]], **payload: Any) -> bytes:
    """A change event with its schema, as Connect's JsonConverter writes it."""
    return encode_with_schema(make_envelope_schema(columns), make_payload(**payload))


def encode_with_schema(schema: Any, payload: Any) -> bytes:
    """Schema and payload in Connect's layout."""
    parts = (json.dumps(part, separators=(",", ":"), ensure_ascii=False) for part in (schema, payload))
    return '{{"schema":{},"payload":{}}}'.format(*parts).encode()


def make_event_key(columns: Sequence[Mapping[str, Any]] = (ID,), **values: Any) -> bytes:
    """A message key with its schema."""
    fields = [c for c in columns if c["field"] in values]
    return encode_with_schema({"type": "struct", "fields": fields, "optional": False, "name": "cdc.public.t.Key"}, values)


def make_raw_records(
    values: Iterable[bytes | None],
    keys: Iterable[bytes | None] | None = None,
    headers: Mapping[int, Mapping[str, bytes]] | None = None,
    topic: str = TOPIC,
) -> pa.Table:
    """A raw frame of these values at offsets 0, 1, ... By default all have the key id = 1."""
    values = list(values)
    keys = [make_event_key(id=1)] * len(values) if keys is None else list(keys)
    given = headers or {}
    rows = [
        {
            "topic": topic, "partition": 0, "offset": i, "timestamp": i, "key": k, "value": v,
            "headers": [{"name": n, "value": h} for n, h in given.get(i, {}).items()],
        }
        for i, (v, k) in enumerate(zip(values, keys, strict=True))
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=RAW)


def decode_frame(frame: pa.Table, options: Mapping[str, object] | None = None) -> list[dict[str, Any]]:
    """Decodes a frame. The schema of the first record with a table counts for all others."""
    decoder = DebeziumJsonDecoder(options or {})
    routes = decoder.route(frame).to_pylist()
    first = next(r for r in routes if r["table"])
    run = frame.filter(pa.array([r["table"] is not None for r in routes]))
    spec = decoder.learn(run, first["table"], first["fingerprint"])
    rows: list[dict[str, Any]] = decoder.decode(run, spec).to_pylist()
    assert len(rows) == run.num_rows
    return rows


def decode_value(
    columns: Sequence[Mapping[str, Any]], value: Any, options: Mapping[str, object] | None = None
) -> dict[str, Any]:
    """The decoded row of an insert whose last column has this value."""
    row = {c["field"]: 1 for c in columns[:-1]} | {columns[-1]["field"]: value}
    (change,) = decode_frame(make_raw_records([make_change_event(columns, after=row)]), options)
    return change


def get_error_code(change: Mapping[str, Any]) -> str | None:
    """The reason code of a rejected change."""
    return change["_error"].split(":")[0] if change["_error"] else None
