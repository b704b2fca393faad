"""Readers of payloads, generated for one layout of one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from replicator.domain.table import TableSpec

from ...arrow.json.faults import Read, read
from ...arrow.json.nodes import Node, cast
from ...arrow.json.objects import UNSET, kind_for
from ...arrow.out_of_range import lenient
from .layouts import BARE, Layout
from .options import Options

Scalar = str | int | float | bool


class RowReader:
    """Decodes payloads, of which it reads the columns of `table` that the layout has, and what says of the change."""

    def __init__(self, table: TableSpec, layout: Layout, options: Options) -> None:
        nodes = {**layout.nodes, **layout.masked}
        for name in nodes.keys() - set(table.keys):
            nodes[name] = lenient(nodes[name], options.reading_of(table.name, name))
        known = {c.name: _as_column(nodes[c.name], c.type) for c in table.columns if c.name in nodes}
        kind = kind_for((*known, *_extras(options)))
        self.table, self._olds = table, kind(known)
        self._fields = kind({**_own(options, self._olds.wire), **known})
        self.columns = {name: self._fields.nodes[name] for name in known}
        self.is_typed = layout.fingerprint != BARE
        self.blank: Any = self._fields.empty()
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(self._fields.wire).decode

    def rows(self, payloads: list[bytes]) -> Read:
        """One object per payload; `blank` where there is an error."""
        return read(self._decode, payloads, self.blank)

    def values(self, rows: Sequence[Any], name: str) -> list[Any]:
        """A column of the table of every row: UNSET where the row lacks it."""
        return self._fields.values(rows, name)

    def said(self, rows: Sequence[Any], name: str) -> list[Any]:
        """What every row says in a column that tells of the change, None where it says nothing."""
        found = self._fields.values(rows, name)
        return [None if v is UNSET else msgspec.json.decode(v) if isinstance(v, msgspec.Raw) else v for v in found]

    def olds(self, rows: Sequence[Any], name: str) -> list[Any]:
        """The object of the values that every row had before, None where there is none. Raises one of UNREADABLE."""
        found = self._fields.values(rows, name)
        return [None if v is UNSET else self._typed(v) if isinstance(v, msgspec.Raw) else v for v in found]

    def _typed(self, old: msgspec.Raw) -> Any:
        return msgspec.json.decode(old, type=self._olds.wire)

    def old_values(self, olds: Sequence[Any], name: str) -> list[Any]:
        """A column of what `olds` gave; UNSET where it did not change."""
        return self._olds.values(olds, name)


def _extras(options: Options) -> tuple[str, ...]:
    return (options.operation_column, *options.sequence_columns)


def _own(options: Options, old: Any) -> dict[str, Node]:
    """The fields that tell of the change; a column of the table of that name is read as the column is."""
    scalar: Any = Scalar
    fields = dict.fromkeys(_extras(options), Node(pa.string(), scalar, pa.array))
    return fields if options.before is None else {**fields, options.before: Node(pa.null(), old, pa.array)}


def _as_column(node: Node, arrow: pa.DataType) -> Node:
    """`node` making arrays of `arrow`, which the table may have from another version of its schema."""
    if node.type == arrow:
        return node
    return Node(arrow, node.wire, lambda values: cast(node.build(values), arrow), node.unsent)
