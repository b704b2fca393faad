"""Transactions in a changes frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import OFFSET, OP, PARTITION, TOPIC, TX, Op
from replicator.domain.position import TopicPartition
from replicator.domain.transactions import TransactionPart

PLACES = ("_seq_1", "_seq_2")
"""The position of a change in the log. Later elements may differ when a change is sent again."""


def split_parts(changes: pa.Table, table: str) -> Sequence[TransactionPart]:
    """See `ports.engine.TransactionTracking.parts`."""
    grouped = _drop_snapshot_reads(changes).group_by([TX, TOPIC, PARTITION], use_threads=False)
    totals = grouped.aggregate([(OFFSET, "count"), (OFFSET, "min"), (OFFSET, "max")])
    names = (TX, TOPIC, PARTITION, f"{OFFSET}_count", f"{OFFSET}_min", f"{OFFSET}_max")
    rows = zip(*(totals[name].to_pylist() for name in names), strict=True)
    return [TransactionPart(tx, table, TopicPartition(t, p), count, first, last) for tx, t, p, count, first, last in rows]


def split_exact_parts(changes: pa.Table, table: str) -> Sequence[TransactionPart]:
    """See `ports.engine.TransactionTracking.exact_parts`."""
    rows = _drop_snapshot_reads(changes)
    positions = list(zip(*(rows[name].to_pylist() for name in position_columns(rows.column_names)), strict=True))
    whole = zip(*(rows[name].to_pylist() for name in identity_columns(rows.column_names)), strict=True)
    different: dict[tuple[str, TopicPartition], set[str]] = {}
    reached: dict[tuple[str, TopicPartition], list[tuple[int | None, ...]]] = {}
    at = zip(*(rows[name].to_pylist() for name in (TX, TOPIC, PARTITION)), strict=True)
    for (tx, topic, partition), position, values in zip(at, positions, whole, strict=True):
        key = (tx, TopicPartition(topic, partition))
        different.setdefault(key, set()).add(repr(values))
        reached.setdefault(key, []).append(position)
    return [
        _make_exact(p, len(different[p.tx, p.partition]), reached[p.tx, p.partition]) for p in split_parts(changes, table)
    ]


def _make_exact(part: TransactionPart, changes: int, positions: Sequence[tuple[int | None, ...]]) -> TransactionPart:
    filled = [tuple(n for n in position if n is not None) for position in positions]
    if any(len(a) < len(b) for a, b in zip(filled, positions, strict=True)):
        return replace(part, changes=changes)
    return replace(part, changes=changes, low=min(filled), high=max(filled))


def position_columns(names: Sequence[str]) -> list[str]:
    """The columns of a changes frame with the position in the log."""
    return [name for name in PLACES if name in names]


def identity_columns(names: Sequence[str]) -> list[str]:
    """The columns of a changes frame that identify a change that is sent again. Columns of the table with names like
    bookkeeping columns are left out."""
    return [OP, *position_columns(names), *(name for name in names if not name.startswith("_"))]


def _drop_snapshot_reads(changes: pa.Table) -> pa.Table:
    return changes.filter(pc.and_(pc.is_valid(changes[TX]), pc.fill_null(pc.not_equal(changes[OP], Op.READ.value), True)))
