"""The recorded topics of Debezium."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
from paths import GOLDEN

from replicator.domain.change import RAW

HERE = GOLDEN / "decoders"

TOPICS = sorted((HERE / "debezium").glob("*/*.jsonl"))


def read_recorded_frame(path: Path) -> pa.Table:
    """The raw frame of a recorded topic."""
    rows = []
    for line in path.read_text().splitlines():
        record = json.loads(line)
        headers = [{"name": name, "value": value.encode()} for name, value in record["headers"]]
        texts = {k: None if record[k] is None else record[k].encode() for k in ("key", "value")}
        rows.append({**record, **texts, "timestamp": record["timestamp"][1], "headers": headers})
    return pa.Table.from_pylist(rows, schema=RAW)


DECLARED = {
    "public.audit_log": {"at": "timestamp[us, UTC]", "who": "string", "what": "string", "n": "int32"},
    "public.customers": {
        "id": "int64", "name": "string", "email": "string", "active": "bool", "credit": "decimal(10,2)", "born": "date32",
        "created_at": "timestamp[us]", "updated_at": "timestamp[us, UTC]", "ext_id": "string", "profile": "string",
        "tags": "list<string>", "scores": "list<int32>", "avatar": "binary", "note": "string", "rating": "double",
        "m": "string", "t": "time64[us]", "ival": "int64", "si": "int16", "bignum": "string", "ip": "string",
        "loyalty": "int64",
    },
    "public.order_items": {
        "order_id": "int64", "line_no": "int32", "sku": "string", "qty": "int32", "unit_price": "decimal(10,2)",
    },
    "public.orders": {
        "id": "int64", "customer_id": "int64", "status": "string", "total": "decimal(10,2)",
        "placed_at": "timestamp[us, UTC]", "placed_local": "timestamp[us]",
    },
    "public.products": {
        "sku": "string", "product_title": "string", "price": "decimal(10,2)", "weight": "decimal(12,4)", "in_stock": "bool",
        "attrs": "string", "added": "date32",
    },
    "public.toasty": {
        "id": "int32", "small": "int32", "tx": "string", "j": "string", "b": "binary", "ta": "list<string>",
        "ia": "list<int32>", "big": "string", "ua": "list<string>", "ts": "list<timestamp[us, UTC]>",
    },
    "public.toasty_full": {"id": "int32", "small": "int32", "tx": "string"},
    "public.trunc_me": {"id": "int32", "v": "string"},
}  # fmt: skip
"""The columns of the tables in `postgres-schemaless`, whose records do not describe them."""
