"""JSON values in objects that are rows or keys."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from ...arrow.record_errors import UNREADABLE
from ..json.canonical_text import to_texts
from .records import Image, OpenRecord, Role, ValueWriter

Object = dict[str, msgspec.Raw]
NULL = msgspec.Raw(b"null")
OF_KEYS = ("database", "table")
"""Members of message keys that are not columns."""
PREFIX = "pk."
"""The prefix of column names in Maxwell's keys."""


class ColumnReader(Protocol):
    """Reads columns of JSON rows: see `records.ValueWriter`."""

    columns: Collection[str]

    def array(self, name: str, values: Sequence[Any]) -> pa.Array: ...


class JsonValueWriter(ValueWriter):
    """`records.ValueWriter` for JSON. `reads` reads the columns. `names` are all columns that rows have."""

    def __init__(self, reads: ColumnReader, names: Collection[str]) -> None:
        self.columns, self.names = reads.columns, names
        self._reads = reads

    def array(self, name: str, values: Sequence[Any]) -> pa.Array:
        return self._reads.array(name, values)

    def texts(self, values: Sequence[Any]) -> pa.Array:
        return to_texts(values)

    def is_null(self, value: Any) -> bool:
        return bytes(value) == b"null"

    def to_value(self, text: str | None) -> msgspec.Raw:
        return NULL if text is None else msgspec.Raw(msgspec.json.encode(text))


def open_json_key(key: bytes, of: OpenRecord) -> OpenRecord | None:
    """A key that is an object of columns. None for any other key, which may repeat values and is not stored."""
    names = of.writer.names if isinstance(of.writer, JsonValueWriter) else ()
    try:
        fields = read_object(key)
    except UNREADABLE:
        return None
    if not all(name in names or name.removeprefix(PREFIX) in names for name in fields if name not in OF_KEYS):
        return None
    images = [Image(fields, Role.BESIDE), Image(fields, Role.BESIDE, PREFIX)]
    return OpenRecord(images, of.writer, of.keys, lambda: msgspec.json.encode(fields))


def read_objects(token: msgspec.Raw) -> list[Object | None]:
    """The objects of a JSON object, or of an array of objects and nulls. Raises one of UNREADABLE."""
    text = bytes(token)
    return _several(text) if text.startswith(b"[") else [read_object(text)]


read_object = msgspec.json.Decoder(Object).decode
_several = msgspec.json.Decoder(list[Object | None]).decode
