"""Readers of rows as JSON objects, generated for the columns of one layout of one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from ..json.nodes import Node, cast
from ..json.objects import kind_for
from ..out_of_range import lenient
from .message import Rows
from .typed import ColumnType, ColumnTypes, ReaderOf
from .written import text_of, texts_of


class JsonRows(Rows):
    """`message.Rows` of JSON objects. A value may be text or, where that is as exact, a number or a truth value; an array or
    object is read as its JSON text."""

    def __init__(self, columns: ColumnTypes, reader: ReaderOf) -> None:
        known = {name: _node(reader, column) for name, column in columns.items()}
        self.columns = frozenset(known)
        self._fields = kind_for(known)(known)
        self.blank: Any = self._fields.empty()
        self.decode = msgspec.json.Decoder(self._fields.wire).decode

    def may_hold(self, row: bytes, names: Sequence[str]) -> bool:
        """See `Rows.may_hold`: a name without escapes stands in the text as it is."""
        if b"\\" in row or not row.startswith(b"{"):
            return bool(names)
        return any(f'"{name}"'.encode() in row for name in names)

    def values(self, rows: Sequence[Any], name: str) -> list[Any]:
        """See `Rows.values`."""
        return self._fields.values(rows, name)

    def array(self, name: str, values: Sequence[Any]) -> pa.Array:
        """See `Rows.array`."""
        return self._fields.nodes[name].build(values)

    def text(self, value: Any) -> str | None:
        """See `Rows.text`."""
        return text_of(value)


def _node(reader: ReaderOf, column: ColumnType) -> Node:
    read, wanted = lenient(Node(column.sent, str, reader(column)), column.how).build, column.wanted

    def build(values: Sequence[Any]) -> pa.Array:
        return read(texts_of(values))

    return Node(wanted, msgspec.Raw, build if column.sent == wanted else (lambda values: cast(build(values), wanted)))
