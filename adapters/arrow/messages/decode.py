"""Raw records to the changes frame: by layout, then block by block, then back in their order."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from replicator.domain.change import changes_schema
from replicator.domain.errors import Reject
from replicator.domain.table import TableSpec

from ..json.faults import malformed
from ..json.pieces import Part, in_order, pieces, rejected, some
from .changes import Block
from .layouts import Layout, Layouts
from .many import Many
from .message import Form, Message, Rows
from .options import Options
from .routing import read

MAX_READERS = 512
EMPTY = malformed("its value is empty")
NO_ROW = malformed("it carries no row")


class Decoding:
    """Decodes frames of records that were routed to one table. Keeps generated readers, and nothing of the records."""

    def __init__(self, form: Form, options: Options, layouts: Layouts) -> None:
        self._form, self._options, self._layouts = form, options, layouts
        self._many = Many(form, options, layouts)
        self._readers: dict[tuple[Layout, TableSpec], Rows] = {}

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        """See `ports.decoder.Decoder.decode`."""
        done = [self._piece(piece, table) for piece in pieces(raw)]
        return pa.concat_tables([changes_schema(table).empty_table(), *done]).combine_chunks()

    def _piece(self, raw: pa.RecordBatch, table: TableSpec) -> pa.Table:
        """Those that can be read together, and the others one by one."""
        parts, left = self._many.read(raw, table)
        if left:
            parts += self._one_by_one(raw, left, table)
        return in_order(parts, changes_schema(table))

    def _one_by_one(self, raw: pa.RecordBatch, places: Sequence[int], table: TableSpec) -> list[Part]:
        errors: dict[int, Reject] = {}
        found: dict[Layout, tuple[list[int], list[Message]]] = {}
        texts = some(raw, list(places)).column("value").to_pylist()
        for place, text in zip(places, texts, strict=True):
            message = EMPTY if text is None else read(self._form, text, self._options.limits)
            layout = None if isinstance(message, Reject) else self._layouts.of(message)
            error = self._wrong(message, layout)
            if error is not None or layout is None or isinstance(message, Reject):
                errors[place] = error or EMPTY
                continue
            mine, messages = found.setdefault(layout, ([], []))
            mine.append(place)
            messages.append(message)
        parts: list[Part] = []
        for layout, (mine, messages) in found.items():
            block = Block(some(raw, mine), messages, table, self._reader(layout, table))
            of, frame = block.build(self._options)
            errors |= {mine[i]: reject for i, reject in block.errors.items()}
            parts.append(([mine[i] for i in of], frame))
        if errors:
            bad = sorted(errors)
            parts.append((bad, rejected(some(raw, bad), table, [errors[i] for i in bad])))
        return parts

    def _wrong(self, message: Message | Reject, layout: Layout | None) -> Reject | None:
        if isinstance(message, Reject):
            return message
        return layout.error if layout and layout.error else None if message.changes else NO_ROW

    def _reader(self, layout: Layout, table: TableSpec) -> Rows:
        which = (layout, table)
        if which not in self._readers:
            if len(self._readers) >= MAX_READERS:
                self._readers.clear()
            columns = layout.types_for(table)
            self._readers[which] = self._form.rows(columns)
        return self._readers[which]
