"""Readers of payloads, generated once per schema and table and kept."""

from __future__ import annotations

from replicator.domain.errors import Reject
from replicator.domain.table import TableSpec

from ..json.faults import Unfit, malformed
from ..json.nodes import Node
from ..out_of_range import lenient
from .declared import nodes_of
from .options import Options
from .records import ChangeReader
from .schema import ConnectSchema, read_key_schema, read_message_schema
from .types import holds_decimals, node_of

MAX_READERS = 512


def schema_nodes(row: ConnectSchema, *, numeric: bool = False) -> dict[str, Node]:
    """How each column of a row is decoded. Raises Unfit for a type that is not known."""
    return {f.field or "": node_of(f, numeric=numeric) for f in row.fields or ()}


class Readers:
    """The readers of one decoder. A schema that cannot be read gives the reason instead."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._known: dict[tuple[object, ...], ChangeReader | Reject] = {}

    def of(self, schema: bytes | None, table: TableSpec, *, numeric: bool = False) -> ChangeReader | Reject:
        """The reader of payloads under the JSON text of their schema; without one, by the declared columns of `table`.
        `numeric`: decimals may be JSON numbers."""
        return self._kept((schema, table, numeric))

    def of_key(self, schema: bytes | None, table: TableSpec) -> ChangeReader | Reject:
        """The reader of message keys under their schema, for tombstones."""
        return self._kept((schema, table, "key"))

    def _kept(self, which: tuple[bytes | None, TableSpec, bool | str]) -> ChangeReader | Reject:
        if which not in self._known:
            if len(self._known) >= MAX_READERS:
                self._known.clear()
            self._known[which] = self._new(*which)
        return self._known[which]

    def _new(self, schema: bytes | None, table: TableSpec, kind: bool | str) -> ChangeReader | Reject:
        try:
            row = None if schema is None else self._row(schema, kind)
            decimals = row is not None and holds_decimals(row)
            nodes = self.declared(table.name) if row is None else schema_nodes(row, numeric=decimals and kind is True)
            for name, node in nodes.items():
                if name not in table.keys:
                    nodes[name] = lenient(node, self._options.reading_of(table.name, name))
            return ChangeReader(table, nodes, row, holds_decimals=decimals and kind is False)
        except Unfit as error:
            return error.reject

    def _row(self, schema: bytes, kind: bool | str) -> ConnectSchema:
        if kind == "key":
            return _struct_of_key(schema)
        said = read_message_schema(schema, self._options.limits)
        if said.row is None:
            raise _refusal(said.error)
        return said.row

    def declared(self, table: str) -> dict[str, Node]:
        """How the declared columns of `table` are decoded; none when nothing is declared."""
        columns = self._options.columns_of(table) or {}
        return nodes_of(table, columns, decimals_are=self._options.decimals)


def _struct_of_key(schema: bytes) -> ConnectSchema:
    said = read_key_schema(schema)
    if said.struct is None:
        raise _refusal(said.error)
    return said.struct


def _refusal(reject: Reject | None) -> Unfit:
    reject = reject or malformed("it is no change event")
    return Unfit(reject.code, reject.sentence)
