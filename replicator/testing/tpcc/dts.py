"""Changes as Alibaba DTS writes them, encoded by fastavro with the schema that DTS publishes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import BytesIO
from typing import Any

import msgspec
from fastavro import parse_schema, schemaless_writer

from replicator.domain.change import Op

from .simulator import Change, Row
from .tables import SCHEMA, TABLES

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NAMESPACE = "com.alibaba.dts.formats.avro"
OPS = {Op.READ: "INIT", Op.CREATE: "INSERT", Op.UPDATE: "UPDATE", Op.DELETE: "DELETE"}
NUMBERS = {"int32": 3, "int64": 8, "string": 253, "timestamp[us]": 12, "timestamp[us, UTC]": 7} | dict.fromkeys(
    ("decimal(12,2)", "decimal(4,4)"), 246
)
"""MySQL's numbers of types."""


def _record(name: str, /, **fields: object) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": kind} for n, kind in fields.items()]}


_PARTS = ("year", "month", "day", "hour", "minute", "second", "millis")
_IMAGE: list[Any] = [
    "null",
    _record("Integer", precision="int", value="string"),
    _record("Character", charset="string", value="bytes"),
    _record("Decimal", value="string", precision="int", scale="int"),
    _record("Float", value="double", precision="int", scale="int"),
    _record("Timestamp", timestamp="long", millis="int"),
    _record("DateTime", **{part: ["null", "int"] for part in _PARTS}),
    _record("TimestampWithTimeZone", value="DateTime", timezone="string"),
    _record("BinaryGeometry", type="string", value="bytes"),
    _record("TextGeometry", type="string", value="string"),
    _record("BinaryObject", type="string", value="bytes"),
    _record("TextObject", type="string", value="string"),
    {"type": "enum", "name": "EmptyObject", "symbols": ["NULL", "NONE"]},
]
SOURCES = [
    "MySQL",
    "Oracle",
    "SQLServer",
    "PostgreSQL",
    "MongoDB",
    "Redis",
    "DB2",
    "PPAS",
    "DRDS",
    "HBASE",
    "HDFS",
    "FILE",
    "OTHER",
]
OPERATIONS = [
    "INSERT",
    "UPDATE",
    "DELETE",
    "DDL",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "ABORT",
    "HEARTBEAT",
    "CHECKPOINT",
    "COMMAND",
    "FILL",
    "FINISH",
    "CONTROL",
    "RDB",
    "NOOP",
    "INIT",
]
RECORD = parse_schema({
    **_record(
        "Record", version="int", id="long", sourceTimestamp="long", sourcePosition="string", safeSourcePosition="string",
        sourceTxid="string",
        source=_record(
            "Source", sourceType={"type": "enum", "name": "SourceType", "symbols": SOURCES}, version="string"
        ),
        operation={"type": "enum", "name": "Operation", "symbols": OPERATIONS},
        objectName=["null", "string"],
        processTimestamps=["null", {"type": "array", "items": "long"}],
        tags={"type": "map", "values": "string"},
        fields=["null", "string", {"type": "array", "items": _record("Field", name="string", dataTypeNumber="int")}],
        beforeImages=["null", "string", {"type": "array", "items": _IMAGE}],
        afterImages=[
            "null", "string", {"type": "array", "items": [k if isinstance(k, str) else k["name"] for k in _IMAGE]}
        ],
        bornTimestamp="long",
    ),
    "namespace": NAMESPACE,
})  # fmt: skip
"""The schema of a record as servers send it, with `bornTimestamp`."""


def dts_records(changes: Iterable[Change]) -> Iterator[dict[str, Any]]:
    """One record for each change, between a BEGIN and a COMMIT for each transaction of the stream."""
    offset, tx = 0, 0

    def record(said: Mapping[str, Any], at: datetime) -> dict[str, Any]:
        nonlocal offset
        offset += 1
        out = BytesIO()
        schemaless_writer(out, RECORD, {**said, "id": 1_000_000 + offset})
        place = {"topic": "dts", "partition": 0, "offset": offset - 1}
        return {**place, "timestamp": _seconds(at) * 1000, "value": out.getvalue()}

    at = EPOCH
    for change in changes:
        if change.tx != tx:
            if tx:
                yield record(_head("COMMIT", at), at)
            yield record(_head("BEGIN", change.at), change.at)
        tx, at = change.tx, change.at
        yield record(_row(change), at)
    if tx:
        yield record(_head("COMMIT", at), at)


def _head(operation: str, at: datetime) -> dict[str, Any]:
    return {
        "version": 0, "sourceTimestamp": _seconds(at), "sourcePosition": "72469@78", "safeSourcePosition": "72347@78",
        "sourceTxid": "0", "source": {"sourceType": "MySQL", "version": "8.0.28"}, "operation": operation,
        "objectName": None, "processTimestamps": None, "tags": {}, "fields": None, "beforeImages": None,
        "afterImages": None, "bornTimestamp": _seconds(at),
    }  # fmt: skip


def _row(change: Change) -> dict[str, Any]:
    table = TABLES[change.table]
    known = {"PRIMARY": table.keys} if table.keys else {}
    tags = {
        "pk_uk_info": msgspec.json.encode(known).decode(),
        "thread_id": "163931",
        "readerThroughoutTime": "1696984517078",
    }
    return {
        **_head(OPS[change.op], change.at),
        "objectName": f"{SCHEMA}.{change.table}",
        "tags": tags,
        "fields": [{"name": name, "dataTypeNumber": NUMBERS[said]} for name, said in table.columns.items()],
        "beforeImages": _image(change.table, change.before),
        "afterImages": _image(change.table, change.after),
    }


def _image(table: str, row: Row | None) -> list[Any] | None:
    return None if row is None else [_value(said, row[name]) for name, said in TABLES[table].columns.items()]


def _value(said: str, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, int):
        return _branch("Integer", precision=8 if said == "int64" else 4, value=str(value))
    if isinstance(value, Decimal):
        return _branch("Decimal", value=str(value), precision=12, scale=2)
    if isinstance(value, str):
        return _branch("Character", charset="utf8mb4", value=value.encode())
    if value.tzinfo:
        return _branch("Timestamp", timestamp=_seconds(value), millis=value.microsecond)
    parts = (value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond)
    return _branch("DateTime", **dict(zip(_PARTS, parts, strict=True)))


def _branch(name: str, /, **fields: Any) -> tuple[str, dict[str, Any]]:
    return f"{NAMESPACE}.{name}", fields


def _seconds(at: datetime) -> int:
    return (at - EPOCH) // timedelta(seconds=1)
