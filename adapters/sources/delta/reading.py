"""Records of a window, read in process."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import RAW
from replicator.domain.event_log import EVENT_LOG
from replicator.domain.policies import TIMESTAMP

from ...arrow.logged import raw
from .backlog import Window
from .pace import Pace
from .unfinished import OpenFiles

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


def records(window: Window, pace: Pace, files: OpenFiles, period: Period = ALWAYS) -> pa.Table:
    """The records of `window` as a raw frame, by topic, partition and offset, each once, of a period. Raises TooMuch, with
    little more than that in memory, and Rewritten when a file is gone."""
    pieces, count, size = [], 0, 0
    for file in window.files:
        for piece in files.rows(file, window):
            inside = raw(period.of(piece))
            count, size = count + inside.num_rows, size + payload(inside)
            pace.refuse_more(count, size)
            if inside.num_rows:
                pieces.append(inside)
    files.done(window)
    return _once(_sorted(pa.concat_tables(pieces))) if pieces else RAW.empty_table()


def payload(frame: pa.Table) -> int:
    """Bytes of keys and values."""
    return sum(pc.sum(pc.binary_length(frame[name])).as_py() or 0 for name in ("key", "value"))


def _sorted(frame: pa.Table) -> pa.Table:
    """By topic, partition and offset. As it is where it is of one partition and in order, as most often."""
    one_place = all(pc.all(pc.equal(frame[name], frame[name][0])).as_py() for name in PLACE[:2])
    offsets = frame["offset"].combine_chunks()
    if one_place and pc.all(pc.less_equal(offsets[:-1], offsets[1:])).as_py():
        return frame
    return frame.sort_by([(name, "ascending") for name in PLACE])


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
