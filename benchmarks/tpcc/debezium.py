"""Changes as Debezium's PostgreSQL connector writes them, with schemas, a topic for each table."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any

import msgspec

from replicator.domain.change import Op

from .simulator import Row, RowChange
from .tables import SCHEMA, TABLES

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TYPES: Mapping[str, Mapping[str, Any]] = {
    "int32": {"type": "int32"},
    "int64": {"type": "int64"},
    "string": {"type": "string"},
    "timestamp[us]": {"type": "int64", "name": "io.debezium.time.MicroTimestamp", "version": 1},
    "timestamp[us, UTC]": {"type": "string", "name": "io.debezium.time.ZonedTimestamp", "version": 1},
    "decimal(12,2)": {
        "type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "version": 1,
        "parameters": {"scale": "2", "connect.decimal.precision": "12"},
    },
    "decimal(4,4)": {
        "type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "version": 1,
        "parameters": {"scale": "4", "connect.decimal.precision": "4"},
    },
}  # fmt: skip
SOURCE = {
    "version": "string", "connector": "string", "name": "string", "ts_ms": "int64", "snapshot": "string", "db": "string",
    "sequence": "string", "ts_us": "int64", "ts_ns": "int64", "schema": "string", "table": "string", "txId": "int64",
    "lsn": "int64", "xmin": "int64",
}  # fmt: skip
BLOCK = {"id": "string", "total_order": "int64", "data_collection_order": "int64"}
START = 30_000_000


def make_debezium_records(changes: Iterable[RowChange]) -> Iterator[dict[str, Any]]:
    """A change of a key is a delete and a create, and behind every delete comes a tombstone, as the connector has it."""
    offsets: Counter[str] = Counter()
    tx, commit, order = -1, START, 0
    for number, change in enumerate(changes, 1):
        lsn = START + 120 * number
        if change.tx != tx:
            tx, order = change.tx, 0
            commit = lsn - 60
        order += 1
        for op, row, headers in _list_events(change):
            value = _make_value(change, op, row, (commit, lsn, order))
            for text in (value, None) if op == Op.DELETE else (value,):
                yield {
                    "topic": f"cdc.{SCHEMA}.{change.table}",
                    "partition": 0,
                    "offset": offsets[change.table],
                    "timestamp": _to_micros(change.at) // 1000,
                    "headers": headers,
                    "key": _make_key(change.table, row),
                    "value": text,
                }
                offsets[change.table] += 1


def _list_events(change: RowChange) -> list[tuple[Op, Row, list[dict[str, Any]]]]:
    before, after = change.before or {}, change.after or {}
    keys = TABLES[change.table].keys
    if change.op == Op.UPDATE and any(before[key] != after[key] for key in keys):
        new, old = ({k: row[k] for k in keys} for row in (after, before))
        return [
            (Op.DELETE, before, [{"name": "__debezium.newkey", "value": msgspec.json.encode(new)}]),
            (Op.CREATE, after, [{"name": "__debezium.oldkey", "value": msgspec.json.encode(old)}]),
        ]
    return [(change.op, before if change.op == Op.DELETE else after, [])]


def _make_value(change: RowChange, op: Op, row: Row, place: tuple[int, int, int]) -> bytes:
    commit, lsn, order = place
    micros, image = _to_micros(change.at), _make_image(change.table, row)
    source = {
        "version": "3.7.0.Final", "connector": "postgresql", "name": "cdc", "ts_ms": micros // 1000,
        "snapshot": "true" if op == Op.READ else "false", "db": "bench", "sequence": f'["{commit}","{lsn}"]',
        "ts_us": micros, "ts_ns": micros * 1000, "schema": SCHEMA, "table": change.table, "txId": 700 + change.tx,
        "lsn": lsn, "xmin": None,
    }  # fmt: skip
    block = (
        None
        if op == Op.READ
        else {"id": f"{700 + change.tx}:{commit}", "total_order": order, "data_collection_order": order}
    )
    payload = {
        "before": image if op == Op.DELETE else None, "after": None if op == Op.DELETE else image, "source": source,
        "transaction": block, "op": op.value, "ts_ms": micros // 1000 + 5,
    }  # fmt: skip
    return b'{"schema":' + _make_envelope(change.table) + b',"payload":' + msgspec.json.encode(payload) + b"}"


def _make_key(table: str, row: Row) -> bytes | None:
    keys = TABLES[table].keys
    if not keys:
        return None
    columns = [_make_field(TABLES[table].columns[key], key, optional=False) for key in keys]
    schema = {"type": "struct", "fields": columns, "optional": False, "name": f"cdc.{SCHEMA}.{table}.Key"}
    return msgspec.json.encode({"schema": schema, "payload": {key: row[key] for key in keys}})


def _make_image(table: str, row: Row) -> dict[str, Any]:
    return {name: _encode_value(said, row[name]) for name, said in TABLES[table].columns.items()}


def _encode_value(said: str, value: Any) -> Any:
    if isinstance(value, Decimal):
        number = int(value.scaleb(4 if said == "decimal(4,4)" else 2))
        return base64.b64encode(number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)).decode()
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if value.tzinfo else _to_micros(value.replace(tzinfo=UTC))
    return value


def _to_micros(at: datetime) -> int:
    return (at - EPOCH) // timedelta(microseconds=1)


def _make_field(said: str, name: str, *, optional: bool) -> dict[str, Any]:
    return {**TYPES[said], "optional": optional, "field": name}


@lru_cache
def _make_envelope(table: str) -> bytes:
    found = TABLES[table]
    columns = [_make_field(said, name, optional=name not in found.keys) for name, said in found.columns.items()]
    row = {"type": "struct", "fields": columns, "optional": True, "name": f"cdc.{SCHEMA}.{table}.Value"}
    fields = [
        {**row, "field": "before"},
        {**row, "field": "after"},
        {**_make_struct(SOURCE, "io.debezium.connector.postgresql.Source"), "field": "source"},
        {**_make_struct(BLOCK, "event.block"), "optional": True, "field": "transaction"},
        {"type": "string", "optional": False, "field": "op"},
        {"type": "int64", "optional": True, "field": "ts_ms"},
    ]
    return msgspec.json.encode(
        {"type": "struct", "fields": fields, "optional": False, "name": f"cdc.{SCHEMA}.{table}.Envelope"}
    )


def _make_struct(fields: Mapping[str, str], name: str) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"type": t, "optional": True, "field": n} for n, t in fields.items()], "name": name}
