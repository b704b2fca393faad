"""What the event log keeps of a row beside its bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import Op
from replicator.domain.errors import Reject
from replicator.domain.moments import in_years
from replicator.ports.decoder import ENVELOPE

from ...arrow.json.envelopes import envelope
from ...arrow.json.pieces import Part, in_order, pieces
from .changes import STAMP, operations, sequence
from .headers import by_columns, part_of
from .layouts import Layout, Layouts
from .named import named_cells
from .options import FORMAT, Options


class Envelopes:
    """Reads envelopes of any records; what cannot be read is null, and its `error` says why."""

    def __init__(self, options: Options, layouts: Layouts) -> None:
        self._options, self._layouts = options, layouts

    def envelope(self, raw: pa.Table) -> pa.Table:
        """See `ports.decoder.Decoder.envelope`."""
        return pa.concat_tables([ENVELOPE.empty_table(), *map(self._piece, pieces(raw))]).combine_chunks()

    def _piece(self, raw: pa.RecordBatch) -> pa.Table:
        errors: dict[int, Reject] = {}
        parts = [
            part
            for header, places in by_columns(raw.column("headers"))
            for part in self._header(raw, header, places, errors)
        ]
        if errors:
            present = raw.column("value").is_valid().to_pylist()
            said = [str(error) if present[i] else None for i, error in errors.items()]
            parts.append((list(errors), envelope(len(said), {"error": pa.array(said, pa.string())})))
        return in_order(parts, ENVELOPE)

    def _header(
        self, raw: pa.RecordBatch, header: bytes | None, places: Sequence[int], errors: dict[int, Reject]
    ) -> Iterator[Part]:
        """The records that have this header row, table by table."""
        topics = raw.column("topic")
        for topic in pc.unique(part_of(raw, places).column("topic")).to_pylist():
            of_topic = pc.equal(topics, topic).to_pylist()
            mine = [place for place in places if of_topic[place]]
            layout = self._layouts.of(header, topic)
            for where, rows, named in named_cells(raw, mine, layout, self._options.csv, errors):
                yield where, self._rows(rows, named, layout)

    def _rows(self, raw: pa.RecordBatch, cells: Mapping[str, pa.Array], layout: Layout) -> pa.Table:
        said = cells.get(self._options.operation_column)
        ops = operations(said, raw, self._options)
        known, nothing = pc.is_valid(ops), pa.scalar(None, pa.string())
        images = pc.if_else(known, _texts(cells), nothing)
        deleted = pc.fill_null(pc.equal(ops, Op.DELETE.value), False)
        first, second = sequence(raw.column("offset"))
        columns = {
            "before": pc.if_else(deleted, images, nothing),
            "after": pc.if_else(deleted, nothing, images),
            "connector": pc.if_else(known, FORMAT, nothing),
            "table": pc.if_else(known, raw.column("topic"), nothing),
            "op": ops,
            "seq_1": first,
            "seq_2": second,
            "ts": in_years(raw.column("timestamp").cast(STAMP)),
            "schema_id": pa.repeat(pa.scalar(layout.fingerprint), raw.num_rows),
            "error": self._errors(ops, said),
        }
        return envelope(raw.num_rows, columns)

    def _errors(self, ops: pa.Array, said: pa.Array | None) -> pa.Array:
        """Why an operation is none."""
        if not ops.null_count or said is None:
            return pa.nulls(len(ops), pa.string())
        reasons = [str(self._options.unknown_operation(value)) for value in (None, "")]
        reason = pc.if_else(pc.is_null(said), *reasons)
        return pc.if_else(pc.is_null(ops), reason, pa.scalar(None, pa.string()))


def _texts(cells: Mapping[str, pa.Array]) -> pa.Array:
    """Every row as a JSON object of texts."""
    rows = zip(*(column.to_pylist() for column in cells.values()), strict=True)
    return pa.array([msgspec.json.encode(dict(zip(cells, row, strict=True))).decode() for row in rows], pa.string())
