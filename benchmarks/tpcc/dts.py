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

from .simulator import Row, RowChange
from .tables import SCHEMA, TABLES

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NAMESPACE = "com.alibaba.dts.formats.avro"
OPS = {Op.READ: "INIT", Op.CREATE: "INSERT", Op.UPDATE: "UPDATE", Op.DELETE: "DELETE"}
NUMBERS = {"int32": 3, "int64": 8, "string": 253, "timestamp[us]": 12, "timestamp[us, UTC]": 7} | dict.fromkeys(
    ("decimal(12,2)", "decimal(4,4)"), 246
)
"""MySQL's numbers of types."""


def _make_record_type(name: str, /, **fields: object) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": kind} for n, kind in fields.items()]}


_PARTS = ("year", "month", "day", "hour", "minute", "second", "millis")
_IMAGE: list[Any] = [
    "null",
    _make_record_type("Integer", precision="int", value="string"),
    _make_record_type("Character", charset="string", value="bytes"),
    _make_record_type("Decimal", value="string", precision="int", scale="int"),
    _make_record_type("Float", value="double", precision="int", scale="int"),
    _make_record_type("Timestamp", timestamp="long", millis="int"),
    _make_record_type("DateTime", **{part: ["null", "int"] for part in _PARTS}),
    _make_record_type("TimestampWithTimeZone", value="DateTime", timezone="string"),
    _make_record_type("BinaryGeometry", type="string", value="bytes"),
    _make_record_type("TextGeometry", type="string", value="string"),
    _make_record_type("BinaryObject", type="string", value="bytes"),
    _make_record_type("TextObject", type="string", value="string"),
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
    **_make_record_type(
        "Record", version="int", id="long", sourceTimestamp="long", sourcePosition="string", safeSourcePosition="string",
        sourceTxid="string",
        source=_make_record_type(
            "Source", sourceType={"type": "enum", "name": "SourceType", "symbols": SOURCES}, version="string"
        ),
        operation={"type": "enum", "name": "Operation", "symbols": OPERATIONS},
        objectName=["null", "string"],
        processTimestamps=["null", {"type": "array", "items": "long"}],
        tags={"type": "map", "values": "string"},
        fields=[
            "null",
            "string",
            {"type": "array", "items": _make_record_type("Field", name="string", dataTypeNumber="int")},
        ],
        beforeImages=["null", "string", {"type": "array", "items": _IMAGE}],
        afterImages=[
            "null", "string", {"type": "array", "items": [k if isinstance(k, str) else k["name"] for k in _IMAGE]}
        ],
        bornTimestamp="long",
    ),
    "namespace": NAMESPACE,
})  # fmt: skip
"""The schema of a record as servers send it, with `bornTimestamp`."""


def make_dts_records(changes: Iterable[RowChange]) -> Iterator[dict[str, Any]]:
    """One record for each change, between a BEGIN and a COMMIT for each transaction of the stream."""
    offset, tx = 0, 0

    def record(said: Mapping[str, Any], at: datetime) -> dict[str, Any]:
        nonlocal offset
        offset += 1
        out = BytesIO()
        schemaless_writer(out, RECORD, {**said, "id": 1_000_000 + offset})
        place = {"topic": "dts", "partition": 0, "offset": offset - 1}
        return {**place, "timestamp": _to_seconds(at) * 1000, "value": out.getvalue()}

    at = EPOCH
    for change in changes:
        if change.tx != tx:
            if tx:
                yield record(_make_head("COMMIT", at), at)
            yield record(_make_head("BEGIN", change.at), change.at)
        tx, at = change.tx, change.at
        yield record(_make_row(change), at)
    if tx:
        yield record(_make_head("COMMIT", at), at)


def _make_head(operation: str, at: datetime) -> dict[str, Any]:
    return {
        "version": 0, "sourceTimestamp": _to_seconds(at), "sourcePosition": "72469@78", "safeSourcePosition": "72347@78",
        "sourceTxid": "0", "source": {"sourceType": "MySQL", "version": "8.0.28"}, "operation": operation,
        "objectName": None, "processTimestamps": None, "tags": {}, "fields": None, "beforeImages": None,
        "afterImages": None, "bornTimestamp": _to_seconds(at),
    }  # fmt: skip


def _make_row(change: RowChange) -> dict[str, Any]:
    table = TABLES[change.table]
    known = {"PRIMARY": table.keys} if table.keys else {}
    tags = {
        "pk_uk_info": msgspec.json.encode(known).decode(),
        "thread_id": "163931",
        "readerThroughoutTime": "1696984517078",
    }
    return {
        **_make_head(OPS[change.op], change.at),
        "objectName": f"{SCHEMA}.{change.table}",
        "tags": tags,
        "fields": [{"name": name, "dataTypeNumber": NUMBERS[said]} for name, said in table.columns.items()],
        "beforeImages": _make_image(change.table, change.before),
        "afterImages": _make_image(change.table, change.after),
    }


def _make_image(table: str, row: Row | None) -> list[Any] | None:
    return None if row is None else [_make_value(said, row[name]) for name, said in TABLES[table].columns.items()]


def _make_value(said: str, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, int):
        return _make_branch("Integer", precision=8 if said == "int64" else 4, value=str(value))
    if isinstance(value, Decimal):
        return _make_branch("Decimal", value=str(value), precision=12, scale=2)
    if isinstance(value, str):
        return _make_branch("Character", charset="utf8mb4", value=value.encode())
    if value.tzinfo:
        return _make_branch("Timestamp", timestamp=_to_seconds(value), millis=value.microsecond)
    parts = (value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond)
    return _make_branch("DateTime", **dict(zip(_PARTS, parts, strict=True)))


def _make_branch(name: str, /, **fields: Any) -> tuple[str, dict[str, Any]]:
    return f"{NAMESPACE}.{name}", fields


def _to_seconds(at: datetime) -> int:
    return (at - EPOCH) // timedelta(seconds=1)
