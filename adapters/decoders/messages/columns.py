"""Messages with one layout of one table to changes, column by column, in the usual case.

The result equals that of `changes.MessageChangeBlock`. Messages are left to it if a value is invalid, a key changes or is
null, or the order leaves no room for the epoch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import Op, changes_schema
from replicator.domain.sequence import EPOCH_SHIFT
from replicator.domain.table import Column, TableSpec
from replicator.domain.time_bounds import null_out_of_range

from ...arrow.frame_slices import RECORD_IDS
from ...arrow.missing_columns import list_names
from .changes import PER_ROW, STAMP
from .message_batch import MessageBatch
from .typed_rows import TypedRows


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
        arrays = [
            self._ops,
            *elements,
            self._repeat_per_row(null_out_of_range(self._said.at.view(STAMP))),
            *(self._repeat_per_row(self._raw.column(name)) for name in RECORD_IDS.values()),
            self._repeat_per_row(self._said.tx),
            pa.nulls(count, pa.string()),
            list_names(self._unsent, count),
        ]
        schema = changes_schema(self._table)
        moved = [pa.nulls(count, field.type) for field in list(schema)[len(arrays) : len(schema) - len(columns)]]
        frame = pa.Table.from_arrays([*arrays, *moved, *columns], schema=schema)
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
