"""Many messages of one layout: those that can be read together, and what they say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from replicator.domain.change import Op
from replicator.domain.table import TableSpec

from ..json.faults import read as read_all
from ..json.framing import are_shallow, is_deep
from ..json.pieces import Part, some
from .changes import PER_ROW
from .columns import Columns
from .gathered import Gathered, of_few, together
from .layouts import Layout, Layouts
from .message import Form, Message, ReadsMany
from .options import Options
from .routing import read

MAX_READERS = 512
FEW = 512
"""Messages that are read before their values become columns (measured)."""
FIRST = 10
"""How many messages are looked at for one whose layout is known."""

NOTHING: tuple[list[int], list[Gathered]] = ([], [])


class Many:
    """Reads messages together. Keeps generated types, and nothing of the messages."""

    def __init__(self, form: Form, options: Options, layouts: Layouts) -> None:
        self._form, self._options, self._layouts = form, options, layouts
        self._readers: dict[tuple[Layout, TableSpec], ReadsMany | None] = {}
        self._latest: dict[TableSpec, ReadsMany] = {}

    def read(self, raw: pa.RecordBatch, table: TableSpec) -> tuple[list[Part], Sequence[int]]:
        """Changes of the messages of a piece that are of one layout, and the places of all others."""
        reader, places, parts = self._found(raw.column("value"), table)
        if reader is None or not places:
            return [], range(raw.num_rows)
        whole = len(places) == raw.num_rows
        mine, said = some(raw, None if whole else places), together(parts)
        left, of, frame = Columns(mine, said, table, reader.rows, self._options.epoch).build()
        if whole and not left and said.of is None:
            return [(None, frame)], ()
        taken = set(places) - {places[message] for message in left}
        return [([places[message] for message in of], frame)], [i for i in range(raw.num_rows) if i not in taken]

    def _found(self, values: pa.Array, table: TableSpec) -> tuple[ReadsMany | None, list[int], list[Gathered]]:
        """What reads most of the messages, as far as that is seen at once, and what it has read of which places: that which
        read the piece before this one, or what reads messages like the first of these."""
        reader = self._latest.get(table)
        found = self._all(reader, values) if reader else NOTHING
        if 2 * len(found[0]) < len(values):
            other = self._first(values, table)
            if other is not None and other is not reader:
                reader, found = other, self._all(other, values)
                if len(self._latest) >= MAX_READERS:
                    self._latest.clear()
                self._latest[table] = other
        return reader, *found

    def _first(self, values: pa.Array, table: TableSpec) -> ReadsMany | None:
        """What reads messages like the first of which the layout is known."""
        for text in values.slice(0, FIRST).to_pylist():
            message = None if text is None else read(self._form, text, self._options.limits)
            if isinstance(message, Message) and message.changes:
                layout = self._layouts.of(message)
                if layout.error is None:
                    return self._reader(layout, table, text)
        return None

    def _reader(self, layout: Layout, table: TableSpec, like: bytes) -> ReadsMany | None:
        which = (layout, table)
        if which not in self._readers:
            if len(self._readers) >= MAX_READERS:
                self._readers.clear()
            is_ordered = table.sequence > PER_ROW
            columns = layout.types_for(table)
            self._readers[which] = self._form.many(like, columns, table.keys) if layout.ordered == is_ordered else None
        return self._readers[which]

    def _all(self, reader: ReadsMany, values: pa.Array) -> tuple[list[int], list[Gathered]]:
        """The places of messages that are changes of rows of the reader's layout, and what they say."""
        found: list[int] = []
        parts: list[Gathered] = []
        for start in range(0, len(values), FEW):
            places, messages, ops = self._few(reader, values.slice(start, FEW))
            if places:
                found += [start + place for place in places]
                parts.append(of_few(reader.said(messages, ops), reader.rows))
        return found, parts

    def _few(self, reader: ReadsMany, values: pa.Array) -> tuple[Sequence[int], list[Any], list[Op]]:
        texts, depth = values.to_pylist(), self._options.limits.depth
        places: Sequence[int] = range(len(texts))
        if values.null_count or not are_shallow(values, depth):
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
