"""Decoder of DTS records."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from io import BytesIO
from typing import Any

import msgspec
import pyarrow as pa
from fastavro import schemaless_writer

from replicator.domain.change import Op
from replicator.domain.errors import RejectCode
from replicator.domain.plain_values import format_count
from replicator.domain.table import Column
from replicator.ports.decoder import DecoderFeatures

from ...arrow.record_errors import UNREADABLE, RecordLimits, ValueMisfit
from ..masking import Image, OpenRecord, RoutedRecord, ValueWriter
from ..messages.decoder import MessageDecoder, MessageOpener
from ..messages.message import ColumnTypeNames, ColumnTypes, Message, MessageFormat, MessageLayout, make_change, to_micros
from ..options import DtsOptions
from .record_printer import print_records
from .rows import (
    MOSTLY,
    NAMESPACE,
    NONE,
    NULL,
    RECORD,
    ImageRows,
    RowImage,
    image_to_json,
    read_record,
    read_with_rest,
    to_arrow_type,
    to_source_type,
    type_name,
)

OPS = {"INSERT": Op.CREATE, "UPDATE": Op.UPDATE, "DELETE": Op.DELETE, "INIT": Op.READ}
STATEMENT = "schema_change"
IGNORED = {
    "DDL": STATEMENT,
    **dict.fromkeys(("BEGIN", "COMMIT", "ROLLBACK", "ABORT"), "transaction"),
    "HEARTBEAT": "heartbeat",
    **dict.fromkeys(("CHECKPOINT", "CONTROL", "FINISH", "NOOP"), "control"),
}
HIDDEN_KEY = "__#alibaba_rds_row_id#__"
"""The column that RDS adds to tables without a primary key."""
INIT, STREAM = 0, 1
MAX_KNOWN = 1024
"""Cached lists of fields and keys, in the order in which they were sent."""
_keys = msgspec.json.Decoder(dict[str, tuple[str, ...]]).decode


class DtsFormat(MessageFormat):
    """`decoders.messages.message.MessageFormat` of DTS."""

    name, connector, order_elements, by_tx = "dts_avro", "dts", 2, True

    def read(self, value: bytes, limits: RecordLimits) -> Message:
        record = read_record(value, limits)
        kind = record["operation"]
        database, table = read_table_name(record)
        common: dict[str, Any] = {
            "table": table,
            "db": database,
            "at": to_micros(record["sourceTimestamp"], 1_000_000),
            "tx": record["sourceTxid"] if record["sourceTxid"] not in ("", "0") else None,
            "order": (INIT if kind == "INIT" else STREAM, record["id"]),
        }
        if record["id"] < 0:
            raise ValueMisfit(RejectCode.NO_SEQUENCE, "its id is below zero")
        if kind in IGNORED:
            text = record["afterImages"]
            return Message(ignored=IGNORED[kind], after=text if isinstance(text, str) else None, **common)
        if kind not in OPS:
            raise ValueMisfit(RejectCode.UNKNOWN_OPERATION, f"its operation is {kind}, and known are {', '.join(OPS)}")
        if not table:
            raise ValueMisfit(RejectCode.MALFORMED, "it names no table")
        types = _read_types(record, limits)
        before, after = _read_image(record, "beforeImages", types), _read_image(record, "afterImages", types)
        return Message(
            changes=(make_change(OPS[kind], before, after),),
            types=types,
            keys=_read_key(record["tags"].get("pk_uk_info") or "{}", types),
            before=before,
            after=after,
            **common,
        )

    def column(self, name: str, type_name: str) -> Column | None:
        arrow = to_arrow_type(type_name)
        return None if arrow is None else Column(name, arrow, source_type=to_source_type(type_name))

    def find_table(self, value: bytes, limits: RecordLimits) -> str | None:
        try:
            record, _ = read_with_rest(value, limits)
        except UNREADABLE:
            return None
        return read_table_name(record)[1] or None

    def make_row_reader(self, columns: ColumnTypes) -> ImageRows:
        return ImageRows(columns)

    def make_batch_reader(self, like: bytes, columns: ColumnTypes, keys: Sequence[str]) -> None:
        """See `MessageFormat.make_batch_reader`. None, because fastavro creates Python values for every row."""

    def to_json(self, image: Any) -> bytes | None:
        return image_to_json(image)


def _read_types(record: Mapping[str, Any], limits: RecordLimits) -> ColumnTypeNames:
    fields = record["fields"]
    if not isinstance(fields, list):
        raise ValueMisfit(RejectCode.MALFORMED, "it does not list its fields")
    if len(fields) > limits.columns:
        raise ValueMisfit(RejectCode.TOO_LARGE, f"it has {len(fields)} columns, more than the {limits.columns} allowed")
    numbers = tuple([(field["name"], field["dataTypeNumber"]) for field in fields])
    return _cached_types(record["source"]["sourceType"], numbers)


@lru_cache(MAX_KNOWN)
def _cached_types(source: str, fields: tuple[tuple[str, int], ...]) -> ColumnTypeNames:
    """The types of fields. Cached, because records of a table repeat them. Raises ValueMisfit."""
    types = ColumnTypeNames({name: type_name(source, number) for name, number in fields})
    if len(types) < len(fields) or not types or "" in types:
        raise ValueMisfit(RejectCode.MALFORMED, "it has no fields, two of one name, or one without a name")
    return types


def _read_image(record: Mapping[str, Any], which: str, names: ColumnTypeNames) -> RowImage | None:
    values = record[which]
    if values is None:
        return None
    if not isinstance(values, list) or len(values) != len(names):
        count_text = format_count(len(values), "value") if isinstance(values, list) else "no values"
        raise ValueMisfit(
            RejectCode.MALFORMED, f"its {which} have {count_text}, and it has {format_count(len(names), 'field')}"
        )
    # fastavro returns an `EmptyObject` as its name or as a (branch, name) pair, both within one record.
    fields = zip(names, values, strict=True)
    contents = [value[1] if isinstance(value, tuple) else value for value in values]
    if NONE not in contents and NULL not in contents:
        return dict(fields)
    pairs = zip(fields, contents, strict=True)
    return {name: None if content == NULL else value for (name, value), content in pairs if content != NONE}


@lru_cache(MAX_KNOWN)
def _read_key(text: str, types: ColumnTypeNames) -> tuple[str, ...]:
    """The primary key in the order of the fields, as the tag has no order; without one the hidden column, if any."""
    try:
        keys = _keys(text)
    except msgspec.MsgspecError:
        raise ValueMisfit(RejectCode.MALFORMED, "its tag pk_uk_info is not JSON with names of columns") from None
    primary = keys.get("PRIMARY") or ((HIDDEN_KEY,) if HIDDEN_KEY in types else ())
    return (*(n for n in types if n in primary), *(n for n in dict.fromkeys(primary) if n not in types))


# Access to values in DTS records, for masking.


IMAGES = ("beforeImages", "afterImages")
TAGS = frozenset({"pk_uk_info", "l_db_name", "l_tb_name"})
"""Tags that are stored. Others have unknown content."""
CHARACTER = f"{NAMESPACE}.Character"


class ImageValueWriter(ValueWriter):
    """`decoders.masking.ValueWriter` of images: masked values are text."""

    def __init__(self, rows: ImageRows) -> None:
        self._rows = rows
        self.columns: Collection[str] = rows.columns

    def array(self, name: str, values: Sequence[Any]) -> pa.Array:
        return self._rows.array(name, values)

    def texts(self, values: Sequence[Any]) -> pa.Array:
        return pa.array([self._rows.text(value) for value in values], pa.string())

    def is_null(self, value: Any) -> bool:
        """True for NULL and for unchanged values, which stay as they are."""
        content = value[1] if isinstance(value, tuple) else value
        return value is None or content in (NULL, NONE)

    def to_value(self, text: str | None) -> Any:
        return None if text is None else (CHARACTER, {"charset": MOSTLY, "value": text.encode()})


class DtsOpener(MessageOpener):
    """`MessageOpener` of DTS records."""

    def make_writer(self, layout: MessageLayout) -> ImageValueWriter:
        return ImageValueWriter(self._form.make_row_reader(layout.unmasked_types()))

    def open_one(self, record: RoutedRecord) -> OpenRecord:
        value = record.value or b""
        message, layout = self._read_message(value)
        fields, rest = read_with_rest(value, self._options.limits)
        is_delete, writer = message.changes[0].op == Op.DELETE, self._get_writer(layout)
        images = {
            which: Image(dict(zip(message.types, fields[which], strict=True)), writer, required=required)
            for which, required in zip(IMAGES, (layout.keys, layout.keys if is_delete else None), strict=True)
            if fields[which] is not None
        }
        return OpenRecord(list(images.values()), partial(_write_record, fields, images, rest))

    def mask_ignored(self, record: RoutedRecord) -> bytes | None:
        """The record without its statement."""
        fields, rest = read_with_rest(record.value or b"", self._options.limits)
        return _write_record(fields | dict.fromkeys(IMAGES), {}, rest)


def _write_record(record: Mapping[str, Any], images: Mapping[str, Image], rest: bytes) -> bytes:
    tags = {name: text for name, text in record["tags"].items() if name in TAGS}
    values = {which: list(image.fields.values()) for which, image in images.items()}
    out = BytesIO()
    schemaless_writer(out, RECORD, {**record, "tags": tags, **values})
    return out.getvalue() + rest


# The decoder.


class DtsAvroDecoder(MessageDecoder):
    """`ports.decoder.Decoder` of DTS records; `options` as in `decoders.options.MessageOptions`."""

    FORMAT = DtsFormat()
    OPTIONS = DtsOptions
    OPENS = DtsOpener

    @property
    def features(self) -> DecoderFeatures:
        return replace(super().features, print_records=self.printed)

    def printed(self, raw: pa.Table) -> pa.Table:
        return print_records(raw["value"].to_pylist(), self._options.limits)


# Table names in records.


DOT = "\\u002E"
"""An escaped dot within a name in `objectName`."""


def read_table_name(record: Mapping[str, Any]) -> tuple[str, str]:
    """The database, and the table as `database.table` or `database.schema.table`; empty if none is named. A shard has the
    names of its logical table."""
    tags = record["tags"]
    if "l_db_name" in tags and "l_tb_name" in tags:
        names = [tags["l_db_name"], tags["l_tb_name"]]
    else:
        names = [name.replace(DOT, ".") for name in (record["objectName"] or "").split(".")]
    return names[0], ".".join(names) if len(names) in (2, 3) and all(names) else ""
