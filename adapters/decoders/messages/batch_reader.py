"""Reading of messages with one layout in batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from replicator.domain.change import Op
from replicator.domain.table import TableSpec

from ...arrow.frame_slices import Part, select_records
from ...arrow.record_errors import decode_or_reject as read_all
from ..json.schema_frames import is_deep, is_shallow
from .changes import PER_ROW
from .columns import MessageColumns
from .layouts import MessageLayout, MessageLayouts
from .message import BatchReader, Message, MessageFormat
from .message_batch import MessageBatch, merge_batches, read_few
from .options import MessageOptions
from .router import read_message

MAX_READERS = 512
FEW = 512
"""Messages that are parsed before their values become columns (measured)."""
FIRST = 10
"""Messages among which the first with a known layout is searched."""

NOTHING: tuple[list[int], list[MessageBatch]] = ([], [])


class MessageBatchReader:
    """Reads messages in batches. Caches generated types, never messages."""

    def __init__(self, form: MessageFormat, options: MessageOptions, layouts: MessageLayouts) -> None:
        self._form, self._options, self._layouts = form, options, layouts
        self._readers: dict[tuple[MessageLayout, TableSpec], BatchReader | None] = {}
        self._latest: dict[TableSpec, BatchReader] = {}

    def read(self, raw: pa.RecordBatch, table: TableSpec) -> tuple[list[Part], Sequence[int]]:
        """Changes of the messages of a slice that have one layout, and the indices of all others."""
        reader, places, parts = self._find_reader(raw.column("value"), table)
        if reader is None or not places:
            return [], range(raw.num_rows)
        whole = len(places) == raw.num_rows
        mine, said = select_records(raw, None if whole else places), merge_batches(parts)
        left, of, frame = MessageColumns(mine, said, table, reader.rows, self._options.epoch).build()
        if whole and not left and said.message_numbers is None:
            return [(None, frame)], ()
        taken = set(places) - {places[message] for message in left}
        return [([places[message] for message in of], frame)], [i for i in range(raw.num_rows) if i not in taken]

    def _find_reader(self, values: pa.Array, table: TableSpec) -> tuple[BatchReader | None, list[int], list[MessageBatch]]:
        """A reader that reads most of the messages, with the indices and contents of those it read. Tries the reader of
        the last slice first, then one for the first message here."""
        reader = self._latest.get(table)
        found = self._read_all(reader, values) if reader else NOTHING
        if 2 * len(found[0]) < len(values):
            other = self._first_reader(values, table)
            if other is not None and other is not reader:
                reader, found = other, self._read_all(other, values)
                if len(self._latest) >= MAX_READERS:
                    self._latest.clear()
                self._latest[table] = other
        return reader, *found

    def _first_reader(self, values: pa.Array, table: TableSpec) -> BatchReader | None:
        """The reader for messages like the first one with a known layout."""
        for text in values.slice(0, FIRST).to_pylist():
            message = None if text is None else read_message(self._form, text, self._options.limits)
            if isinstance(message, Message) and message.changes:
                layout = self._layouts.get_layout(message)
                if layout.error is None:
                    return self._get_reader(layout, table, text)
        return None

    def _get_reader(self, layout: MessageLayout, table: TableSpec, like: bytes) -> BatchReader | None:
        which = (layout, table)
        if which not in self._readers:
            if len(self._readers) >= MAX_READERS:
                self._readers.clear()
            is_ordered = table.sequence > PER_ROW
            columns = layout.column_types(table)
            self._readers[which] = (
                self._form.make_batch_reader(like, columns, table.keys) if layout.has_order == is_ordered else None
            )
        return self._readers[which]

    def _read_all(self, reader: BatchReader, values: pa.Array) -> tuple[list[int], list[MessageBatch]]:
        """The indices and contents of messages with the reader's layout."""
        found: list[int] = []
        parts: list[MessageBatch] = []
        for start in range(0, len(values), FEW):
            places, messages, ops = self._read_few(reader, values.slice(start, FEW))
            if places:
                found += [start + place for place in places]
                parts.append(read_few(reader.read_contents(messages, ops), reader.rows))
        return found, parts

    def _read_few(self, reader: BatchReader, values: pa.Array) -> tuple[Sequence[int], list[Any], list[Op]]:
        texts, depth = values.to_pylist(), self._options.limits.depth
        places: Sequence[int] = range(len(texts))
        if values.null_count or not is_shallow(values, depth):
            places = [place for place in places if texts[place] is not None and not is_deep(texts[place], depth)]
            texts = [texts[place] for place in places]
        messages, errors = read_all(reader.decode, texts, None)
        if errors:
            places = [place for i, place in enumerate(places) if i not in errors]
            messages = [message for i, message in enumerate(messages) if i not in errors]
        ops = reader.ops(messages)
        if None in ops:
            kept = [i for i, op in enumerate(ops) if op is not None]
            messages, places = [messages[i] for i in kept], [places[i] for i in kept]
        return places, messages, [op for op in ops if op is not None]
