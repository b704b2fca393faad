"""Records of a window, read in process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from itertools import pairwise

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
FEW = 64
"""Records of a stretch below which stretches are not worth being told apart."""


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
    return in_order(pa.concat_tables(pieces)) if pieces else RAW.empty_table()


def payload(frame: pa.Table) -> int:
    """Bytes of keys and values."""
    return sum(pc.sum(pc.binary_length(frame[name])).as_py() or 0 for name in ("key", "value"))


def in_order(frame: pa.Table) -> pa.Table:
    """Records by topic, partition and offset, each once."""
    return _once(_sorted(frame))


def _sorted(frame: pa.Table) -> pa.Table:
    """By topic, partition and offset. Without a copy where it is in order, or where only stretches without a hole have to
    change places, as those of a compacted file do: records are some thousand bytes each."""
    if _is_sorted(frame):
        return frame
    firsts = [0, *(last + 1 for last in _breaks(frame, _follows))]
    if len(firsts) * FEW <= frame.num_rows:
        stretches = [frame.slice(first, after - first) for first, after in pairwise([*firsts, frame.num_rows])]
        frame = pa.concat_tables(sorted(stretches, key=lambda stretch: _place(stretch, 0)))
    return frame if _is_sorted(frame) else frame.sort_by([(name, "ascending") for name in PLACE])


def _is_sorted(frame: pa.Table) -> bool:
    return all(_place(frame, last) < _place(frame, last + 1) for last in _breaks(frame, pc.less_equal))


def _place(frame: pa.Table, row: int) -> tuple[str | int, ...]:
    return tuple(frame[name][row].as_py() for name in PLACE)


def _breaks(frame: pa.Table, goes_on: Callable[[pa.Array, pa.Array], pa.Array]) -> list[int]:
    """The rows behind which another partition begins, or an offset that does not go on as it should."""
    places = [frame[name].combine_chunks() for name in PLACE]
    topics, partitions, offsets = (
        compare(place[:-1], place[1:]) for place, compare in zip(places, (pc.equal, pc.equal, goes_on), strict=True)
    )
    found: list[int] = pc.indices_nonzero(pc.invert(pc.and_(pc.and_(topics, partitions), offsets))).to_pylist()
    return found


def _follows(before: pa.Array, after: pa.Array) -> pa.Array:
    return pc.equal(pc.add(before, 1), after)


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
