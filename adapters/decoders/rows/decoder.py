"""The decoder: its options, and the parts that do its four calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from replicator.domain.change import refuse_frame_names
from replicator.domain.errors import ConfigProblem, Fatal
from replicator.domain.table import TableSpec

from ...arrow.json.framing import frames
from .decode import Decoding
from .envelope import Envelopes
from .layouts import Layout, Layouts
from .options import read_options
from .routing import Routing


class RowsDecoder:
    """`ports.decoder.Decoder` of rows as JSON objects, with and without types. `options` as in `options.Options`;
    ConfigProblem names every wrong one. Pickled by its options: it keeps generated readers, never rows."""

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        self._given = dict(options or {})
        self._options = read_options(self._given)
        self._layouts = Layouts(self._options)
        self._routing = Routing(self._options, self._layouts)
        self._decoding = Decoding(self._options, self._layouts)
        self._envelopes = Envelopes(self._options, self._layouts)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._given,)

    def route(self, raw: pa.Table) -> pa.Table:
        """See `ports.decoder.Decoder.route`."""
        return self._routing.route(raw)

    def learn(self, sample: pa.Table, table: str, fingerprint: str) -> TableSpec:
        """See `ports.decoder.Decoder.learn`."""
        layout = self._layout(sample, table)
        if layout.error is not None:
            raise Fatal(f"table {table} cannot be represented: {layout.error.sentence}")
        if not layout.nodes:
            raise ConfigProblem(
                f"the rows of table {table} carry no types, and none are declared for it",
                next_step="Add to this table's entry under `tables`: `schema: {id: int64, ...}`, all columns with their "
                "Arrow types.",
            )
        spec = TableSpec(table, layout.columns, (), len(self._options.sequence_columns), fingerprint)
        spec.refuse_reserved_names()
        refuse_frame_names(spec)
        return spec.with_keys(tuple(self._options.keys_of(table) or ()))

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        """See `ports.decoder.Decoder.decode`."""
        return self._decoding.decode(raw, table)

    def envelope(self, raw: pa.Table) -> pa.Table:
        """See `ports.decoder.Decoder.envelope`."""
        return self._envelopes.envelope(raw)

    def _layout(self, sample: pa.Table, table: str) -> Layout:
        """Of the first record that can be read; all have the same."""
        groups = frames(sample["value"].combine_chunks(), self._options.limits.depth).groups
        return self._layouts.of(groups[0].schema if groups else None, table)
