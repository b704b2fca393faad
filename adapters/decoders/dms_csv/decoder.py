"""Decoder of DMS's CSV rows."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from replicator.domain.change import ERROR, OFFSET
from replicator.domain.errors import ConfigProblem, Fatal, Reject
from replicator.domain.table import TableSpec

from ..common.composite_decoder import build_row_spec
from ..common.dms_rows import COLUMNS, describe_place
from ..common.line_offsets import add_line
from ..json.headers import read_values
from ..masking.decoder import MaskingDecoder
from ..masking.tables import MaskedTables
from .changes import SEQUENCE
from .envelope import CsvEnvelopes
from .layouts import UNDECLARED, CsvLayouts
from .masking import CsvOpener
from .options import read_options
from .record_decoder import CsvFrameDecoder
from .router import CsvRouter


class DmsCsvDecoder(MaskingDecoder):
    """`ports.decoder.Decoder` of rows of AWS DMS's CSV files. `options` as in `options.DmsCsvOptions`; raises
    ConfigProblem that names every wrong one."""

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        given = dict(options or {})
        self._options = read_options(given)
        self._layouts = CsvLayouts(self._options)
        super().__init__(
            given,
            routing=CsvRouter(self._options, self._layouts),
            decoding=CsvFrameDecoder(self._options, self._layouts),
            envelopes=CsvEnvelopes(self._options, self._layouts),
            tables=MaskedTables(self._options.private, self._options.declared),
            opens=CsvOpener(self._options, self._layouts),
        )

    def learn(self, sample: pa.Table, table: str, fingerprint: str) -> TableSpec:
        layout = self._layouts.get_layout(_find_header(sample), table)
        if layout.error is UNDECLARED:
            raise ConfigProblem(
                f"the files of table {table} have no header row, and no columns are declared for it",
                next_step="Add to this table's entry under `tables`: `schema: {id: int64, ...}`, all columns in their "
                "order; or have DMS write header rows (AddColumnName) and set `csv.header: true`.",
            )
        if layout.error is not None:
            raise Fatal(f"table {table} cannot be represented: {layout.error.sentence}")
        keys = self._options.keys_of(table)
        spec = build_row_spec(table, layout.columns, sequence=SEQUENCE, fingerprint=fingerprint, keys=keys)
        return self._options.to_read_types(self._tables.masked_spec(spec))

    def _build_rejected(self, raw: pa.RecordBatch, table: TableSpec, rejects: list[Reject]) -> pa.Table:
        whole = super()._build_rejected(raw, table, rejects)
        return add_line(whole, ERROR, whole[OFFSET], describe_place)


def _find_header(sample: pa.Table) -> bytes | None:
    """The header row of the first record; records with one fingerprint have the same columns."""
    found = read_values(sample.slice(0, 1)["headers"].combine_chunks(), COLUMNS)
    header: bytes | None = found[0].as_py() if len(found) else None
    return header
