"""Columns of images."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from replicator.domain.errors import RejectCode

from ...arrow.out_of_range_values import make_lenient
from ...arrow.record_errors import ValueMisfit
from ...arrow.text_values import Read
from ...arrow.value_readers import UNSET, ValueReader, cast_values
from ..common.mysql_types import VARIABLE_DECIMAL, to_plain_numbers
from ..messages.message import MessageRows
from ..messages.typed_rows import ColumnType, ColumnTypes, text_column_reader
from .values import INTEGER, PLAIN, to_text_or_bytes

Image = Mapping[str, Any]
"""Values by column: None for NULL; unchanged columns are missing."""

Build = Callable[[Sequence[Any]], pa.Array]


class ImageRows(MessageRows):
    """`decoders.messages.message.MessageRows` of images."""

    def __init__(self, columns: ColumnTypes) -> None:
        self._builds = {name: _find_builder(column) for name, column in columns.items()}
        self.columns = frozenset(columns)
        self.blank: Image = {}

    def decode(self, row: Image) -> Image:
        """See `MessageRows.decode`: values are read by column."""
        return row

    def can_hold(self, row: Image, names: Sequence[str]) -> bool:
        return any(name in row for name in names)

    def values(self, rows: Sequence[Image], name: str) -> list[Any]:
        return [row.get(name, UNSET) for row in rows]

    def array(self, name: str, values: Sequence[Any]) -> pa.Array:
        return self._builds[name](values)

    def text(self, value: Any) -> str | None:
        if value is None or value is UNSET:
            return None
        found = to_text_or_bytes(value)
        return found if isinstance(found, str) else found.hex()


def image_to_json(image: object) -> bytes | None:
    """An image or the text of a statement, as JSON. Bytes and unreadable values are Base64."""
    if not isinstance(image, Mapping):
        return None if image is None else msgspec.json.encode(image)
    return msgspec.json.encode({name: _to_shown(value) for name, value in image.items()})


def _to_shown(value: Any) -> str | None:
    if value is None:
        return None
    try:
        found = to_text_or_bytes(value)
    except ValueMisfit:
        found = value[1].get("value", b"")
    if isinstance(found, str):
        return found
    return b64encode(found).decode() if isinstance(found, bytes) else None


def _find_builder(column: ColumnType) -> Build:
    sent, wanted, said, declared, how = column
    if pa.types.is_binary(sent):
        build: Build = _build_bytes
    elif said == DECIMAL and pa.types.is_string(sent) and not declared:
        build = _text_builder(to_plain_numbers)
    elif said in LABELS and pa.types.is_string(sent):
        build = _build_labels
    else:
        build = _text_builder(text_column_reader(column))
    build = make_lenient(ValueReader(sent, object, build, out_of_range_text=_to_text), how).build
    return build if sent == wanted else (lambda values: cast_values(build(values), wanted))


def _text_builder(read: Read) -> Build:
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
    found = to_text_or_bytes(value)
    if isinstance(found, bytes):
        raise ValueMisfit(RejectCode.OUT_OF_RANGE, "holds bytes, not text: in `schema:` of the table it must be `binary`")
    return found


def _build_bytes(values: Sequence[Any]) -> pa.Array:
    return pa.array([None if value is None else _to_bytes(value) for value in values], pa.binary())


def _to_bytes(value: Any) -> bytes:
    found = to_text_or_bytes(value)
    if isinstance(found, str):
        raise ValueMisfit(RejectCode.OUT_OF_RANGE, "holds text, not bytes: in `schema:` of the table it must be `string`")
    return found


# Column types from the type numbers in records.
#
# The numbers are MySQL's binlog types. Each number has exactly one column type, independent of the values of a record and
# of NULL, so that all records of a table agree. If the number leaves the width or sign open, the type fits usual values,
# and values beyond it are rejected. `messages.layouts` makes a column with an unknown number text.


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
    known = NAMES.get(number) if source in LIKE_MYSQL else None
    return known or f"type {number} of {source}"


def to_arrow_type(said: str) -> pa.DataType | None:
    """The Arrow type of a type name; None for an unknown type, whose column becomes text."""
    return TYPES.get(said)


def to_source_type(said: str) -> str:
    """`Column.source_type` of a column with this type name."""
    return VARIABLE_DECIMAL if said == DECIMAL else said
