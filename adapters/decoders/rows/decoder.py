"""The decoder: its options, and the parts that do its four calls."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import ERROR, OFFSET
from replicator.domain.errors import ConfigProblem, Fatal, RejectCode
from replicator.domain.expr import Expr
from replicator.domain.table import TableSpec

from ...arrow.conditions import holds
from ...arrow.json.framing import frames
from ...arrow.json.limits import of_table
from ...arrow.lines import line_of, located
from ...arrow.parts import spec_of_rows
from ...arrow.veils.decoder import VeilingDecoder
from ...arrow.veils.tables import PrivateTables
from .decode import Decoding
from .envelope import Envelopes
from .layouts import Layout, Layouts
from .options import Options, read_options
from .routing import Routing
from .tombstones import Tombstones
from .veiled import OpensRows


class RowsDecoder(VeilingDecoder):
    """`ports.decoder.Decoder` of rows as JSON objects, with and without types. `options` as in `options.Options`;
    ConfigProblem names every wrong one."""

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        given = dict(options or {})
        self._options = self.read_options(given)
        self._layouts = Layouts(self._options)
        self._tombstones = Tombstones(self._options)
        super().__init__(
            given,
            routing=Routing(self._options, self._layouts),
            decoding=Decoding(self._options, self._layouts),
            envelopes=Envelopes(self._options, self._layouts),
            tables=PrivateTables(self._options.private, self._options.declared),
            opens=OpensRows(self._options, self._layouts),
        )

    @staticmethod
    def read_options(options: Mapping[str, object]) -> Options:
        """The options, or ConfigProblem that names every wrong one without its value."""
        return read_options(options)

    def route(self, raw: pa.Table) -> pa.Table:
        """See `ports.decoder.Decoder.route`."""
        return self._located(super().route(self._tombstones.to_rows(raw)), "error", raw["offset"])

    def veiled(self, raw: pa.Table) -> pa.Table:
        """See `ports.decoder.KeepsPrivate.veiled`."""
        return super().veiled(self._tombstones.to_rows(raw))

    def envelope(self, raw: pa.Table) -> pa.Table:
        """See `ports.decoder.Decoder.envelope`."""
        return super().envelope(self._tombstones.to_rows(raw))

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        """See `ports.decoder.Decoder.decode`."""
        whole = super().decode(self._tombstones.to_rows(raw), table)
        condition = of_table(self._options.truncates, table.name)
        if condition is not None:
            whole = _accept_truncates(whole, condition)
        return self._located(whole, ERROR, whole[OFFSET])

    def _located(self, frame: pa.Table, error: str, offsets: pa.ChunkedArray) -> pa.Table:
        return located(frame, error, offsets, line_of) if self._options.in_files else frame

    def learn(self, sample: pa.Table, table: str, fingerprint: str) -> TableSpec:
        """See `ports.decoder.Decoder.learn`."""
        layout = self._layout(self._tombstones.to_rows(sample), table)
        if layout.error is not None:
            raise Fatal(f"table {table} cannot be represented: {layout.error.sentence}")
        if not layout.nodes:
            raise ConfigProblem(
                f"the rows of table {table} carry no types, and none are declared for it",
                next_step="Add to this table's entry under `tables`: `schema: {id: int64, ...}`, all columns with their "
                "Arrow types.",
            )
        keys, sequence = self._options.keys_of(table), self._options.elements
        spec = spec_of_rows(table, layout.columns, sequence=sequence, fingerprint=fingerprint, keys=keys)
        return self._options.as_read(self._tables.spec(spec))

    def _layout(self, sample: pa.Table, table: str) -> Layout:
        """Of the first record that can be read; all have the same."""
        groups = frames(sample["value"].combine_chunks(), self._options.limits.depth).groups
        return self._layouts.of(groups[0].schema if groups else None, table)


def _accept_truncates(changes: pa.Table, condition: Expr) -> pa.Table:
    """Rows that lack nothing but a key are right where the condition holds: every lane makes truncates of them."""
    keyless = pc.fill_null(pc.starts_with(changes[ERROR], f"{RejectCode.NULL_KEY}: "), False)
    if not pc.any(keyless).as_py():
        return changes
    errors = pc.if_else(pc.and_(keyless, holds(changes, condition)[0]), pa.scalar(None, pa.string()), changes[ERROR])
    return changes.set_column(changes.column_names.index(ERROR), ERROR, errors)
