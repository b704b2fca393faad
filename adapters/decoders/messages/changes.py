"""Decoding of raw records to the changes frame: split by layout, decoded in blocks, merged in their order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import TIMESTAMP, Op, changes_schema, key_struct
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.out_of_range import null_out_of_range
from replicator.domain.sequence import EPOCH_SHIFT
from replicator.domain.table import Column, TableSpec

from ...arrow.frame_slices import Part, list_names, map_slices, merge_parts, reject_records, select_records
from ...arrow.record_errors import UNREADABLE, build_or_reject, malformed_reject, unreadable_reject
from ...arrow.record_errors import decode_or_reject as read_all
from ...arrow.value_readers import UNSET
from ..common.pipeline import build_changes, record_ids
from ..json.schema_frames import is_deep, is_shallow
from ..options import MessageOptions
from .message import (
    BatchReader,
    ColumnValues,
    Message,
    MessageChange,
    MessageContents,
    MessageFormat,
    MessageLayout,
    MessageLayouts,
    MessageRows,
    TypedRows,
    read_message,
)

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
        schema = changes_schema(table)

        def decode_slice(piece: pa.RecordBatch) -> pa.Table:
            parts, indices = self._many.read(piece, table)
            if indices:
                parts += self._decode_one_by_one(piece, indices, table)
            return merge_parts(parts, schema)

        return map_slices(raw, schema, decode_slice)

    def _decode_one_by_one(self, raw: pa.RecordBatch, indices: Sequence[int], table: TableSpec) -> list[Part]:
        errors: dict[int, Reject] = {}
        by_layout: dict[MessageLayout, tuple[list[int], list[Message]]] = {}
        texts = select_records(raw, list(indices)).column("value").to_pylist()
        for index, text in zip(indices, texts, strict=True):
            message = EMPTY if text is None else read_message(self._form, text, self._options.limits)
            if isinstance(message, Reject):
                errors[index] = message
                continue
            layout = self._layouts.get_layout(message)
            if layout.error is not None or not message.changes:
                errors[index] = layout.error or NO_ROW
                continue
            places, messages = by_layout.setdefault(layout, ([], []))
            places.append(index)
            messages.append(message)
        parts: list[Part] = []
        for layout, (places, messages) in by_layout.items():
            block = MessageChangeBlock(select_records(raw, places), messages, table, self._get_reader(layout, table))
            numbers, frame = block.build(self._options)
            errors |= {places[i]: reject for i, reject in block.errors.items()}
            parts.append(([places[i] for i in numbers], frame))
        return parts + reject_records(raw, table, errors)

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
        reader, indices, parts = self._find_reader(raw.column("value"), table)
        if reader is None or not indices:
            return [], range(raw.num_rows)
        whole = len(indices) == raw.num_rows
        records, batch = select_records(raw, None if whole else indices), merge_batches(parts)
        left, numbers, frame = MessageColumns(records, batch, table, reader.rows, self._options.epoch).build()
        if whole and not left and batch.message_numbers is None:
            return [(None, frame)], ()
        decoded = set(indices) - {indices[message] for message in left}
        return [([indices[message] for message in numbers], frame)], [i for i in range(raw.num_rows) if i not in decoded]

    def _find_reader(self, values: pa.Array, table: TableSpec) -> tuple[BatchReader | None, list[int], list[MessageBatch]]:
        """A reader that reads most of the messages, with the indices and contents of those it read. Tries the reader of
        the last slice first, then one for the first message here."""
        reader = self._latest.get(table)
        batches = self._read_all(reader, values) if reader else NOTHING
        if 2 * len(batches[0]) < len(values):
            other = self._first_reader(values, table)
            if other is not None and other is not reader:
                reader, batches = other, self._read_all(other, values)
                if len(self._latest) >= MAX_READERS:
                    self._latest.clear()
                self._latest[table] = other
        return reader, *batches

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
        indices: list[int] = []
        parts: list[MessageBatch] = []
        for start in range(0, len(values), FEW):
            readable, messages, ops = self._read_few(reader, values.slice(start, FEW))
            if readable:
                indices += [start + index for index in readable]
                parts.append(read_few(reader.read_contents(messages, ops), reader.rows))
        return indices, parts

    def _read_few(self, reader: BatchReader, values: pa.Array) -> tuple[Sequence[int], list[Any], list[Op]]:
        texts, depth = values.to_pylist(), self._options.limits.depth
        indices: Sequence[int] = range(len(texts))
        if values.null_count or not is_shallow(values, depth):
            indices = [index for index in indices if texts[index] is not None and not is_deep(texts[index], depth)]
            texts = [texts[index] for index in indices]
        messages, errors = read_all(reader.decode, texts, None)
        if errors:
            indices = [index for i, index in enumerate(indices) if i not in errors]
            messages = [message for i, message in enumerate(messages) if i not in errors]
        ops = reader.ops(messages)
        if None in ops:
            with_op = [i for i, op in enumerate(ops) if op is not None]
            messages, indices = [messages[i] for i in with_op], [indices[i] for i in with_op]
        return indices, messages, [op for op in ops if op is not None]


# Messages with one layout of one table to changes, column by column, in the usual case.
#
# The result equals that of `MessageChangeBlock`. Messages are left to it if a value is invalid, a key changes or
# is null, or the order leaves no room for the epoch.


class MessageColumns:
    """Changes of messages. `raw` has their records."""

    def __init__(self, raw: pa.RecordBatch, batch: MessageBatch, table: TableSpec, reader: TypedRows, epoch: int) -> None:
        self._raw, self._said, self._table, self._reader, self._epoch = raw, batch, table, reader, epoch
        self._of = None if batch.message_numbers is None else pa.array(batch.message_numbers, pa.int64())
        self._ops = self._repeat_per_row(pa.array(batch.ops, pa.string()))
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
            at=self._repeat_per_row(null_out_of_range(self._said.at.view(TIMESTAMP))),
            columns=columns,
            tx=self._repeat_per_row(self._said.tx),
            unchanged=list_names(self._unsent, count),
        )
        numbers: Sequence[int] = range(count) if self._said.message_numbers is None else self._said.message_numbers
        if self._left:
            rows = [row for row, message in enumerate(numbers) if message not in self._left]
            frame, numbers = frame.take(pa.array(rows, pa.int64())), [numbers[row] for row in rows]
        return self._left, numbers, frame

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
            converted = self._reader.columns[column.name].to_wanted(values.array)
            self._leave_out([*values.bad, *converted.bad])
            array, unset = converted.array, None
            if values.unset:
                indices = set(values.unset)
                unset = pa.array([index in indices for index in range(count)], pa.bool_())
        if is_key and array.null_count:
            self._leave_out(pc.indices_nonzero(pc.is_null(array)).to_pylist())
        elif unset is not None and not is_key:
            self._unsent[column.name] = pc.and_(unset, self._updates)
        return array

    def _sequence_elements(self) -> list[pa.Array]:
        """The sequence, with the epoch in the top bits of its first element; then the row number in the message. A row has
        two numbers and uses the second: the odd ones."""
        orders = [self._raw.column("offset")] if self._table.sequence == PER_ROW else list(self._said.orders)
        for order in orders:
            room = pc.and_(pc.greater_equal(order, 0), pc.less(order, 1 << EPOCH_SHIFT))
            if not pc.all(room).as_py():
                self._left |= set(pc.indices_nonzero(pc.invert(room)).to_pylist())
        orders[0] = pc.bit_wise_or(orders[0], pa.scalar(self._epoch << EPOCH_SHIFT, pa.int64()))
        if self._said.message_numbers is None:
            return [*map(self._repeat_per_row, orders), pa.repeat(pa.scalar(1, pa.int64()), self._said.rows)]
        numbers, last = [], None
        for message in self._said.message_numbers:
            numbers.append(numbers[-1] + PER_ROW if message == last else 1)
            last = message
        return [*map(self._repeat_per_row, orders), pa.array(numbers, pa.int64())]


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


def read_few(batch: MessageContents, reader: TypedRows) -> MessageBatch:
    """The batch of a few messages."""
    columns, moves = reader.values(batch.rows), reader.find_key_changes(batch.rows, batch.olds)
    return MessageBatch(batch.ops, len(batch.rows), batch.message_numbers, moves, columns, batch.at, batch.tx, batch.orders)


def merge_batches(parts: Sequence[MessageBatch]) -> MessageBatch:
    """All parts as one batch. At least one part is required."""
    if len(parts) == 1:
        return parts[0]
    rows = list(accumulate((part.rows for part in parts), initial=0))
    messages = accumulate((len(part.ops) for part in parts), initial=0)
    numbers = None
    if any(part.message_numbers is not None for part in parts):
        numbers = [
            first + one
            for part, first in zip(parts, messages, strict=False)
            for one in part.message_numbers or range(part.rows)
        ]
    columns = {}
    for name in parts[0].columns:
        values = [part.columns[name] for part in parts]
        array = pa.concat_arrays([one.array for one in values])
        unset, bad = _shift_indices([one.unset for one in values], rows), _shift_indices([one.bad for one in values], rows)
        columns[name] = ColumnValues(array, unset, bad)
    return MessageBatch(
        ops=[op for part in parts for op in part.ops],
        rows=rows[-1],
        message_numbers=numbers,
        key_changes=_shift_indices([part.key_changes for part in parts], rows),
        columns=columns,
        at=pa.concat_arrays([part.at for part in parts]),
        tx=pa.concat_arrays([part.tx for part in parts]),
        orders=[pa.concat_arrays(orders) for orders in zip(*(part.orders for part in parts), strict=True)],
    )


def _shift_indices(indices: Sequence[Sequence[int]], rows: Sequence[int]) -> Sequence[int]:
    """Indices in parts as indices in the whole; `rows` has the start of each part."""
    return [first + one for group, first in zip(indices, rows, strict=False) for one in group] if any(indices) else ()


# Messages with one layout of one table to changes: rows in the order of each message, then column by column.


PER_ROW = 2
"""Row numbers per row of a message: a key change needs two, for its delete and its create."""


class ChangeRow(NamedTuple):
    """One row of the changes frame. `place`: the index of its record. `number`: its order in the message. `image`: the
    decoded row. `old`: the decoded old row of a key change."""

    place: int
    op: Op
    number: int
    image: Any
    old: Any = None


class MessageChangeBlock:
    """Changes of one reader. `raw` has the records, `messages` their contents. The first error of a record is kept, and a
    record with an error is rejected as a whole."""

    def __init__(self, raw: pa.RecordBatch, messages: Sequence[Message], table: TableSpec, reader: MessageRows) -> None:
        self._raw, self._messages, self._table, self._reader = raw, messages, table, reader
        self.errors: dict[int, Reject] = {}
        self._rows: list[ChangeRow] = []
        for index, message in enumerate(messages):
            for number, change in enumerate(message.changes):
                try:
                    self._rows += self._split_key_change(index, number * PER_ROW, change)
                except UNREADABLE as error:
                    self.errors.setdefault(index, unreadable_reject(error))
        self._unsent: list[list[str]] = [[] for _ in self._rows]

    def build(self, options: MessageOptions) -> tuple[list[int], pa.Table]:
        """The changes of records without errors, and the record index of each."""
        columns = [self._build_column(column) for column in self._table.columns]
        elements = self._sequence_elements(options)
        indices = pa.array([row.place for row in self._rows], pa.int64())
        frame = build_changes(
            self._table,
            [column.take(indices) for column in record_ids(self._raw)],
            ops=pa.array([row.op for row in self._rows], pa.string()),
            elements=elements,
            at=null_out_of_range(pa.array([self._messages[row.place].at for row in self._rows], pa.int64()).view(TIMESTAMP)),
            columns=columns,
            tx=pa.array([self._messages[row.place].tx for row in self._rows], pa.string()),
            unchanged=pa.array([names or None for names in self._unsent], pa.list_(pa.string())),
            key_changes=self._key_change_columns(),
        )
        good = [i for i, row in enumerate(self._rows) if row.place not in self.errors]
        if len(good) < frame.num_rows:
            frame = frame.take(pa.array(good, pa.int64()))
        return [self._rows[i].place for i in good], frame

    def _split_key_change(self, index: int, number: int, change: MessageChange) -> list[ChangeRow]:
        if change.row is None:
            return [ChangeRow(index, change.op, number, self._reader.blank)]
        image = self._reader.decode(change.row)
        if change.op == Op.UPDATE and change.old is not None and self._reader.can_hold(change.old, self._table.keys):
            old = self._reader.decode(change.old)
            if self._has_other_key(image, old):
                return [ChangeRow(index, Op.DELETE, number, image, old), ChangeRow(index, Op.CREATE, number + 1, image, old)]
        return [ChangeRow(index, change.op, number + 1, image)]

    def _has_other_key(self, image: Any, old: Any) -> bool:
        for key in self._table.keys:
            if key in self._reader.columns:
                [new_value], [old_value] = self._reader.values([image], key), self._reader.values([old], key)
                if old_value is not UNSET and self._reader.text(old_value) != self._reader.text(new_value):
                    return True
        return False

    def _sequence_elements(self, options: MessageOptions) -> list[pa.Array]:
        """The sequence: the message's order or else its offset, with the epoch in the top bits; then the row number."""
        if self._table.sequence == PER_ROW:
            orders: list[tuple[int, ...]] = [(offset,) for offset in self._raw.column("offset").to_pylist()]
        else:
            orders = [message.order for message in self._messages]
        for index, order in enumerate(orders):
            if len(order) < self._table.sequence - 1:
                reason = "it does not say where in its source's log it is, as other messages of its table do"
                self.errors.setdefault(index, Reject(RejectCode.NO_SEQUENCE, reason))
                orders[index] = (0,) * (self._table.sequence - 1)
            elif not all(0 <= element < 1 << EPOCH_SHIFT for element in order):
                reject = Reject(RejectCode.NO_SEQUENCE, "what orders it leaves no room for the epoch")
                self.errors.setdefault(index, reject)
                orders[index] = (0,) * len(order)
        first = [orders[row.place][0] | options.epoch << EPOCH_SHIFT for row in self._rows]
        others = [[orders[row.place][k] for row in self._rows] for k in range(1, self._table.sequence - 1)]
        return [pa.array(e, pa.int64()) for e in (first, *others, [row.number for row in self._rows])]

    def _key_change_columns(self) -> list[pa.Array]:
        """The columns `_moved_from` (for tables with a key) and `_moved_to`."""
        count = len(self._rows)
        moved_to = pa.array([(row.old is not None and row.op == Op.DELETE) or None for row in self._rows], pa.bool_())
        if not self._table.keys:
            return [moved_to]
        is_create_half = [row.old is not None and row.op == Op.CREATE for row in self._rows]
        struct = key_struct(self._table)
        if not any(is_create_half):
            return [pa.nulls(count, struct), moved_to]
        columns = []
        for key in self._table.keys:
            olds = [value if is_create_half[i] else None for i, value in enumerate(self._read_values(key, olds=True))]
            columns.append(self._build_array(self._table.column(key), olds))
        mask = pa.array([not one for one in is_create_half])
        return [pa.StructArray.from_arrays(columns, fields=list(struct), mask=mask), moved_to]

    def _read_values(self, name: str, *, olds: bool = False) -> list[Any]:
        """A column of every row. `olds`: the create of a key change also has the old value. A value missing in an old
        image did not change, or was not sent (`MessageFormat.by_tx`)."""
        if name not in self._reader.columns:
            return [UNSET] * len(self._rows)
        values = self._reader.values([row.image for row in self._rows], name)
        stays = name in self._table.keys or not self._table.by_tx
        for i, row in enumerate(self._rows):
            if row.old is not None and (olds or row.op == Op.DELETE):
                [old_value] = self._reader.values([row.old], name)
                values[i] = values[i] if old_value is UNSET and stays else old_value
        return values

    def _build_array(self, column: Column, values: list[Any], *, unset: bool = True) -> pa.Array:
        """The valid values; others are null and stored as errors. `unset`: some may be UNSET, which become null."""
        if column.name not in self._reader.columns:
            return pa.nulls(len(values), column.type)
        cells = [None if value is UNSET else value for value in values] if unset else values
        array, bad = build_or_reject(lambda items: self._reader.array(column.name, items), cells, f"column {column.name!r}")
        for i, reject in bad.items():
            if self._rows[i].op == Op.DELETE and column.name not in self._table.keys:
                self._unsent[i].append(column.name)
            else:
                self.errors.setdefault(self._rows[i].place, reject)
        return array

    def _build_column(self, column: Column) -> pa.Array:
        """A column, null for missing values. Stores those of updates, and of both halves of key changes, in `_unsent`."""
        values = self._read_values(column.name)
        unset = [i for i, value in enumerate(values) if value is UNSET]
        array = self._build_array(column, values, unset=bool(unset))
        if column.name in self._table.keys:
            reason = f"key column {column.name!r} of table {self._table.name} is null or missing"
            for i in pc.indices_nonzero(pc.is_null(array)).to_pylist():
                if self._rows[i].op != Op.TRUNCATE:
                    self.errors.setdefault(self._rows[i].place, Reject(RejectCode.NULL_KEY, reason))
            return array
        for i in unset:
            row = self._rows[i]
            if row.op == Op.UPDATE or (row.old is not None and (row.op == Op.CREATE or self._table.by_tx)):
                self._unsent[i].append(column.name)
        return array
