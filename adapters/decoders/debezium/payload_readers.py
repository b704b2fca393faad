"""Cache of payload readers, which are generated for each schema and table."""

from __future__ import annotations

from replicator.domain.errors import Reject
from replicator.domain.table import TableSpec

from ...arrow.out_of_range_values import make_lenient
from ...arrow.record_errors import ValueMisfit, malformed_reject
from ...arrow.value_readers import ValueReader
from .declared_columns import find_readers
from .options import DebeziumOptions
from .records import ChangeReader
from .schema import ConnectSchema, read_key_schema, read_message_schema
from .types import find_schema_reader, holds_decimals

MAX_READERS = 512


def schema_readers(row: ConnectSchema, *, numeric: bool = False) -> dict[str, ValueReader]:
    """The reader of each column of a row. Raises ValueMisfit for an unknown type."""
    return {f.field or "": find_schema_reader(f, numeric=numeric) for f in row.fields or ()}


class PayloadReaders:
    """The readers of one decoder. An unreadable schema has a reject instead."""

    def __init__(self, options: DebeziumOptions) -> None:
        self._options = options
        self._known: dict[tuple[object, ...], ChangeReader | Reject] = {}

    def get_reader(self, schema: bytes | None, table: TableSpec, *, numeric: bool = False) -> ChangeReader | Reject:
        """The reader of payloads with this schema (JSON text), or for None, with the declared columns of `table`.
        `numeric`: decimals may be JSON numbers."""
        return self._get_cached((schema, table, numeric))

    def get_key_reader(self, schema: bytes | None, table: TableSpec) -> ChangeReader | Reject:
        """The reader of message keys with this schema, for tombstones."""
        return self._get_cached((schema, table, "key"))

    def _get_cached(self, which: tuple[bytes | None, TableSpec, bool | str]) -> ChangeReader | Reject:
        if which not in self._known:
            if len(self._known) >= MAX_READERS:
                self._known.clear()
            self._known[which] = self._create_reader(*which)
        return self._known[which]

    def _create_reader(self, schema: bytes | None, table: TableSpec, kind: bool | str) -> ChangeReader | Reject:
        try:
            row = None if schema is None else self._row_schema(schema, kind)
            decimals = row is not None and holds_decimals(row)
            nodes = (
                self.declared_readers(table.name) if row is None else schema_readers(row, numeric=decimals and kind is True)
            )
            for name, node in nodes.items():
                if name not in table.keys:
                    nodes[name] = make_lenient(node, self._options.reading_of(table.name, name))
            return ChangeReader(table, nodes, row, holds_decimals=decimals and kind is False)
        except ValueMisfit as error:
            return error.reject

    def _row_schema(self, schema: bytes, kind: bool | str) -> ConnectSchema:
        if kind == "key":
            return _key_struct(schema)
        said = read_message_schema(schema, self._options.limits)
        if said.row is None:
            raise _to_misfit(said.error)
        return said.row

    def declared_readers(self, table: str) -> dict[str, ValueReader]:
        """The readers of the declared columns of `table`; empty if none are declared."""
        columns = self._options.columns_of(table) or {}
        return find_readers(table, columns, decimals_are=self._options.decimals)


def _key_struct(schema: bytes) -> ConnectSchema:
    said = read_key_schema(schema)
    if said.struct is None:
        raise _to_misfit(said.error)
    return said.struct


def _to_misfit(reject: Reject | None) -> ValueMisfit:
    reject = reject or malformed_reject("it is no change event")
    return ValueMisfit(reject.code, reject.sentence)
