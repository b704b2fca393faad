"""Readers of rows as JSON objects, generated for one layout of one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from ...arrow.json_objects import choose_objects
from ...arrow.out_of_range_values import make_lenient
from ...arrow.value_readers import ValueReader, cast_values
from ..json.canonical_text import to_text, to_texts
from .message import MessageRows
from .typed_rows import ColumnType, ColumnTypes, ReaderOf


class JsonMessageRows(MessageRows):
    """`message.MessageRows` of JSON objects. A value may be text, or a number or boolean if that is as exact. An array or
    object is read as its JSON text."""

    def __init__(self, columns: ColumnTypes, reader: ReaderOf) -> None:
        known = {name: _value_reader(reader, column) for name, column in columns.items()}
        self.columns = frozenset(known)
        self._fields = choose_objects(known)(known)
        self.blank: Any = self._fields.empty()
        self.decode = msgspec.json.Decoder(self._fields.wire).decode

    def can_hold(self, row: bytes, names: Sequence[str]) -> bool:
        """See `MessageRows.can_hold`: a name without escapes occurs in the text as it is."""
        if b"\\" in row or not row.startswith(b"{"):
            return bool(names)
        return any(f'"{name}"'.encode() in row for name in names)

    def values(self, rows: Sequence[Any], name: str) -> list[Any]:
        return self._fields.values(rows, name)

    def array(self, name: str, values: Sequence[Any]) -> pa.Array:
        return self._fields.nodes[name].build(values)

    def text(self, value: Any) -> str | None:
        return to_text(value)


def _value_reader(reader: ReaderOf, column: ColumnType) -> ValueReader:
    read, wanted = make_lenient(ValueReader(column.sent, str, reader(column)), column.reading).build, column.wanted

    def build(values: Sequence[Any]) -> pa.Array:
        return read(to_texts(values))

    return ValueReader(
        wanted, msgspec.Raw, build if column.sent == wanted else (lambda values: cast_values(build(values), wanted))
    )
