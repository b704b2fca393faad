"""Readers of payloads, generated for one layout of one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from replicator.domain.table import TableSpec

from ...arrow.json_objects import UNSET, choose_objects
from ...arrow.out_of_range_values import make_lenient
from ...arrow.record_errors import Read, decode_or_reject
from ...arrow.value_readers import ValueReader, cast_values
from .layouts import BARE, RowLayout
from .options import RowsDecoderOptions

Scalar = str | int | float | bool


class RowReader:
    """Decodes payloads: the columns of `table` that the layout has, and the fields that describe the change."""

    def __init__(self, table: TableSpec, layout: RowLayout, options: RowsDecoderOptions) -> None:
        nodes = {**layout.readers, **layout.masked}
        for name in nodes.keys() - set(table.keys):
            nodes[name] = make_lenient(nodes[name], options.reading_of(table.name, name))
        known = {c.name: _with_type(nodes[c.name], c.type) for c in table.columns if c.name in nodes}
        kind = choose_objects((*known, *_extra_fields(options)))
        self.table, self._olds = table, kind(known)
        self._fields = kind({**_metadata_readers(options, self._olds.wire), **known})
        self.columns = {name: self._fields.nodes[name] for name in known}
        self.is_typed = layout.fingerprint != BARE
        self.blank: Any = self._fields.empty()
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(self._fields.wire).decode

    def read_rows(self, payloads: list[bytes]) -> Read:
        """One object per payload; `blank` for unreadable payloads."""
        return decode_or_reject(self._decode, payloads, self.blank)

    def read_values(self, rows: Sequence[Any], name: str) -> list[Any]:
        """A column of every row: UNSET if it is missing."""
        return self._fields.values(rows, name)

    def read_metadata(self, rows: Sequence[Any], name: str) -> list[Any]:
        """A metadata field of every row; None if it is missing."""
        found = self._fields.values(rows, name)
        return [None if v is UNSET else msgspec.json.decode(v) if isinstance(v, msgspec.Raw) else v for v in found]

    def read_olds(self, rows: Sequence[Any], name: str) -> list[Any]:
        """The old values of every row as an object, or None. Raises one of UNREADABLE."""
        found = self._fields.values(rows, name)
        return [None if v is UNSET else self._type_old(v) if isinstance(v, msgspec.Raw) else v for v in found]

    def _type_old(self, old: msgspec.Raw) -> Any:
        return msgspec.json.decode(old, type=self._olds.wire)

    def read_old_values(self, olds: Sequence[Any], name: str) -> list[Any]:
        """A column of the objects from `read_olds`; UNSET if it did not change."""
        return self._olds.values(olds, name)


def _extra_fields(options: RowsDecoderOptions) -> tuple[str, ...]:
    return (options.operation_column, *options.sequence_columns)


def _metadata_readers(options: RowsDecoderOptions, old: Any) -> dict[str, ValueReader]:
    """The fields that describe the change. A column of the table with the same name takes precedence."""
    scalar: Any = Scalar
    fields = dict.fromkeys(_extra_fields(options), ValueReader(pa.string(), scalar, pa.array))
    return (
        fields if options.before_field is None else {**fields, options.before_field: ValueReader(pa.null(), old, pa.array)}
    )


def _with_type(node: ValueReader, arrow: pa.DataType) -> ValueReader:
    """A reader like `node` for arrays of `arrow`, the type of another version of the schema."""
    if node.type == arrow:
        return node
    return ValueReader(arrow, node.wire, lambda values: cast_values(node.build(values), arrow), node.placeholder)
