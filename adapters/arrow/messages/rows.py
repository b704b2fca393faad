"""Readers of rows as JSON objects, generated for the columns of one layout of one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa

from ..json.faults import Build
from ..json.nodes import Node, cast
from ..json.objects import kind_for
from ..texts import reader_of
from .message import Rows
from .written import ToBytes, text_of, texts_of


class JsonRows(Rows):
    """`message.Rows` of JSON objects. A value may be text or, where that is as exact, a number or a truth value; an array or
    object is read as its JSON text. `to_bytes` makes the values of a binary column."""

    def __init__(self, columns: Mapping[str, tuple[pa.DataType, pa.DataType]], to_bytes: ToBytes) -> None:
        known = {name: _node(to_bytes, sent, wanted) for name, (sent, wanted) in columns.items()}
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


def _node(to_bytes: ToBytes, sent: pa.DataType, wanted: pa.DataType) -> Node:
    read = reader_of(sent)
    if pa.types.is_binary(sent):
        build: Build = partial(_of_bytes, to_bytes)
    elif read is None:
        raise TypeError(f"no text is read as {sent}")
    else:
        build = partial(_of_texts, read)
    return Node(wanted, msgspec.Raw, build if sent == wanted else (lambda values: cast(build(values), wanted)))


def _of_texts(read: Any, values: Sequence[Any]) -> pa.Array:
    return read(texts_of(values))


def _of_bytes(to_bytes: ToBytes, values: Sequence[Any]) -> pa.Array:
    return to_bytes([text_of(value) for value in values])
