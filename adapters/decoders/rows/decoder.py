"""Decoder of rows as JSON objects."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import ERROR, OFFSET
from replicator.domain.errors import ConfigProblem, Fatal, RejectCode
from replicator.domain.policy.expr import Expr
from replicator.domain.table import TableSpec

from ...arrow.record_limits import find_table_entry
from ...transforms.conditions import evaluate_condition
from ..common.composite_decoder import build_row_spec
from ..common.line_offsets import add_line, describe_line
from ..json.schema_frames import find_frames
from ..masking.decoder import MaskingDecoder
from ..masking.tables import MaskedTables
from .envelope import RowEnvelopes
from .layouts import RowLayout, RowLayouts
from .masking import RowOpener
from .options import RowsDecoderOptions, read_options
from .record_decoder import RowFrameDecoder
from .router import RowRouter
from .tombstones import TombstoneRows


class RowsDecoder(MaskingDecoder):
    """`ports.decoder.Decoder` of rows as JSON objects, with and without types. `options` as in
    `options.RowsDecoderOptions`; raises ConfigProblem that names every wrong one."""

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        given = dict(options or {})
        self._options = self.read_options(given)
        self._layouts = RowLayouts(self._options)
        self._tombstones = TombstoneRows(self._options)
        super().__init__(
            given,
            routing=RowRouter(self._options, self._layouts),
            decoding=RowFrameDecoder(self._options, self._layouts),
            envelopes=RowEnvelopes(self._options, self._layouts),
            tables=MaskedTables(self._options.private, self._options.declared),
            opens=RowOpener(self._options, self._layouts),
        )

    @staticmethod
    def read_options(options: Mapping[str, object]) -> RowsDecoderOptions:
        """The validated options. Raises ConfigProblem that names every wrong option without its value."""
        return read_options(options)

    def route(self, raw: pa.Table) -> pa.Table:
        return self._add_line(super().route(self._tombstones.to_rows(raw)), "error", raw["offset"])

    def mask_records(self, raw: pa.Table) -> pa.Table:
        return super().mask_records(self._tombstones.to_rows(raw))

    def envelope(self, raw: pa.Table) -> pa.Table:
        return super().envelope(self._tombstones.to_rows(raw))

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        whole = super().decode(self._tombstones.to_rows(raw), table)
        condition = find_table_entry(self._options.truncates, table.name)
        if condition is not None:
            whole = _accept_truncates(whole, condition)
        return self._add_line(whole, ERROR, whole[OFFSET])

    def _add_line(self, frame: pa.Table, error: str, offsets: pa.ChunkedArray) -> pa.Table:
        return add_line(frame, error, offsets, describe_line) if self._options.in_files else frame

    def learn(self, sample: pa.Table, table: str, fingerprint: str) -> TableSpec:
        layout = self._find_layout(self._tombstones.to_rows(sample), table)
        if layout.error is not None:
            raise Fatal(f"table {table} cannot be represented: {layout.error.sentence}")
        if not layout.readers:
            raise ConfigProblem(
                f"the rows of table {table} carry no types, and none are declared for it",
                next_step="Add to this table's entry under `tables`: `schema: {id: int64, ...}`, all columns with their "
                "Arrow types.",
            )
        keys, sequence = self._options.keys_of(table), self._options.elements
        spec = build_row_spec(table, layout.columns, sequence=sequence, fingerprint=fingerprint, keys=keys)
        return self._options.to_read_types(self._tables.masked_spec(spec))

    def _find_layout(self, sample: pa.Table, table: str) -> RowLayout:
        """The layout of the first readable record; all records have the same."""
        groups = find_frames(sample["value"].combine_chunks(), self._options.limits.depth).groups
        return self._layouts.get_layout(groups[0].schema if groups else None, table)


def _accept_truncates(changes: pa.Table, condition: Expr) -> pa.Table:
    """Accept rows whose only error is a missing key, if the condition holds: every lane makes truncates of them."""
    keyless = pc.fill_null(pc.starts_with(changes[ERROR], f"{RejectCode.NULL_KEY}: "), False)
    if not pc.any(keyless).as_py():
        return changes
    errors = pc.if_else(
        pc.and_(keyless, evaluate_condition(changes, condition)[0]), pa.scalar(None, pa.string()), changes[ERROR]
    )
    return changes.set_column(changes.column_names.index(ERROR), ERROR, errors)
