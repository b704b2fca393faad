"""Decoding of raw records to the changes frame: split by layout, decoded in blocks, merged in their order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import Op, changes_schema
from replicator.domain.errors import Reject
from replicator.domain.out_of_range import null_out_of_range
from replicator.domain.sequence import EPOCH_SHIFT
from replicator.domain.table import Column, TableSpec

from ...arrow.frame_slices import Part, list_names, map_slices, merge_parts, reject_records, select_records
from ...arrow.record_errors import decode_or_reject as read_all
from ...arrow.record_errors import malformed_reject
from ..common.pipeline import build_changes, record_ids
from ..json.schema_frames import is_deep, is_shallow
from ..options import MessageOptions
from .changes import PER_ROW, STAMP, MessageChangeBlock
from .layouts import MessageLayout, MessageLayouts
from .message import BatchReader, Message, MessageContents, MessageFormat, MessageRows, read_message
from .typed_rows import ColumnValues, TypedRows

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
        return map_slices(raw, changes_schema(table), lambda piece: self._decode_slice(piece, table))

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
        return parts + reject_records(raw, table, errors)

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


# Reading of messages with one layout in batches.


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


# Messages with one layout of one table to changes, column by column, in the usual case.
#
# The result equals that of `changes.MessageChangeBlock`. Messages are left to it if a value is invalid, a key changes or
# is null, or the order leaves no room for the epoch.


class MessageColumns:
    """Changes of messages. `raw` has their records."""

    def __init__(self, raw: pa.RecordBatch, said: MessageBatch, table: TableSpec, reader: TypedRows, epoch: int) -> None:
        self._raw, self._said, self._table, self._reader, self._epoch = raw, said, table, reader, epoch
        self._of = None if said.message_numbers is None else pa.array(said.message_numbers, pa.int64())
        self._ops = self._repeat_per_row(pa.array(said.ops, pa.string()))
        self._updates = pc.equal(self._ops, Op.UPDATE.value)
        self._left: set[int] = set()
        self._unsent: dict[str, pa.Array] = {}

    def build(self) -> tuple[Collection[int], Sequence[int], pa.Table]:
        """The messages that are left out, the message of each row, and the changes of the other messages in order."""
        self._leave_out(self._said.key_changes)
        columns = [self._build_column(column) for column in self._table.columns]
        elements, count = self._sequence_elements(), self._said.rows
        frame = build_changes(
            self._table,
            list(map(self._repeat_per_row, record_ids(self._raw))),
            ops=self._ops,
            elements=elements,
            at=self._repeat_per_row(null_out_of_range(self._said.at.view(STAMP))),
            columns=columns,
            tx=self._repeat_per_row(self._said.tx),
            unsent=list_names(self._unsent, count),
        )
        of: Sequence[int] = range(count) if self._said.message_numbers is None else self._said.message_numbers
        if self._left:
            kept = [row for row, message in enumerate(of) if message not in self._left]
            frame, of = frame.take(pa.array(kept, pa.int64())), [of[row] for row in kept]
        return self._left, of, frame

    def _repeat_per_row(self, values: pa.Array) -> pa.Array:
        """Values of messages, repeated for each of their rows."""
        return values if self._of is None else values.take(self._of)

    def _leave_out(self, rows: Iterable[int]) -> None:
        self._left |= set(rows) if self._said.message_numbers is None else {self._said.message_numbers[row] for row in rows}

    def _build_column(self, column: Column) -> pa.Array:
        is_key, count = column.name in self._table.keys, self._said.rows
        values = self._said.columns.get(column.name)
        if values is None:
            array, unset = pa.nulls(count, column.type), pa.repeat(pa.scalar(True), count)
        else:
            found = self._reader.columns[column.name].to_wanted(values.array)
            self._leave_out([*values.bad, *found.bad])
            array, unset = found.array, _make_mask(values.unset, count)
        if is_key and array.null_count:
            self._leave_out(pc.indices_nonzero(pc.is_null(array)).to_pylist())
        elif unset is not None and not is_key:
            self._unsent[column.name] = pc.and_(unset, self._updates)
        return array

    def _sequence_elements(self) -> list[pa.Array]:
        """The sequence, with the epoch in the top bits of its first element; then the row number in the message."""
        orders = [self._raw.column("offset")] if self._table.sequence == PER_ROW else list(self._said.orders)
        for order in orders:
            room = pc.and_(pc.greater_equal(order, 0), pc.less(order, 1 << EPOCH_SHIFT))
            if not pc.all(room).as_py():
                self._left |= set(pc.indices_nonzero(pc.invert(room)).to_pylist())
        orders[0] = pc.bit_wise_or(orders[0], pa.scalar(self._epoch << EPOCH_SHIFT, pa.int64()))
        return [*map(self._repeat_per_row, orders), self._row_numbers()]

    def _row_numbers(self) -> pa.Array:
        """The odd numbers of each message: a row has two numbers and uses the second."""
        if self._said.message_numbers is None:
            return pa.repeat(pa.scalar(1, pa.int64()), self._said.rows)
        found, last = [], None
        for message in self._said.message_numbers:
            found.append(found[-1] + PER_ROW if message == last else 1)
            last = message
        return pa.array(found, pa.int64())


def _make_mask(places: Sequence[int], count: int) -> pa.Array | None:
    if not places:
        return None
    some = set(places)
    return pa.array([place in some for place in range(count)], pa.bool_())


# Contents of many messages. They are converted a few at a time, so that the values stay in the CPU cache.


class MessageBatch(NamedTuple):
    """Consecutive messages. `message_numbers`: the message of each row, None if each message has one row. `key_changes`:
    rows whose key changed. Other fields as in `MessageContents`."""

    ops: Sequence[Op]
    rows: int
    message_numbers: Sequence[int] | None
    key_changes: Sequence[int]
    columns: Mapping[str, ColumnValues]
    at: pa.Array
    tx: pa.Array
    orders: Sequence[pa.Array]


def read_few(said: MessageContents, reader: TypedRows) -> MessageBatch:
    """The batch of a few messages."""
    columns, moved = reader.values(said.rows), reader.find_key_changes(said.rows, said.olds)
    return MessageBatch(said.ops, len(said.rows), said.message_numbers, moved, columns, said.at, said.tx, said.orders)


def merge_batches(parts: Sequence[MessageBatch]) -> MessageBatch:
    """All parts as one batch. At least one part is required."""
    if len(parts) == 1:
        return parts[0]
    rows = list(accumulate((part.rows for part in parts), initial=0))
    messages = accumulate((len(part.ops) for part in parts), initial=0)
    of = None
    if any(part.message_numbers is not None for part in parts):
        of = [
            first + one
            for part, first in zip(parts, messages, strict=False)
            for one in part.message_numbers or range(part.rows)
        ]
    return MessageBatch(
        ops=[op for part in parts for op in part.ops],
        rows=rows[-1],
        message_numbers=of,
        key_changes=_shift_places([part.key_changes for part in parts], rows),
        columns={name: _merge_column([part.columns[name] for part in parts], rows) for name in parts[0].columns},
        at=pa.concat_arrays([part.at for part in parts]),
        tx=pa.concat_arrays([part.tx for part in parts]),
        orders=[pa.concat_arrays(orders) for orders in zip(*(part.orders for part in parts), strict=True)],
    )


def _merge_column(parts: Sequence[ColumnValues], rows: Sequence[int]) -> ColumnValues:
    return ColumnValues(
        pa.concat_arrays([part.array for part in parts]),
        _shift_places([part.unset for part in parts], rows),
        _shift_places([part.bad for part in parts], rows),
    )


def _shift_places(places: Sequence[Sequence[int]], rows: Sequence[int]) -> Sequence[int]:
    """Indices in parts as indices in the whole; `rows` has the start of each part."""
    return [first + one for some, first in zip(places, rows, strict=False) for one in some] if any(places) else ()
