"""What rows look like: by the schema that a record carries, or as the configuration declares them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256

import msgspec

from replicator.domain.errors import Reject, RejectCode
from replicator.domain.table import RESERVED_PREFIXES, Column

from ...arrow.json.faults import UNREADABLE, Unfit, malformed
from ...arrow.json.nodes import Node
from ...arrow.json.spelling import node_of
from ...arrow.veils.tables import PrivateTables
from .options import Options

MAX_LAYOUTS = 4096
BARE = "bare"
UNDECLARED = malformed("its schema is not one of rows, and its table declares no columns")
_schema = msgspec.json.Decoder(dict[str, str | dict[str, object]]).decode


@dataclass(frozen=True, eq=False)
class Layout:
    """The columns of rows, in order, and how each is read; or why they are not known. `fingerprint` tells layouts apart.
    `masked`: of columns that are, how what is there instead of their values is read."""

    fingerprint: str
    nodes: Mapping[str, Node]
    error: Reject | None = None
    masked: Mapping[str, Node] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the table."""
        return tuple(Column(name, node.type) for name, node in self.nodes.items())


class Layouts:
    """The layouts of one decoder; keeps those it has seen."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._own = {options.operation_column, *options.sequence_columns}
        self._private = PrivateTables(options.private)
        self._known: dict[bytes, Layout] = {}
        self._masked: dict[tuple[str, str], Layout] = {}
        self._declared: dict[str, Layout] = {}

    def of(self, schema: bytes | None, table: str) -> Layout:
        """The layout of records of `table` that carry the JSON text `schema`, or none. One without columns where nothing is
        known of records without schema."""
        found = self._said(schema, table)
        masks = self._private.of(table)
        if not masks:
            return found
        which = (found.fingerprint, table)
        if which not in self._masked:
            if len(self._masked) >= MAX_LAYOUTS:
                self._masked.clear()
            texts = {name: self._options.node("string") for name, mask in masks.items() if mask.kind != "nothing"}
            self._masked[which] = replace(found, masked={name: node for name, node in texts.items() if name in found.nodes})
        return self._masked[which]

    def _said(self, schema: bytes | None, table: str) -> Layout:
        if schema is None:
            return self.declared(table)
        if schema not in self._known:
            if len(self._known) >= MAX_LAYOUTS:
                self._known.clear()
            self._known[schema] = self._read(schema)
        known, said = self._known[schema], None
        if known.error is UNDECLARED:
            said = self.declared(table)
        return said if said and said.nodes else known

    def carries(self, schema: bytes) -> bool:
        """Whether it is a schema of rows, whose types are those of its records."""
        return schema in self._known and self._known[schema].error is None

    def declared(self, table: str) -> Layout:
        """The layout that the configuration declares."""
        if table not in self._declared:
            if len(self._declared) >= MAX_LAYOUTS:
                self._declared.clear()
            columns = self._options.columns_of(table) or {}
            self._declared[table] = Layout(BARE, {name: self._options.node(said) for name, said in columns.items()})
        return self._declared[table]

    def _read(self, schema: bytes) -> Layout:
        fingerprint = sha256(schema).hexdigest()[:16]
        try:
            said = _schema(schema)
            nodes = {name: node_of(one) for name, one in said.items() if not self._is_bookkeeping(name)}
        except (*UNREADABLE, Unfit):
            return Layout(fingerprint, {}, UNDECLARED)
        if len(nodes) > self._options.limits.columns:
            most = self._options.limits.columns
            reason = f"its schema has {len(nodes)} columns, more than the {most} allowed"
            return Layout(fingerprint, {}, Reject(RejectCode.TOO_LARGE, reason))
        return Layout(fingerprint, nodes, None if nodes else malformed("its schema describes a row without columns"))

    def _is_bookkeeping(self, name: str) -> bool:
        return name in self._own or name.startswith(RESERVED_PREFIXES)
