"""Readers of rows as JSON objects, generated for the columns of one layout of one table."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa

from replicator.domain.table import TableSpec

from ..json.faults import Build
from ..json.nodes import Node
from ..json.objects import UNSET, kind_for
from ..texts import reader_of
from .layouts import Layout
from .message import Form


class RowReader:
    """Reads the columns of `table` that the layout has. A value may be text or, where that is as exact, a number or a truth
    value; an array or object is read as its JSON text."""

    def __init__(self, form: Form, table: TableSpec, layout: Layout) -> None:
        known = {c.name: _node(form, layout.types[c.name], c.type) for c in table.columns if c.name in layout.types}
        self.columns = known
        self._fields = kind_for(known)(known)
        self.blank: Any = self._fields.empty()
        self.decode = msgspec.json.Decoder(self._fields.wire).decode

    def values(self, rows: Sequence[Any], name: str) -> list[Any]:
        """A column of every row, as `texts_of` reads it: UNSET where the row lacks it."""
        return self._fields.values(rows, name)

    def array(self, name: str, values: Sequence[Any]) -> pa.Array:
        """Values of a column, None for null, as Arrow values. Raises one of `json.faults.FAILURES`."""
        return self._fields.nodes[name].build(values)


def text_of(value: Any) -> str | None:
    """The text that a value is written in."""
    if value is None or value is UNSET:
        return None
    raw = bytes(value)
    if not raw.startswith(b'"'):
        return raw.decode()
    found: str = msgspec.json.decode(raw, type=str)
    return found


def _node(form: Form, sent: pa.DataType, wanted: pa.DataType) -> Node:
    read = reader_of(sent)
    if pa.types.is_binary(sent):
        build: Build = partial(_of_bytes, form)
    elif read is None:
        raise TypeError(f"no text is read as {sent}")
    else:
        build = partial(_of_texts, read)
    return Node(wanted, msgspec.Raw, build if sent == wanted else (lambda values: build(values).cast(wanted)))


def _of_texts(read: Any, values: Sequence[Any]) -> pa.Array:
    return read(pa.array([text_of(value) for value in values], pa.string()))


def _of_bytes(form: Form, values: Sequence[Any]) -> pa.Array:
    return form.to_bytes([text_of(value) for value in values])
