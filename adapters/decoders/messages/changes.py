"""Messages with one layout of one table to changes: rows in the order of each message, then column by column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import Op, key_struct
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.out_of_range import null_out_of_range
from replicator.domain.sequence import EPOCH_SHIFT
from replicator.domain.table import Column, TableSpec

from ...arrow.record_errors import UNREADABLE, build_or_reject, unreadable_reject
from ...arrow.value_readers import UNSET
from ..common.pipeline import build_changes, record_ids
from ..options import MessageOptions
from .message import Message, MessageChange, MessageRows

STAMP = pa.timestamp("us", "UTC")
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
        self._rows = [row for place, message in enumerate(messages) for row in self._to_rows(place, message)]
        self._unsent: list[list[str]] = [[] for _ in self._rows]

    def build(self, options: MessageOptions) -> tuple[list[int], pa.Table]:
        """The changes of records without errors, and the record index of each."""
        columns = [self._build_column(column) for column in self._table.columns]
        elements = self._sequence_elements(options)
        places = pa.array([row.place for row in self._rows], pa.int64())
        frame = build_changes(
            self._table,
            [column.take(places) for column in record_ids(self._raw)],
            ops=pa.array([row.op for row in self._rows], pa.string()),
            elements=elements,
            at=null_out_of_range(pa.array([self._messages[row.place].at for row in self._rows], pa.int64()).view(STAMP)),
            columns=columns,
            tx=pa.array([self._messages[row.place].tx for row in self._rows], pa.string()),
            unsent=pa.array([names or None for names in self._unsent], pa.list_(pa.string())),
            key_changes=self._key_change_columns(),
        )
        good = [i for i, row in enumerate(self._rows) if row.place not in self.errors]
        if len(good) < frame.num_rows:
            frame = frame.take(pa.array(good, pa.int64()))
        return [self._rows[i].place for i in good], frame

    def _to_rows(self, place: int, message: Message) -> list[ChangeRow]:
        found: list[ChangeRow] = []
        for number, change in enumerate(message.changes):
            try:
                found += self._split_key_change(place, number * PER_ROW, change)
            except UNREADABLE as error:
                self.errors.setdefault(place, unreadable_reject(error))
        return found

    def _split_key_change(self, place: int, number: int, change: MessageChange) -> list[ChangeRow]:
        if change.row is None:
            return [ChangeRow(place, change.op, number, self._reader.blank)]
        image = self._reader.decode(change.row)
        if change.op == Op.UPDATE and change.old is not None and self._reader.can_hold(change.old, self._table.keys):
            old = self._reader.decode(change.old)
            if self._has_other_key(image, old):
                return [ChangeRow(place, Op.DELETE, number, image, old), ChangeRow(place, Op.CREATE, number + 1, image, old)]
        return [ChangeRow(place, change.op, number + 1, image)]

    def _has_other_key(self, image: Any, old: Any) -> bool:
        for key in self._table.keys:
            if key in self._reader.columns:
                [new], [was] = self._reader.values([image], key), self._reader.values([old], key)
                if was is not UNSET and self._reader.text(was) != self._reader.text(new):
                    return True
        return False

    def _sequence_elements(self, options: MessageOptions) -> list[pa.Array]:
        """The sequence: the message's order or else its offset, with the epoch in the top bits; then the row number."""
        if self._table.sequence == PER_ROW:
            orders: list[tuple[int, ...]] = [(offset,) for offset in self._raw.column("offset").to_pylist()]
        else:
            orders = [message.order for message in self._messages]
        for place, order in enumerate(orders):
            if len(order) < self._table.sequence - 1:
                reason = "it does not say where in its source's log it is, as other messages of its table do"
                self.errors.setdefault(place, Reject(RejectCode.NO_SEQUENCE, reason))
                orders[place] = (0,) * (self._table.sequence - 1)
            elif not all(0 <= element < 1 << EPOCH_SHIFT for element in order):
                reject = Reject(RejectCode.NO_SEQUENCE, "what orders it leaves no room for the epoch")
                self.errors.setdefault(place, reject)
                orders[place] = (0,) * len(order)
        first = [orders[row.place][0] | options.epoch << EPOCH_SHIFT for row in self._rows]
        others = [[orders[row.place][k] for row in self._rows] for k in range(1, self._table.sequence - 1)]
        return [pa.array(e, pa.int64()) for e in (first, *others, [row.number for row in self._rows])]

    def _key_change_columns(self) -> list[pa.Array]:
        """The columns `_moved_from` (for tables with a key) and `_moved_to`."""
        count = len(self._rows)
        gone = pa.array([True if row.old is not None and row.op == Op.DELETE else None for row in self._rows], pa.bool_())
        if not self._table.keys:
            return [gone]
        made = [row.old is not None and row.op == Op.CREATE for row in self._rows]
        struct = key_struct(self._table)
        if not any(made):
            return [pa.nulls(count, struct), gone]
        columns = []
        for key in self._table.keys:
            olds = [value if made[i] else None for i, value in enumerate(self._read_values(key, olds=True))]
            columns.append(self._build_array(self._table.column(key), olds))
        mask = pa.array([not one for one in made])
        return [pa.StructArray.from_arrays(columns, fields=list(struct), mask=mask), gone]

    def _read_values(self, name: str, *, olds: bool = False) -> list[Any]:
        """A column of every row. `olds`: the create of a key change also has the old value. A value missing in an old
        image did not change, or was not sent (`MessageFormat.by_tx`)."""
        if name not in self._reader.columns:
            return [UNSET] * len(self._rows)
        values = self._reader.values([row.image for row in self._rows], name)
        stays = name in self._table.keys or not self._table.by_tx
        for i, row in enumerate(self._rows):
            if row.old is not None and (olds or row.op == Op.DELETE):
                [was] = self._reader.values([row.old], name)
                values[i] = values[i] if was is UNSET and stays else was
        return values

    def _build_array(self, column: Column, values: list[Any], *, unset: bool = True) -> pa.Array:
        """The valid values; others are null and stored as errors. `unset`: some may be UNSET, which become null."""
        if column.name not in self._reader.columns:
            return pa.nulls(len(values), column.type)
        given = [None if value is UNSET else value for value in values] if unset else values
        array, bad = build_or_reject(lambda some: self._reader.array(column.name, some), given, f"column {column.name!r}")
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
            self._refuse_nulls(column, array)
            return array
        for i in unset:
            row = self._rows[i]
            if row.op == Op.UPDATE or (row.old is not None and (row.op == Op.CREATE or self._table.by_tx)):
                self._unsent[i].append(column.name)
        return array

    def _refuse_nulls(self, column: Column, array: pa.Array) -> None:
        reason = f"key column {column.name!r} of table {self._table.name} is null or missing"
        for i in pc.indices_nonzero(pc.is_null(array)).to_pylist():
            if self._rows[i].op != Op.TRUNCATE:
                self.errors.setdefault(self._rows[i].place, Reject(RejectCode.NULL_KEY, reason))
