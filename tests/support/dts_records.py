"""Records as Alibaba DTS writes them, encoded with fastavro."""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import pyarrow as pa
from fastavro import parse_schema, schemaless_writer
from paths import GOLDEN

from replicator.domain.change import RAW

SAMPLES = GOLDEN / "decoders" / "messages" / "dts"
NAMESPACE = "com.alibaba.dts.formats.avro"
SCHEMA = json.loads((SAMPLES / "Record.avsc").read_text())
BORN = {"name": "bornTimestamp", "type": "long"}
SHORT = parse_schema(SCHEMA)
LONG = parse_schema({**SCHEMA, "fields": [*SCHEMA["fields"], BORN]})
BIGINT, DOUBLE, TIMESTAMP, DATE, TIME, DATETIME, YEAR, BIT = 8, 5, 7, 10, 11, 12, 13, 16
VARCHAR, TEXT, DECIMAL, JSON, GEOMETRY, FLOAT = 253, 252, 246, 245, 255, 4
PARTS = ("year", "month", "day", "hour", "minute", "second", "millis")


def make_value(branch: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    """A value of an image."""
    return f"{NAMESPACE}.{branch}", fields


def make_integer(number: object, width: int = 8) -> Any:
    return make_value("Integer", precision=width, value=str(number))


def make_text(content: str | bytes, charset: str = "utf8mb4") -> Any:
    return make_value("Character", charset=charset, value=content.encode() if isinstance(content, str) else content)


def make_float(number: float) -> Any:
    return make_value("Float", value=number, precision=0, scale=0)


def make_datetime(*parts: int | None, **named: int) -> Any:
    """A DateTime of parts from year to microseconds, or of named parts."""
    return make_value("DateTime", **dict(zip(PARTS, parts, strict=False)) | named)


def make_record(
    operation: str, fields: Mapping[str, int] | None = None, before: Any = None, after: Any = None, **more: Any
) -> Any:
    """A record of `mydb.t1`, not encoded yet."""
    listed = None if fields is None else [{"name": n, "dataTypeNumber": number} for n, number in fields.items()]
    row = operation in ("INSERT", "UPDATE", "DELETE", "INIT")
    return {
        "version": 0,
        "id": 7,
        "sourceTimestamp": 1_696_984_408,
        "sourcePosition": "72469@78",
        "safeSourcePosition": "72347@78",
        "sourceTxid": "0",
        "source": {"sourceType": "MySQL", "version": "8.0.28"},
        "operation": operation,
        "objectName": "mydb.t1" if row else None,
        "processTimestamps": [1, 2],
        "tags": {"pk_uk_info": '{"PRIMARY":["id"]}', "thread_id": "163931"} if row else {},
        "fields": listed,
        "beforeImages": before,
        "afterImages": after,
        **more,
    }


def encode_record(said: Mapping[str, Any], *, born: bool = False) -> bytes:
    """The bytes of a record, with `bornTimestamp` or without."""
    out = BytesIO()
    schemaless_writer(out, LONG if born else SHORT, {**said, "bornTimestamp": 1_696_984_408})
    return out.getvalue()


def make_dts_frame(*said: Any, first: int = 100) -> pa.Table:
    """The raw frame of records, or of bytes."""
    values = [
        one if one is None or isinstance(one, bytes) else encode_record(one, born=n % 2 > 0) for n, one in enumerate(said)
    ]
    rows = [{"topic": "dts", "partition": 0, "offset": first + n, "value": v} for n, v in enumerate(values)]
    return pa.Table.from_pylist(rows, RAW)
