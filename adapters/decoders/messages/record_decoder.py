"""Decoding of raw records to the changes frame: split by layout, decoded in blocks, merged in their order."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from replicator.domain.change import changes_schema
from replicator.domain.errors import Reject
from replicator.domain.table import TableSpec

from ...arrow.frame_slices import Part, build_rejected, merge_parts, select_records, split_frame
from ...arrow.record_errors import malformed_reject
from .batch_reader import MessageBatchReader
from .changes import MessageChangeBlock
from .layouts import MessageLayout, MessageLayouts
from .message import Message, MessageFormat, MessageRows
from .options import MessageOptions
from .router import read_message

MAX_READERS = 512
EMPTY = malformed_reject("its value is empty")
NO_ROW = malformed_reject("it carries no row")


class MessageFrameDecoder:
    """Decodes frames of records of one table. Caches generated readers, never records."""

    def __init__(self, form: MessageFormat, options: MessageOptions, layouts: MessageLayouts) -> None:
        self._form, self._options, self._layouts = form, options, layouts
        self._many = MessageBatchReader(form, options, layouts)
        self._readers: dict[tuple[MessageLayout, TableSpec], MessageRows] = {}

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        done = [self._decode_slice(piece, table) for piece in split_frame(raw)]
        return pa.concat_tables([changes_schema(table).empty_table(), *done]).combine_chunks()

    def _decode_slice(self, raw: pa.RecordBatch, table: TableSpec) -> pa.Table:
        """Decode records in a batch if possible, and the others one by one."""
        parts, left = self._many.read(raw, table)
        if left:
            parts += self._decode_one_by_one(raw, left, table)
        return merge_parts(parts, changes_schema(table))

    def _decode_one_by_one(self, raw: pa.RecordBatch, places: Sequence[int], table: TableSpec) -> list[Part]:
        errors: dict[int, Reject] = {}
        found: dict[MessageLayout, tuple[list[int], list[Message]]] = {}
        texts = select_records(raw, list(places)).column("value").to_pylist()
        for place, text in zip(places, texts, strict=True):
            message = EMPTY if text is None else read_message(self._form, text, self._options.limits)
            layout = None if isinstance(message, Reject) else self._layouts.get_layout(message)
            error = self._find_fault(message, layout)
            if error is not None or layout is None or isinstance(message, Reject):
                errors[place] = error or EMPTY
                continue
            mine, messages = found.setdefault(layout, ([], []))
            mine.append(place)
            messages.append(message)
        parts: list[Part] = []
        for layout, (mine, messages) in found.items():
            block = MessageChangeBlock(select_records(raw, mine), messages, table, self._get_reader(layout, table))
            of, frame = block.build(self._options)
            errors |= {mine[i]: reject for i, reject in block.errors.items()}
            parts.append(([mine[i] for i in of], frame))
        if errors:
            bad = sorted(errors)
            parts.append((bad, build_rejected(select_records(raw, bad), table, [errors[i] for i in bad])))
        return parts

    def _find_fault(self, message: Message | Reject, layout: MessageLayout | None) -> Reject | None:
        if isinstance(message, Reject):
            return message
        return layout.error if layout and layout.error else None if message.changes else NO_ROW

    def _get_reader(self, layout: MessageLayout, table: TableSpec) -> MessageRows:
        which = (layout, table)
        if which not in self._readers:
            if len(self._readers) >= MAX_READERS:
                self._readers.clear()
            columns = layout.column_types(table)
            self._readers[which] = self._form.make_row_reader(columns)
        return self._readers[which]
