"""Decoding of raw records to the changes frame: split by schema, decoded in blocks, merged in their order."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import OFFSET, PARTITION, TOPIC, changes_schema
from replicator.domain.errors import Reject
from replicator.domain.table import TableSpec

from ...arrow.frame_slices import build_rejected, select_records, split_frame
from ...arrow.record_errors import malformed_reject
from ..json.schema_frames import SchemaGroup, find_frames, split_members
from .changes import RowChangeBlock
from .layouts import RowLayouts
from .options import RowsDecoderOptions
from .reader import RowReader

MAX_READERS = 512
EMPTY = malformed_reject("its value is empty")
Part = tuple[list[int], pa.Table]
"""Indices of records in their slice, and their changes: one row per record, or several consecutive ones."""


class RowFrameDecoder:
    """Decodes frames of records of one table. Caches generated readers, never records."""

    def __init__(self, options: RowsDecoderOptions, layouts: RowLayouts) -> None:
        self._options, self._layouts = options, layouts
        self._readers: dict[tuple[str | None, TableSpec], RowReader] = {}

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        done = [self._decode_slice(piece, table) for piece in split_frame(raw)]
        return pa.concat_tables([changes_schema(table).empty_table(), *done]).combine_chunks()

    def _decode_slice(self, raw: pa.RecordBatch, table: TableSpec) -> pa.Table:
        values = raw.column("value")
        found = find_frames(values, self._options.limits.depth)
        errors: dict[int, Reject] = dict.fromkeys(pc.indices_nonzero(pc.is_null(values)).to_pylist(), EMPTY)
        errors |= found.errors
        parts = [part for group in found.groups for part in self._decode_group(raw, group, table, errors)]
        if errors:
            bad = sorted(errors)
            parts.append((bad, build_rejected(select_records(raw, bad), table, [errors[i] for i in bad])))
        return _merge_in_order(parts, raw, changes_schema(table))

    def _decode_group(
        self, raw: pa.RecordBatch, group: SchemaGroup, table: TableSpec, errors: dict[int, Reject]
    ) -> Iterator[Part]:
        rows = list(range(raw.num_rows)) if group.rows is None else group.rows
        reader = self._get_reader(group.schema, table)
        if isinstance(reader, Reject):
            errors |= dict.fromkeys(rows, reader)
            return
        found, bad = reader.read_rows(group.payloads())
        whole = split_members(raw.column("value"), group, bad, self._options.limits.depth)
        again, still = reader.read_rows([*whole.values()])
        for number, i in enumerate(whole):
            if number not in still:
                found[i] = again[number]
                del bad[i]
        errors |= {rows[i]: reject for i, reject in bad.items()}
        good = [i for i in range(len(rows)) if i not in bad]
        if good:
            places = [rows[i] for i in good]
            yield (
                places,
                RowChangeBlock(select_records(raw, places), reader, [found[i] for i in good], self._options).build(),
            )

    def _get_reader(self, schema: bytes | None, table: TableSpec) -> RowReader | Reject:
        layout = self._layouts.get_layout(schema, table.name)
        if layout.error is not None:
            return layout.error
        which = (layout.fingerprint, table)
        if which not in self._readers:
            if len(self._readers) >= MAX_READERS:
                self._readers.clear()
            self._readers[which] = RowReader(table, layout, self._options)
        return self._readers[which]


def _merge_in_order(parts: list[Part], raw: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """The parts of one slice as one frame, in the order of its records. A record may have two rows."""
    if len(parts) == 1:
        return parts[0][1]
    whole = pa.concat_tables([schema.empty_table(), *(part for _, part in parts)])
    of_record = {record: i for i, record in enumerate(_record_positions(raw, ("topic", "partition", "offset")))}
    places = [of_record[record] for record in _record_positions(whole, (TOPIC, PARTITION, OFFSET))]
    back = sorted(range(len(places)), key=places.__getitem__)
    return whole.combine_chunks().take(pa.array(back, pa.int64()))


def _record_positions(frame: pa.Table | pa.RecordBatch, names: tuple[str, ...]) -> list[tuple[object, ...]]:
    return list(zip(*(frame.column(name).to_pylist() for name in names), strict=True))
