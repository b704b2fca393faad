"""The decoder: its options, and the parts that do its four calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from replicator.domain.change import refuse_frame_names
from replicator.domain.errors import ConfigProblem, Fatal
from replicator.domain.table import TableSpec

from ...arrow.dms import COLUMNS
from ...arrow.json.headers import values_of
from .changes import SEQUENCE
from .decode import Decoding
from .envelope import Envelopes
from .layouts import UNDECLARED, Layouts
from .options import read_options
from .routing import Routing


class DmsCsvDecoder:
    """`ports.decoder.Decoder` of rows of CSV files as AWS DMS writes them. `options` as in `options.Options`; ConfigProblem
    names every wrong one. Pickled by its options: it keeps layouts, never rows."""

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
        layout = self._layouts.of(_header(sample), table)
        if layout.error is UNDECLARED:
            raise ConfigProblem(
                f"the files of table {table} have no header row, and no columns are declared for it",
                next_step="Add to this table's entry under `tables`: `schema: {id: int64, ...}`, all columns in their "
                "order; or have DMS write header rows (AddColumnName) and set `csv.header: true`.",
            )
        if layout.error is not None:
            raise Fatal(f"table {table} cannot be represented: {layout.error.sentence}")
        spec = TableSpec(table, layout.columns, (), SEQUENCE, fingerprint)
        spec.refuse_reserved_names()
        refuse_frame_names(spec)
        return spec.with_keys(tuple(self._options.keys_of(table) or ()))

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        """See `ports.decoder.Decoder.decode`."""
        return self._decoding.decode(raw, table)

    def envelope(self, raw: pa.Table) -> pa.Table:
        """See `ports.decoder.Decoder.envelope`."""
        return self._envelopes.envelope(raw)


def _header(sample: pa.Table) -> bytes | None:
    """The header row of the first record; those of one fingerprint have the same columns."""
    found = values_of(sample.slice(0, 1)["headers"].combine_chunks(), COLUMNS)
    header: bytes | None = found[0].as_py() if len(found) else None
    return header
