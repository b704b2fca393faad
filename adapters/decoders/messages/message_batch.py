"""Contents of many messages. They are converted a few at a time, so that the values stay in the CPU cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import pyarrow as pa

from replicator.domain.change import Op

from .message import MessageContents
from .typed_rows import ColumnValues, TypedRows


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
