"""Decoding of raw records to the changes frame: split by layout, decoded in blocks, merged in their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import TIMESTAMP, Op, changes_schema, key_struct
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.out_of_range import null_out_of_range
from replicator.domain.sequence import EPOCH_SHIFT
from replicator.domain.table import Column, TableSpec

from ...arrow.frame_slices import Part, list_true_indices, make_mask, map_slices, merge_parts, reject_records, select_records
from ...arrow.record_errors import UNREADABLE, build_or_reject, malformed_reject, unreadable_reject
from ...arrow.record_errors import decode_or_reject as read_all
from ...arrow.value_readers import UNSET
from ..common.pipeline import ChangeBlock
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
NO_ORDER = Reject(
    RejectCode.NO_SEQUENCE, "it does not say where in its source's log it is, as other messages of its table do"
)
NO_ROOM = Reject(RejectCode.NO_SEQUENCE, "what orders it leaves no room for the epoch")


class MessageFrameDecoder:
    """Decodes frames of records of one table. Caches generated readers, never records."""

    def __init__(self, form: MessageFormat, options: MessageOptions, layouts: MessageLayouts) -> None:
        self._form, self._options, self._layouts = form, options, layouts
        self._many = MessageBatchReader(form, options, layouts)
        self._get_reader = lru_cache(MAX_READERS)(lambda layout, table: form.make_row_reader(layout.column_types(table)))

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
        left, numbers, frame = decode_batch(records, batch, table, reader.rows, self._options.epoch)
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


LEFT_OUT = malformed_reject("it is read alone")
"""The error of a message that is left to `MessageChangeBlock`. It is not reported."""


def decode_batch(
    raw: pa.RecordBatch, batch: MessageBatch, table: TableSpec, reader: TypedRows, epoch: int
) -> tuple[Collection[int], Sequence[int], pa.Table]:
    """The messages that are left out, the message of each row, and the changes of the other messages in order."""
    ops, places = pa.array(batch.ops, pa.string()), batch.message_numbers
    block = ChangeBlock(table, raw, ops if places is None else ops.take(pa.array(places, pa.int64())), places)
    block.reject(dict.fromkeys(batch.key_changes, LEFT_OUT))
    for column in table.columns:
        values = batch.columns.get(column.name)
        if values is None:
            block.add_column(column, pa.nulls(batch.rows, column.type), unchanged=block.updates)
        else:
            converted, unset = reader.columns[column.name].to_wanted(values.array), make_mask(values.unset, batch.rows)
            bad = dict.fromkeys([*values.bad, *converted.bad], LEFT_OUT)
            block.add_column(column, converted.array, bad, None if unset is None else pc.and_(unset, block.updates))
        if column.name in table.keys:
            block.refuse_null_key(column.name)
    orders = [raw.column("offset")] if table.sequence == PER_ROW else batch.orders
    # A row has two numbers and uses the second: the odd ones.
    numbers = pa.repeat(pa.scalar(1, pa.int64()), batch.rows)
    if places is not None:
        numbers = pa.array([number for count in Counter(places).values() for number in range(1, PER_ROW * count, PER_ROW)])
    at = null_out_of_range(batch.at.view(TIMESTAMP))
    frame = block.build(order_rows(block, orders, numbers, epoch), at=at, tx=batch.tx)
    return block.errors, *select_good(block, range(batch.rows) if places is None else places, frame)


def order_rows(block: ChangeBlock, orders: Sequence[pa.Array], numbers: pa.Array, epoch: int) -> list[pa.Array]:
    """The sequence of rows: the order of their messages, then their numbers in the message. The top bits of the first
    element are the epoch. Messages without an order are rejected."""
    for order in orders:
        has_room = pc.and_(pc.greater_equal(order, 0), pc.less(order, 1 << EPOCH_SHIFT))
        for index in list_true_indices(pc.invert(pc.fill_null(has_room, False))):
            block.errors.setdefault(index, NO_ROOM if order[index].is_valid else NO_ORDER)
    first = pc.bit_wise_or(orders[0], pa.scalar(epoch << EPOCH_SHIFT, pa.int64()))
    return [*map(block.repeat, [first, *orders[1:]]), numbers]


def select_good(block: ChangeBlock, places: Sequence[int], frame: pa.Table) -> tuple[Sequence[int], pa.Table]:
    """The rows of messages without errors, with their messages."""
    if not block.errors:
        return places, frame
    rows = [row for row, place in enumerate(places) if place not in block.errors]
    return [places[row] for row in rows], frame.take(pa.array(rows, pa.int64()))


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
                    self._rows += self.split_key_change(index, number * PER_ROW, change)
                except UNREADABLE as error:
                    self.errors.setdefault(index, unreadable_reject(error))

    def build(self, options: MessageOptions) -> tuple[Sequence[int], pa.Table]:
        """The changes of records without errors, and the record index of each."""
        places = [row.place for row in self._rows]
        block = ChangeBlock(self._table, self._raw, [row.op for row in self._rows], places, self.errors)
        for column in self._table.columns:
            self.read_column(block, column)
        # The places of messages in the source's log, null for missing ones, or their offsets.
        orders = [self._raw.column("offset")]
        if self._table.sequence > PER_ROW:
            elements = range(self._table.sequence - 1)
            places_in_log = [one.order if len(one.order) >= len(elements) else None for one in self._messages]
            orders = [pa.array([order and order[k] for order in places_in_log], pa.int64()) for k in elements]
        numbers = pa.array([row.number for row in self._rows], pa.int64())
        frame = block.build(
            order_rows(block, orders, numbers, options.epoch),
            at=null_out_of_range(pa.array([one.at for one in self._messages], pa.int64()).view(TIMESTAMP)),
            tx=pa.array([one.tx for one in self._messages], pa.string()),
            key_changes=self._key_change_columns(block),
        )
        return select_good(block, places, frame)

    def split_key_change(self, index: int, number: int, change: MessageChange) -> list[ChangeRow]:
        """The row of a change, or the two rows of a key change. `number`: the first one of the row in its message."""
        if change.row is None:
            return [ChangeRow(index, change.op, number, self._reader.blank)]
        image = self._reader.decode(change.row)
        if change.op == Op.UPDATE and change.old is not None and self._reader.can_hold(change.old, self._table.keys):
            old, reader = self._reader.decode(change.old), self._reader
            keys = [key for key in self._table.keys if key in reader.columns]
            pairs = [(reader.values([old], key)[0], reader.values([image], key)[0]) for key in keys]
            if any(before is not UNSET and reader.text(before) != reader.text(after) for before, after in pairs):
                return [ChangeRow(index, Op.DELETE, number, image, old), ChangeRow(index, Op.CREATE, number + 1, image, old)]
        return [ChangeRow(index, change.op, number + 1, image)]

    def _key_change_columns(self, block: ChangeBlock) -> list[pa.Array]:
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
            values = zip(self._read_values(key, olds=True), is_create_half, strict=True)
            olds = [value if is_half and value is not UNSET else None for value, is_half in values]
            array, bad = self._build_array(self._table.column(key), olds)
            block.reject(bad)
            columns.append(array)
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

    def _build_array(self, column: Column, values: list[Any]) -> tuple[pa.Array, dict[int, Reject]]:
        """The values, with null for invalid ones, and their errors by row."""
        if column.name not in self._reader.columns:
            return pa.nulls(len(values), column.type), {}
        return build_or_reject(lambda items: self._reader.array(column.name, items), values, f"column {column.name!r}")

    def read_column(self, block: ChangeBlock, column: Column) -> None:
        """Add a column to the block. Missing values of updates and of halves of key changes are unchanged."""
        values = self._read_values(column.name)
        unset = [i for i, value in enumerate(values) if value is UNSET]
        cells = [None if value is UNSET else value for value in values] if unset else values
        array, bad = self._build_array(column, cells)
        unchanged = []
        for i in unset:
            row = self._rows[i]
            if row.op == Op.UPDATE or (row.old is not None and (row.op == Op.CREATE or self._table.by_tx)):
                unchanged.append(i)
        block.add_column(column, array, bad, make_mask(unchanged, len(values)))
        if column.name in self._table.keys:
            block.refuse_null_key(column.name)
