"""The decoder: its options, and the parts that do its four calls."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from replicator.domain.change import ERROR, OFFSET
from replicator.domain.errors import ConfigProblem, Fatal, Reject
from replicator.domain.table import TableSpec

from ...arrow.dms import COLUMNS, where
from ...arrow.json.headers import values_of
from ...arrow.lines import located
from ...arrow.parts import spec_of_rows
from ...arrow.veils.decoder import VeilingDecoder
from ...arrow.veils.tables import PrivateTables
from .changes import SEQUENCE
from .decode import Decoding
from .envelope import Envelopes
from .layouts import UNDECLARED, Layouts
from .options import read_options
from .routing import Routing
from .veiled import OpensCsv


class DmsCsvDecoder(VeilingDecoder):
    """`ports.decoder.Decoder` of rows of CSV files as AWS DMS writes them. `options` as in `options.Options`; ConfigProblem
    names every wrong one."""

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        given = dict(options or {})
        self._options = read_options(given)
        self._layouts = Layouts(self._options)
        super().__init__(
            given,
            routing=Routing(self._options, self._layouts),
            decoding=Decoding(self._options, self._layouts),
            envelopes=Envelopes(self._options, self._layouts),
            tables=PrivateTables(self._options.private, self._options.declared),
            opens=OpensCsv(self._options, self._layouts),
        )

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
        keys = self._options.keys_of(table)
        spec = spec_of_rows(table, layout.columns, sequence=SEQUENCE, fingerprint=fingerprint, keys=keys)
        return self._options.as_read(self._tables.spec(spec))

    def _refused(self, raw: pa.RecordBatch, table: TableSpec, rejects: list[Reject]) -> pa.Table:
        whole = super()._refused(raw, table, rejects)
        return located(whole, ERROR, whole[OFFSET], where)


def _header(sample: pa.Table) -> bytes | None:
    """The header row of the first record; those of one fingerprint have the same columns."""
    found = values_of(sample.slice(0, 1)["headers"].combine_chunks(), COLUMNS)
    header: bytes | None = found[0].as_py() if len(found) else None
    return header
