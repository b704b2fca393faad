"""Layouts of rows: from the schema in a record, or from declared columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import msgspec
import pyarrow as pa

from replicator.domain.errors import Reject, RejectCode
from replicator.domain.table import RESERVED_PREFIXES, Column, TableSpec

from ...arrow.out_of_range_values import make_lenient
from ...arrow.record_errors import UNREADABLE, Read, ValueMisfit, decode_or_reject, malformed_reject
from ...arrow.value_readers import UNSET, ValueReader, cast_values, choose_objects
from ..json.type_names import find_type_reader
from ..masking import MaskedTables
from ..options import RowsDecoderOptions

MAX_LAYOUTS = 4096
BARE = "bare"
UNDECLARED = malformed_reject("its schema is not one of rows, and its table declares no columns")
_schema = msgspec.json.Decoder(dict[str, str | dict[str, object]]).decode


@dataclass(frozen=True, eq=False)
class RowLayout:
    """The columns of rows in order with their readers, or an error. `fingerprint` distinguishes layouts. `masked`:
    readers for masked columns."""

    fingerprint: str
    readers: Mapping[str, ValueReader]
    error: Reject | None = None
    masked: Mapping[str, ValueReader] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the table."""
        return tuple(Column(name, node.type) for name, node in self.readers.items())


class RowLayouts:
    """The layouts of one decoder, cached."""

    def __init__(self, options: RowsDecoderOptions) -> None:
        self._options = options
        self._own = {options.operation_column, *options.sequence_columns}
        self._private = MaskedTables(options.private)
        self._known: dict[bytes, RowLayout] = {}
        self._masked: dict[tuple[str, str], RowLayout] = {}
        self._declared: dict[str, RowLayout] = {}

    def get_layout(self, schema: bytes | None, table: str) -> RowLayout:
        """The layout of records of `table` with the JSON text `schema`, or None for records without one. Without a schema
        and declared columns the layout has no columns."""
        found = self._find_layout(schema, table)
        masks = self._private.get_masks(table)
        if not masks:
            return found
        which = (found.fingerprint, table)
        if which not in self._masked:
            if len(self._masked) >= MAX_LAYOUTS:
                self._masked.clear()
            kept = (name for name, mask in masks.items() if mask.kind != "nothing")
            texts = {name: self._options.find_column_reader("string") for name in kept}
            self._masked[which] = replace(
                found, masked={name: node for name, node in texts.items() if name in found.readers}
            )
        return self._masked[which]

    def _find_layout(self, schema: bytes | None, table: str) -> RowLayout:
        if schema is None:
            return self.declared_layout(table)
        if schema not in self._known:
            if len(self._known) >= MAX_LAYOUTS:
                self._known.clear()
            self._known[schema] = self._read_layout(schema)
        known, said = self._known[schema], None
        if known.error is UNDECLARED:
            said = self.declared_layout(table)
        return said if said and said.readers else known

    def is_row_schema(self, schema: bytes) -> bool:
        """True for a valid schema of rows, which defines the types of its records."""
        return schema in self._known and self._known[schema].error is None

    def declared_layout(self, table: str) -> RowLayout:
        """The layout of the declared columns."""
        if table not in self._declared:
            if len(self._declared) >= MAX_LAYOUTS:
                self._declared.clear()
            columns = self._options.columns_of(table) or {}
            self._declared[table] = RowLayout(
                BARE, {name: self._options.find_column_reader(said) for name, said in columns.items()}
            )
        return self._declared[table]

    def _read_layout(self, schema: bytes) -> RowLayout:
        fingerprint = sha256(schema).hexdigest()[:16]
        try:
            said = _schema(schema)
            nodes = {name: find_type_reader(one) for name, one in said.items() if not self._is_bookkeeping(name)}
        except (*UNREADABLE, ValueMisfit):
            return RowLayout(fingerprint, {}, UNDECLARED)
        if len(nodes) > self._options.limits.columns:
            most = self._options.limits.columns
            reason = f"its schema has {len(nodes)} columns, more than the {most} allowed"
            return RowLayout(fingerprint, {}, Reject(RejectCode.TOO_LARGE, reason))
        return RowLayout(
            fingerprint, nodes, None if nodes else malformed_reject("its schema describes a row without columns")
        )

    def _is_bookkeeping(self, name: str) -> bool:
        return name in self._own or name.startswith(RESERVED_PREFIXES)


# Readers of payloads, generated for one layout of one table.


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
