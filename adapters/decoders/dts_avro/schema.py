"""Bytes to DTS records, with limits against hostile bytes."""

from __future__ import annotations

from typing import Any

from fastavro import parse_schema

from replicator.domain.errors import RejectCode
from replicator.domain.plain_values import format_count

from ...arrow.record_errors import ValueMisfit
from ...arrow.record_limits import RecordLimits
from ..avro import FAULTS, read_datum

LONG_BYTES = 10


def read_record(data: bytes, limits: RecordLimits) -> dict[str, Any]:
    """The record, with values of images as (branch, value) or None. Raises ValueMisfit for bytes that are not a record,
    and for more values than `limits` allow."""
    return read_with_rest(data, limits)[0]


def read_with_rest(data: bytes, limits: RecordLimits) -> tuple[dict[str, Any], bytes]:
    """The record, and the bytes of the number after it. Raises the same errors as `read_record`."""
    try:
        record, rest = read_datum(data, RECORD, limits.columns, named=True)
    except ValueMisfit:
        raise
    except FAULTS:
        raise ValueMisfit(RejectCode.MALFORMED, "it is no Avro record of DTS, or it is cut short") from None
    if rest and not _is_long(rest):
        raise ValueMisfit(
            RejectCode.MALFORMED, f"it goes on for {format_count(len(rest), 'byte')} behind its record, not a bornTimestamp"
        )
    return dict(record), rest


def _is_long(rest: bytes) -> bool:
    """True for one Avro number: the highest bit is set in all bytes but the last."""
    return len(rest) <= LONG_BYTES and rest[-1] < 0x80 and all(byte >= 0x80 for byte in rest[:-1])


# The Avro schema of a record, without the `bornTimestamp` that some servers append (see `read_with_rest`).


NAMESPACE = "com.alibaba.dts.formats.avro"
SOURCES = [
    "MySQL", "Oracle", "SQLServer", "PostgreSQL", "MongoDB", "Redis", "DB2", "PPAS", "DRDS", "HBASE", "HDFS", "FILE",
    "OTHER",
]  # fmt: skip
OPERATIONS = [
    "INSERT", "UPDATE", "DELETE", "DDL", "BEGIN", "COMMIT", "ROLLBACK", "ABORT", "HEARTBEAT", "CHECKPOINT", "COMMAND",
    "FILL", "FINISH", "CONTROL", "RDB", "NOOP", "INIT",
]  # fmt: skip
PARTS = ("year", "month", "day", "hour", "minute", "second", "millis")


def _record_schema(name: str, /, **fields: object) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": kind} for n, kind in fields.items()]}


def _enum_schema(name: str, symbols: list[str]) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": symbols}


def _array_schema(items: object) -> dict[str, Any]:
    return {"type": "array", "items": items}


VALUES: list[Any] = [
    "null",
    _record_schema("Integer", precision="int", value="string"),
    _record_schema("Character", charset="string", value="bytes"),
    _record_schema("Decimal", value="string", precision="int", scale="int"),
    _record_schema("Float", value="double", precision="int", scale="int"),
    _record_schema("Timestamp", timestamp="long", millis="int"),
    _record_schema("DateTime", **{part: ["null", "int"] for part in PARTS}),
    _record_schema("TimestampWithTimeZone", value="DateTime", timezone="string"),
    _record_schema("BinaryGeometry", type="string", value="bytes"),
    _record_schema("TextGeometry", type="string", value="string"),
    _record_schema("BinaryObject", type="string", value="bytes"),
    _record_schema("TextObject", type="string", value="string"),
    _enum_schema("EmptyObject", ["NULL", "NONE"]),
]
"""The possible types of a value in an image."""
AGAIN = [kind if isinstance(kind, str) else kind["name"] for kind in VALUES]

RECORD = parse_schema(
    {
        **_record_schema(
            "Record",
            version="int",
            id="long",
            sourceTimestamp="long",
            sourcePosition="string",
            safeSourcePosition="string",
            sourceTxid="string",
            source=_record_schema("Source", sourceType=_enum_schema("SourceType", SOURCES), version="string"),
            operation=_enum_schema("Operation", OPERATIONS),
            objectName=["null", "string"],
            processTimestamps=["null", _array_schema("long")],
            tags={"type": "map", "values": "string"},
            fields=["null", "string", _array_schema(_record_schema("Field", name="string", dataTypeNumber="int"))],
            beforeImages=["null", "string", _array_schema(VALUES)],
            afterImages=["null", "string", _array_schema(AGAIN)],
        ),
        "namespace": NAMESPACE,
    }
)
