"""Raw records to the changes frame: by schema, then block by block, then back in their order."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import OFFSET, PARTITION, TOPIC, changes_schema
from replicator.domain.errors import Reject
from replicator.domain.table import TableSpec

from ...arrow.json.faults import malformed
from ...arrow.json.framing import Group, frames, taken_apart
from ...arrow.json.pieces import pieces, rejected, some
from .changes import Block
from .layouts import Layouts
from .options import Options
from .reader import RowReader

MAX_READERS = 512
EMPTY = malformed("its value is empty")
Part = tuple[list[int], pa.Table]
"""Places of records in their piece, and their changes: one row each, or several in a row."""


class Decoding:
    """Decodes frames of records that were routed to one table. Keeps generated readers, and nothing of the records."""

    def __init__(self, options: Options, layouts: Layouts) -> None:
        self._options, self._layouts = options, layouts
        self._readers: dict[tuple[str | None, TableSpec], RowReader] = {}

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        """See `ports.decoder.Decoder.decode`."""
        done = [self._piece(piece, table) for piece in pieces(raw)]
        return pa.concat_tables([changes_schema(table).empty_table(), *done]).combine_chunks()

    def _piece(self, raw: pa.RecordBatch, table: TableSpec) -> pa.Table:
        values = raw.column("value")
        found = frames(values, self._options.limits.depth)
        errors: dict[int, Reject] = dict.fromkeys(pc.indices_nonzero(pc.is_null(values)).to_pylist(), EMPTY)
        errors |= found.errors
        parts = [part for group in found.groups for part in self._group(raw, group, table, errors)]
        if errors:
            bad = sorted(errors)
            parts.append((bad, rejected(some(raw, bad), table, [errors[i] for i in bad])))
        return _in_order(parts, raw, changes_schema(table))

    def _group(self, raw: pa.RecordBatch, group: Group, table: TableSpec, errors: dict[int, Reject]) -> Iterator[Part]:
        rows = list(range(raw.num_rows)) if group.rows is None else group.rows
        reader = self._reader(group.schema, table)
        if isinstance(reader, Reject):
            errors |= dict.fromkeys(rows, reader)
            return
        found, bad = reader.rows(group.payloads())
        whole = taken_apart(raw.column("value"), group, bad, self._options.limits.depth)
        again, still = reader.rows([*whole.values()])
        for number, i in enumerate(whole):
            if number not in still:
                found[i] = again[number]
                del bad[i]
        errors |= {rows[i]: reject for i, reject in bad.items()}
        good = [i for i in range(len(rows)) if i not in bad]
        if good:
            places = [rows[i] for i in good]
            yield places, Block(some(raw, places), reader, [found[i] for i in good], self._options).build()

    def _reader(self, schema: bytes | None, table: TableSpec) -> RowReader | Reject:
        layout = self._layouts.of(schema, table.name)
        if layout.error is not None:
            return layout.error
        which = (layout.fingerprint, table)
        if which not in self._readers:
            if len(self._readers) >= MAX_READERS:
                self._readers.clear()
            self._readers[which] = RowReader(table, layout, self._options)
        return self._readers[which]


def _in_order(parts: list[Part], raw: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """The parts of one piece as one frame, in the order of its records: a record may have become two rows."""
    if len(parts) == 1:
        return parts[0][1]
    whole = pa.concat_tables([schema.empty_table(), *(part for _, part in parts)])
    of_record = {record: i for i, record in enumerate(_records(raw, ("topic", "partition", "offset")))}
    places = [of_record[record] for record in _records(whole, (TOPIC, PARTITION, OFFSET))]
    back = sorted(range(len(places)), key=places.__getitem__)
    return whole.combine_chunks().take(pa.array(back, pa.int64()))


def _records(frame: pa.Table | pa.RecordBatch, names: tuple[str, ...]) -> list[tuple[object, ...]]:
    return list(zip(*(frame.column(name).to_pylist() for name in names), strict=True))
