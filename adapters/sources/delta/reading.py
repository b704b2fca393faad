"""Records of a window, read in process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from replicator.domain.change import RAW
from replicator.domain.event_log import EVENT_LOG
from replicator.domain.policies import TIMESTAMP
from replicator.domain.position import TopicPartition

from ...arrow.logged import raw
from .backlog import Window
from .files import parquet
from .pace import Pace
from .table import LogFile

PIECE_BYTES = 8 * 1024 * 1024
PIECE_ROWS = 10_000
STORED = pa.schema([pa.field(c.name, c.type) for c in EVENT_LOG if c.name in RAW.names and c.name != "topic"])
TIME = pa.field("ts", TIMESTAMP)
PLACE = ("topic", "partition", "offset")


@dataclass(frozen=True, slots=True)
class Period:
    """Times at the source: of records that tell theirs, only those at or between these are wanted."""

    since: datetime | None = None
    until: datetime | None = None

    @property
    def stored(self) -> pa.Schema:
        """The columns of a log's files that are looked at."""
        return STORED.append(TIME) if self.since or self.until else STORED

    def of(self, piece: pa.Table) -> pa.Table:
        """The rows of a log that lie in it, or tell no time."""
        keep = [pc.greater_equal(piece["ts"], self.since)] if self.since else []
        keep += [pc.less_equal(piece["ts"], self.until)] if self.until else []
        return piece.filter(pc.fill_null(reduce(pc.and_, keep), True)) if keep else piece


ALWAYS = Period()


def records(window: Window, pace: Pace, period: Period = ALWAYS) -> pa.Table:
    """The records of `window` as a raw frame, by topic, partition and offset, each once, of a period. Raises TooMuch, with
    little more than that in memory, and Rewritten when a file is gone."""
    pieces, count, size = [], 0, 0
    for file in window.files:
        for piece in _pieces(file, window, period.stored):
            inside = raw(period.of(_within(piece, file.topic, window))).combine_chunks()
            count, size = count + inside.num_rows, size + payload(inside)
            pace.refuse_more(count, size)
            if inside.num_rows:
                pieces.append(inside)
    return _once(pa.concat_tables(pieces).sort_by([(name, "ascending") for name in PLACE])) if pieces else RAW.empty_table()


def payload(frame: pa.Table) -> int:
    """Bytes of keys and values."""
    return sum(pc.sum(pc.binary_length(frame[name])).as_py() or 0 for name in ("key", "value"))


def _pieces(file: LogFile, window: Window, stored: pa.Schema) -> Iterator[pa.Table]:
    """The rows of a file, a little at a time, without row groups that have nothing of the window."""
    lowest = min(offset for place, offset in window.span.start.items() if place.topic == file.topic)
    highest = max(offset for place, offset in window.span.end.items() if place.topic == file.topic)
    with parquet(file.path) as reader:
        every = [reader.metadata.row_group(i) for i in range(reader.metadata.num_row_groups)]
        groups = [i for i, group in enumerate(every) if _reaches(group, lowest, highest)]
        size, held = sum(every[i].total_byte_size for i in groups), sum(every[i].num_rows for i in groups)
        rows = max(1, min(PIECE_ROWS, PIECE_BYTES * held // max(1, size)))
        for batch in reader.iter_batches(rows, row_groups=groups, columns=stored.names) if groups else ():
            topic = pa.repeat(pa.scalar(file.topic), batch.num_rows)
            yield pa.table(batch).select(stored.names).cast(stored).append_column("topic", topic)


def _reaches(group: pq.RowGroupMetaData, start: int, end: int) -> bool:
    columns = (group.column(i) for i in range(group.num_columns))
    known = next((c.statistics for c in columns if c.path_in_schema == "offset"), None)
    return known is None or not known.has_min_max or (known.min < end and known.max >= start)


def _within(piece: pa.Table, topic: str, window: Window) -> pa.Table:
    keep = pa.repeat(pa.scalar(False), piece.num_rows)
    for place, end in ((place, end) for place, end in window.span.end.items() if place.topic == topic):
        keep = pc.or_(keep, _is_between(piece, place, window.span.start[place], end))
    return piece.filter(keep)


def _is_between(piece: pa.Table, place: TopicPartition, start: int, end: int) -> pa.Array:
    inside = pc.and_(pc.greater_equal(piece["offset"], start), pc.less(piece["offset"], end))
    return pc.and_(pc.equal(piece["partition"], place.partition), inside)


def _once(frame: pa.Table) -> pa.Table:
    """Sorted records without those that are there again: files may hold the same ones."""
    if frame.num_rows < 2:
        return frame
    same = pa.repeat(pa.scalar(True), frame.num_rows - 1)
    for name in PLACE:
        values = frame[name].combine_chunks()
        same = pc.and_(same, pc.equal(values[1:], values[:-1]))
    if not pc.any(same).as_py():
        return frame
    return frame.filter(pa.concat_arrays([pa.array([True]), pc.invert(same)]))
