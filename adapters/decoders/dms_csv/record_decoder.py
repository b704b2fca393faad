"""Decoding of raw records to the changes frame: split by header row and width, merged in their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from replicator.domain.change import ERROR, OFFSET, changes_schema
from replicator.domain.errors import Reject
from replicator.domain.table import TableSpec

from ...arrow.frame_slices import Part, build_rejected, merge_parts, select_records, split_frame
from ..common.dms_rows import describe_place
from ..common.line_offsets import add_line
from .changes import CsvChangeBlock
from .headers import ROWS, group_by_header
from .layouts import CsvLayouts
from .named_cells import read_named_cells
from .options import DmsCsvOptions


class CsvFrameDecoder:
    """Decodes frames of records of one table. Caches nothing of the records."""

    def __init__(self, options: DmsCsvOptions, layouts: CsvLayouts) -> None:
        self._options, self._layouts = options, layouts

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        done = [self._decode_slice(piece, table) for piece in split_frame(raw, ROWS)]
        whole = pa.concat_tables(done or [changes_schema(table).empty_table()])
        return add_line(whole, ERROR, whole[OFFSET], describe_place)

    def _decode_slice(self, raw: pa.RecordBatch, table: TableSpec) -> pa.Table:
        errors: dict[int, Reject] = {}
        groups = group_by_header(raw.column("headers"))
        parts = [part for header, places in groups for part in self._decode_group(raw, header, places, table, errors)]
        if errors:
            bad = sorted(errors)
            parts.append((bad, build_rejected(select_records(raw, bad), table, [errors[i] for i in bad])))
        return merge_parts(parts, changes_schema(table))

    def _decode_group(
        self, raw: pa.RecordBatch, header: bytes | None, places: Sequence[int], table: TableSpec, errors: dict[int, Reject]
    ) -> Iterator[Part]:
        layout = self._layouts.get_layout(header, table.name)
        types = {column.name: column.type for column in layout.columns}
        for mine, rows, named in read_named_cells(raw, places, layout, self._options.csv, errors):
            yield mine, CsvChangeBlock(rows, named, table, self._options, types=types, headless=header is None).build()
