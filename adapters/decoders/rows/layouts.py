"""Layouts of rows: from the schema in a record, or from declared columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256

import msgspec

from replicator.domain.errors import Reject, RejectCode
from replicator.domain.table import RESERVED_PREFIXES, Column

from ...arrow.record_errors import UNREADABLE, ValueMisfit, malformed_reject
from ...arrow.value_readers import ValueReader
from ..json.type_names import find_type_reader
from ..masking.tables import MaskedTables
from .options import RowsDecoderOptions

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
