"""Finds the log cut of a time in an event log, with two scans of positions and times."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from replicator.domain.as_of import CutSides, LogCut, is_time_ordered
from replicator.domain.position import Position, TopicPartition

from ...sql.dialect import text_literal

Offsets = dict[TopicPartition, int]
EVERY = 2**63 - 1


def cut_at_time(table: DeltaTable, topics: Collection[str], at: datetime, covered: Position) -> LogCut | None:
    """See `ports.sink.SinkFeatures.find_cut`. A record without a time has the time of the record before
    it."""
    early, late = Offsets(), Offsets()
    for place, piece in _read_partitions(table, topics, "ts"):
        of_then = piece.filter(pc.fill_null(pc.less_equal(piece["ts"], at), False))
        of_later = piece.filter(pc.fill_null(pc.greater(piece["ts"], at), False))
        if of_then.num_rows:
            early[place] = max(early.get(place, -1), pc.max(of_then["offset"]).as_py())
        if of_later.num_rows:
            late[place] = min(late.get(place, EVERY), pc.min(of_later["offset"]).as_py())
    if not is_time_ordered(early, late):
        return None
    return replace(cut_at_positions(table, topics, late, covered), at=at)


def cut_at_positions(
    table: DeltaTable, topics: Collection[str], splits: Mapping[TopicPartition, int], covered: Position
) -> LogCut:
    """See `domain.as_of.CutSides.to_cut`."""
    firsts, lasts, nexts = Offsets(), Offsets(), Offsets()
    for place, piece in _read_partitions(table, topics):
        split, offsets = splits.get(place, EVERY), piece["offset"]
        firsts[place] = min(firsts.get(place, EVERY), pc.min(offsets).as_py())
        below = pc.filter(offsets, pc.less(offsets, split))
        if len(below):
            lasts[place] = max(lasts.get(place, -1), pc.max(below).as_py())
        if len(below) < len(offsets):
            nexts[place] = min(nexts.get(place, EVERY), pc.min(pc.filter(offsets, pc.greater_equal(offsets, split))).as_py())
    return CutSides(firsts, lasts, nexts).to_cut(splits, covered)


def _read_partitions(table: DeltaTable, topics: Collection[str], *more: str) -> Iterator[tuple[TopicPartition, pa.Table]]:
    """The offsets of the records of some topics, and the columns `more`, in Arrow batches of one partition each."""
    for topic in sorted(topics):
        scan = table.scan(columns=["partition", "offset", *more], predicate=f'"topic" = {text_literal(topic)}')
        for batch in pa.RecordBatchReader.from_stream(scan):
            rows = pa.table(batch)
            for number in pc.unique(rows["partition"]).to_pylist():
                yield TopicPartition(topic, number), rows.filter(pc.equal(rows["partition"], number))
