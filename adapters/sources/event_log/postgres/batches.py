"""Slices of a stream as batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from ....event_log.frames import payload_bytes


def split_batches(pieces: Iterable[pa.Table], records: int, size: int) -> Iterator[pa.Table]:
    """The records of raw frames in frames of at most `records` records and `size` bytes of keys and values, or of one
    record."""
    waiting: list[pa.Table] = []
    count = weight = 0
    for piece in pieces:
        left = piece
        while left.num_rows:
            taken = _count_within_limit(left, records - count, size - weight) or (0 if waiting else 1)
            if taken:
                head, left = left.slice(0, taken), left.slice(taken)
                waiting.append(head)
                count, weight = count + taken, weight + payload_bytes(head)
            if left.num_rows:
                yield pa.concat_tables(waiting)
                waiting, count, weight = [], 0, 0
    if waiting:
        yield pa.concat_tables(waiting)


def _count_within_limit(piece: pa.Table, records: int, size: int) -> int:
    """The number of first records within these limits."""
    if piece.num_rows <= records and payload_bytes(piece) <= size:
        return int(piece.num_rows)
    lengths = [pc.fill_null(pc.binary_length(piece[name]), 0).cast(pa.int64()) for name in ("key", "value")]
    sums = pc.cumulative_sum(pc.add(*lengths))
    return max(0, min(records, pc.sum(pc.less_equal(sums, size)).as_py() or 0))
