"""Raw records to the changes frame: by header row, then by width, then back in their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from replicator.domain.change import ERROR, OFFSET, changes_schema
from replicator.domain.errors import Reject
from replicator.domain.table import TableSpec

from ...arrow.dms import where
from ...arrow.json.pieces import Part, in_order, pieces, rejected, some
from ...arrow.lines import located
from .changes import Block
from .headers import ROWS, by_columns
from .layouts import Layouts
from .named import named_cells
from .options import Options


class Decoding:
    """Decodes frames of records that were routed to one table. Keeps nothing of the records."""

    def __init__(self, options: Options, layouts: Layouts) -> None:
        self._options, self._layouts = options, layouts

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        """See `ports.decoder.Decoder.decode`."""
        done = [self._piece(piece, table) for piece in pieces(raw, ROWS)]
        whole = pa.concat_tables(done or [changes_schema(table).empty_table()])
        return located(whole, ERROR, whole[OFFSET], where)

    def _piece(self, raw: pa.RecordBatch, table: TableSpec) -> pa.Table:
        errors: dict[int, Reject] = {}
        groups = by_columns(raw.column("headers"))
        parts = [part for header, places in groups for part in self._group(raw, header, places, table, errors)]
        if errors:
            bad = sorted(errors)
            parts.append((bad, rejected(some(raw, bad), table, [errors[i] for i in bad])))
        return in_order(parts, changes_schema(table))

    def _group(
        self, raw: pa.RecordBatch, header: bytes | None, places: Sequence[int], table: TableSpec, errors: dict[int, Reject]
    ) -> Iterator[Part]:
        layout = self._layouts.of(header, table.name)
        types = {column.name: column.type for column in layout.columns}
        for mine, rows, named in named_cells(raw, places, layout, self._options.csv, errors):
            yield mine, Block(rows, named, table, self._options, types=types, headless=header is None).build()
