"""Envelope columns of the event log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import Op
from replicator.domain.errors import Reject
from replicator.domain.time_bounds import null_out_of_range
from replicator.ports.decoder import ENVELOPE

from ...arrow.frame_slices import Part, merge_parts, split_frame
from ..json.envelopes import build_envelope
from .changes import STAMP, read_operations, to_sequence
from .headers import group_by_header, select_part
from .layouts import CsvLayout, CsvLayouts
from .named_cells import read_named_cells
from .options import FORMAT, DmsCsvOptions


class CsvEnvelopes:
    """Reads the envelopes of any records. Unreadable values are null, with the reason in `error`."""

    def __init__(self, options: DmsCsvOptions, layouts: CsvLayouts) -> None:
        self._options, self._layouts = options, layouts

    def envelope(self, raw: pa.Table) -> pa.Table:
        return pa.concat_tables([ENVELOPE.empty_table(), *map(self._read_slice, split_frame(raw))]).combine_chunks()

    def _read_slice(self, raw: pa.RecordBatch) -> pa.Table:
        errors: dict[int, Reject] = {}
        parts = [
            part
            for header, places in group_by_header(raw.column("headers"))
            for part in self._read_header_group(raw, header, places, errors)
        ]
        if errors:
            present = raw.column("value").is_valid().to_pylist()
            said = [str(error) if present[i] else None for i, error in errors.items()]
            parts.append((list(errors), build_envelope(len(said), {"error": pa.array(said, pa.string())})))
        return merge_parts(parts, ENVELOPE)

    def _read_header_group(
        self, raw: pa.RecordBatch, header: bytes | None, places: Sequence[int], errors: dict[int, Reject]
    ) -> Iterator[Part]:
        """The envelopes of records with this header row, table by table."""
        topics = raw.column("topic")
        for topic in pc.unique(select_part(raw, places).column("topic")).to_pylist():
            of_topic = pc.equal(topics, topic).to_pylist()
            mine = [place for place in places if of_topic[place]]
            layout = self._layouts.get_layout(header, topic)
            for where, rows, named in read_named_cells(raw, mine, layout, self._options.csv, errors):
                yield where, self._build_rows(rows, named, layout)

    def _build_rows(self, raw: pa.RecordBatch, cells: Mapping[str, pa.Array], layout: CsvLayout) -> pa.Table:
        said = cells.get(self._options.operation_column)
        ops = read_operations(said, raw, self._options)
        known, nothing = pc.is_valid(ops), pa.scalar(None, pa.string())
        images = pc.if_else(known, _to_json_texts(cells), nothing)
        deleted = pc.fill_null(pc.equal(ops, Op.DELETE.value), False)
        first, second = to_sequence(raw.column("offset"))
        columns = {
            "before": pc.if_else(deleted, images, nothing),
            "after": pc.if_else(deleted, nothing, images),
            "connector": pc.if_else(known, FORMAT, nothing),
            "table": pc.if_else(known, raw.column("topic"), nothing),
            "op": ops,
            "seq_1": first,
            "seq_2": second,
            "ts": null_out_of_range(raw.column("timestamp").cast(STAMP)),
            "schema_id": pa.repeat(pa.scalar(layout.fingerprint), raw.num_rows),
            "error": self._find_errors(ops, said),
        }
        return build_envelope(raw.num_rows, columns)

    def _find_errors(self, ops: pa.Array, said: pa.Array | None) -> pa.Array:
        """The errors of rows with an unknown operation."""
        if not ops.null_count or said is None:
            return pa.nulls(len(ops), pa.string())
        reasons = [str(self._options.unknown_operation_reject(value)) for value in (None, "")]
        reason = pc.if_else(pc.is_null(said), *reasons)
        return pc.if_else(pc.is_null(ops), reason, pa.scalar(None, pa.string()))


def _to_json_texts(cells: Mapping[str, pa.Array]) -> pa.Array:
    """Every row as a JSON object of texts."""
    rows = zip(*(column.to_pylist() for column in cells.values()), strict=True)
    return pa.array([msgspec.json.encode(dict(zip(cells, row, strict=True))).decode() for row in rows], pa.string())
