"""DTS records: from bytes, with limits against hostile bytes, to columns of images."""

from __future__ import annotations

import codecs
import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec
import pyarrow as pa
from fastavro import parse_schema

from replicator.domain.errors import RejectCode
from replicator.domain.plain_values import EPOCH, format_count

from ...arrow.record_errors import RecordLimits, ValueMisfit
from ...arrow.text_values import TextReader
from ...arrow.value_readers import UNSET, ValueReader
from ..avro import FAULTS, read_datum
from ..common.mysql_types import VARIABLE_DECIMAL, to_plain_numbers
from ..messages.message import ColumnType, ColumnTypes, MessageRows, text_column_reader

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
    # What follows is one Avro number: the highest bit is set in all bytes but the last.
    if rest and not (len(rest) <= LONG_BYTES and rest[-1] < 0x80 and all(byte >= 0x80 for byte in rest[:-1])):
        raise ValueMisfit(
            RejectCode.MALFORMED, f"it goes on for {format_count(len(rest), 'byte')} behind its record, not a bornTimestamp"
        )
    return dict(record), rest


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


# Columns of images.


RowImage = Mapping[str, Any]
"""Values by column: None for NULL; unchanged columns are missing."""

Build = Callable[[Sequence[Any]], pa.Array]


class ImageRows(MessageRows):
    """`decoders.messages.message.MessageRows` of images."""

    def __init__(self, columns: ColumnTypes) -> None:
        self._builds = {name: _find_builder(column) for name, column in columns.items()}
        self.columns = frozenset(columns)
        self.blank: RowImage = {}

    def decode(self, row: RowImage) -> RowImage:
        """See `MessageRows.decode`: values are read by column."""
        return row

    def can_hold(self, row: RowImage, names: Sequence[str]) -> bool:
        return any(name in row for name in names)

    def values(self, rows: Sequence[RowImage], name: str) -> list[Any]:
        return [row.get(name, UNSET) for row in rows]

    def array(self, name: str, values: Sequence[Any]) -> pa.Array:
        return self._builds[name](values)

    def text(self, value: Any) -> str | None:
        if value is None or value is UNSET:
            return None
        content = to_text_or_bytes(value)
        return content if isinstance(content, str) else content.hex()


def image_to_json(image: object) -> bytes | None:
    """An image or the text of a statement, as JSON. Bytes and unreadable values are Base64."""
    if not isinstance(image, Mapping):
        return None if image is None else msgspec.json.encode(image)
    texts: dict[str, str | None] = {}
    for name, value in image.items():
        try:
            content = None if value is None else to_text_or_bytes(value)
        except ValueMisfit:
            content = value[1].get("value", b"")
        if isinstance(content, bytes):
            content = b64encode(content).decode()
        texts[name] = content if isinstance(content, str) else None
    return msgspec.json.encode(texts)


def _find_builder(column: ColumnType) -> Build:
    sent, source_type, declared = column.sent, column.type_name, column.declared
    if pa.types.is_binary(sent):
        build: Build = _build_bytes
    elif source_type == DECIMAL and pa.types.is_string(sent) and not declared:
        build = _text_builder(to_plain_numbers)
    elif source_type in LABELS and pa.types.is_string(sent):
        build = _build_labels
    else:
        build = _text_builder(text_column_reader(column))
    return column.adapt(ValueReader(sent, object, build, out_of_range_text=_to_text))


def _text_builder(read: TextReader) -> Build:
    def build(values: Sequence[Any]) -> pa.Array:
        texts = [None if value is None else value[1]["value"] if value[0] in PLAIN else _to_text(value) for value in values]
        return read(pa.array(texts, pa.string()))

    return build


def _build_labels(values: Sequence[Any]) -> pa.Array:
    if any(value is not None and value[0] == INTEGER for value in values):
        reason = "holds the number of a label, and records of DTS do not list the labels"
        raise ValueMisfit(
            RejectCode.MALFORMED, f"{reason}: write `schema: {{COLUMN: int64}}` for the table to keep its number"
        )
    return _text_builder(lambda texts: texts)(values)


def _to_text(value: Any) -> str:
    content = to_text_or_bytes(value)
    if isinstance(content, bytes):
        raise ValueMisfit(RejectCode.OUT_OF_RANGE, "holds bytes, not text: in `schema:` of the table it must be `binary`")
    return content


def _build_bytes(values: Sequence[Any]) -> pa.Array:
    contents = []
    for value in values:
        content = None if value is None else to_text_or_bytes(value)
        if isinstance(content, str):
            raise ValueMisfit(
                RejectCode.OUT_OF_RANGE, "holds text, not bytes: in `schema:` of the table it must be `string`"
            )
        contents.append(content)
    return pa.array(contents, pa.binary())


# Column types from the type numbers in records.
#
# The numbers are MySQL's binlog types. Each number has exactly one column type, independent of the values of a record and
# of NULL, so that all records of a table agree. If the number leaves the width or sign open, the type fits usual values,
# and values beyond it are rejected. `messages.message` makes a column with an unknown number text.


LIKE_MYSQL = frozenset({"MySQL", "DRDS"})
NAMES = {
    0: "decimal", 1: "tinyint", 2: "smallint", 3: "int", 4: "float", 5: "double", 6: "null", 7: "timestamp", 8: "bigint",
    9: "mediumint", 10: "date", 11: "time", 12: "datetime", 13: "year", 14: "date", 15: "varchar", 16: "bit",
    17: "timestamp", 18: "datetime", 19: "time", 245: "json", 246: "decimal", 247: "enum", 248: "set", 249: "tinytext",
    250: "mediumtext", 251: "longtext", 252: "text", 253: "varchar", 254: "char", 255: "geometry",
}  # fmt: skip
DECIMAL = "decimal"
"""Each value has its own precision, and NULL has none. So the column is text, with numbers of any scale."""
LABELS = ("enum", "set")
TYPES: dict[str, pa.DataType] = {
    "tinyint": pa.int16(),
    "smallint": pa.int32(),
    "mediumint": pa.int32(),
    **dict.fromkeys(("int", "bigint", "bit"), pa.int64()),
    "float": pa.float32(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "datetime": pa.timestamp("us"),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "year": pa.int32(),
    **dict.fromkeys(("varchar", "char", "tinytext", "mediumtext", "longtext", "text"), pa.string()),
    **dict.fromkeys(("json", *LABELS), pa.string()),
    DECIMAL: pa.string(),
    "geometry": pa.binary(),
}


def type_name(source: str, number: int) -> str:
    """The name of a type, from its number in a source of that kind."""
    name = NAMES.get(number) if source in LIKE_MYSQL else None
    return name or f"type {number} of {source}"


def to_arrow_type(name: str) -> pa.DataType | None:
    """The Arrow type of a type name; None for an unknown type, whose column becomes text."""
    return TYPES.get(name)


def to_source_type(name: str) -> str:
    """`Column.source_type` of a column with this type name."""
    return VARIABLE_DECIMAL if name == DECIMAL else name


# Values of images to text or bytes.


Value = tuple[str, Mapping[str, Any]]
"""The name of a branch and its record."""

NULL, NONE = "NULL", "NONE"
WHOLE = "%04d-%02d-%02d %02d:%02d:%02d"
FULL = WHOLE + ".%06d"
MICROS = 1_000_000
MOSTLY = "utf8mb4"
OFFSET = re.compile(r"(?:GMT|UTC)?([+-])(\d{1,2})(?::?(\d\d))?\Z", re.ASCII)
GREENWICH = frozenset({"Z", "UTC", "GMT"})


def to_text_or_bytes(value: Value) -> str | bytes:
    """The text of a value, or its bytes if it is binary. Raises ValueMisfit."""
    branch, datum = value
    return BRANCHES[branch](datum)


def to_timestamp_text(seconds: int, micros: int) -> str:
    """A time in UTC as text without a zone."""
    if not 0 <= micros < MICROS:
        raise ValueMisfit(RejectCode.OUT_OF_RANGE, "holds a time whose fraction is no number of microseconds")
    try:
        at = EPOCH + timedelta(seconds=seconds, microseconds=micros)
    except OverflowError:
        raise ValueMisfit(RejectCode.OUT_OF_RANGE, "holds a time outside the years 1 to 9999") from None
    return at.replace(tzinfo=None).isoformat(" ")


def to_clock_text(datum: Mapping[str, int | None]) -> str:
    """A date, a time of day or span, both, or a year, depending on the parts. A fraction is in microseconds."""
    parts: tuple[Any, ...] = (*datum.values(),)
    if None not in parts and min(parts) >= 0 and parts[-1] < MICROS:
        return FULL % parts if parts[-1] else WHOLE % parts[:-1]
    date = [datum["year"], datum["month"], datum["day"]]
    time = [datum["hour"], datum["minute"], datum["second"]]
    if time == [None, None, None] and datum["millis"] is None:
        return f"{date[0]:04}" if date[0] is not None and date[1:] == [None, None] else _date_text(date)
    if date == [None, None, None]:
        return _time_text(time, datum["millis"] or 0)
    return f"{_date_text(date)} {_time_text(time, datum['millis'] or 0)}"


def _date_text(parts: list[int | None]) -> str:
    year, month, day = parts
    if year is None or month is None or day is None:
        raise ValueMisfit(RejectCode.MALFORMED, "holds a date without year, month or day")
    return f"{year:04}-{month:02}-{day:02}"


def _time_text(parts: list[int | None], micros: int) -> str:
    """A time of day or a span. In a negative span no part is positive."""
    hour, minute, second = (part or 0 for part in parts)
    if min(hour, minute, second, micros) < 0 < max(hour, minute, second, micros) or abs(micros) >= MICROS:
        raise ValueMisfit(RejectCode.OUT_OF_RANGE, "holds a time of day whose parts do not go together")
    sign = "-" if min(hour, minute, second, micros) < 0 else ""
    fraction = f".{abs(micros):06}" if micros else ""
    return f"{sign}{abs(hour):02}:{abs(minute):02}:{abs(second):02}{fraction}"


def _zoned_text(datum: Mapping[str, Any]) -> str:
    """The text with an ISO 8601 offset. Other zone names follow after a space, and no time type reads them."""
    zone = datum["timezone"].strip()
    match = OFFSET.match(zone)
    if match:
        return f"{to_clock_text(datum['value'])}{match[1]}{int(match[2]):02}:{match[3] or '00'}"
    return f"{to_clock_text(datum['value'])}{'Z' if zone in GREENWICH else f' {zone}'}"


def _decode_characters(datum: Mapping[str, Any]) -> str | bytes:
    value: bytes = datum["value"]
    if datum["charset"] == MOSTLY:
        return decode_text(MOSTLY, value)
    return value if datum["charset"].lower() == BINARY else decode_text(datum["charset"], value)


def _read_as_is(datum: Mapping[str, Any]) -> str | bytes:
    value: str | bytes = datum["value"]
    return value


def _float_text(datum: Mapping[str, Any]) -> str:
    text = repr(datum["value"])
    return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(text, text)


INTEGER = f"{NAMESPACE}.Integer"
PLAIN = frozenset(f"{NAMESPACE}.{name}" for name in ("Integer", "Decimal", "TextGeometry", "TextObject"))
"""Branches whose `value` is the text."""
BRANCHES: Mapping[str, Callable[[Mapping[str, Any]], str | bytes]] = {
    f"{NAMESPACE}.{name}": read
    for name, read in {
        **dict.fromkeys(("Integer", "Decimal"), _read_as_is),
        "Character": _decode_characters,
        "Float": _float_text,
        "Timestamp": lambda datum: to_timestamp_text(datum["timestamp"], datum["millis"]),
        "DateTime": to_clock_text,
        "TimestampWithTimeZone": _zoned_text,
        **dict.fromkeys(("BinaryGeometry", "TextGeometry", "BinaryObject", "TextObject"), _read_as_is),
    }.items()
}


# Character set names of sources, and the Python codecs that decode them in the same way.


BINARY = "binary"
UNDEFINED = frozenset(b"\x81\x8d\x8f\x90\x9d")
"""Bytes without a character in Windows code page 1252. MySQL's latin1 maps them to control characters."""

CODECS = {
    **dict.fromkeys(("utf8", "utf8mb3", "utf8mb4"), "utf-8"),
    **dict.fromkeys(("ascii", "usascii"), "ascii"),
    **dict.fromkeys(("utf16", "utf16be", "ucs2"), "utf-16-be"),
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
    "gbk": "gbk",
    "gb2312": "gb2312",
    "gb18030": "gb18030",
    "big5": "big5",
    "sjis": "shift_jis",
    "cp932": "cp932",
    "ujis": "euc_jp",
    "euckr": "euc_kr",
    "latin2": "iso8859-2",
    "latin5": "iso8859-9",
    "greek": "iso8859-7",
    "hebrew": "iso8859-8",
    "koi8r": "koi8-r",
    "koi8u": "koi8-u",
    "tis620": "tis-620",
    **{f"cp{n}": f"cp{n}" for n in (850, 852, 866, 1250, 1251, 1256, 1257)},
}


def _decode_latin1(value: bytes) -> str:
    if value.isascii():
        return value.decode("ascii")
    return "".join([chr(b) if b in UNDEFINED else bytes((b,)).decode("cp1252") for b in value])


def _find_decoder(codec: str) -> Callable[[bytes], str]:
    if codec == "utf-8":
        return bytes.decode
    read = codecs.lookup(codec).decode
    return lambda value: read(value, "strict")[0]


DECODERS = {name: _find_decoder(codec) for name, codec in CODECS.items()} | dict.fromkeys(
    ("latin1", "cp1252"), _decode_latin1
)


def decode_text(charset: str, value: bytes) -> str:
    """The text of bytes in a character set. Raises ValueMisfit for an unknown character set and for invalid bytes."""
    decode = DECODERS.get(charset)
    if decode is None:
        decode = DECODERS.get(charset.lower().replace("-", "").replace("_", ""))
    if decode is None:
        raise ValueMisfit(RejectCode.MALFORMED, f"holds text in the character set {charset[:40]!r}, which is not known")
    try:
        return decode(value)
    except UnicodeError:
        raise ValueMisfit(
            RejectCode.MALFORMED, f"holds bytes that are no text in the character set {charset[:40]!r}"
        ) from None
