"""Log cuts: a point in time, or a position, as offsets in an event log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from .position import Position, TopicPartition

# The times that every engine and target can store: years 1 to 9999.

FIRST_DAY, LAST_DAY = -719_162, 2_932_896
"""0001-01-01 and 9999-12-31 in days since 1970."""
DAY_MS = 86_400_000
FIRST_MS, LAST_MS = FIRST_DAY * DAY_MS, (LAST_DAY + 1) * DAY_MS - 1
FIRST_US, LAST_US = FIRST_MS * 1_000, LAST_MS * 1_000 + 999
BOUNDS = {"ms": (FIRST_MS, LAST_MS), "us": (FIRST_US, LAST_US)}


def null_out_of_range(stamps: pa.Array) -> pa.Array:
    """`stamps`, in milliseconds or microseconds, with null for times outside the years 1 to 9999."""
    first, last = BOUNDS[stamps.type.unit]
    numbers = stamps.view(pa.int64())
    found = pc.min_max(numbers)
    least, most = found["min"].as_py(), found["max"].as_py()
    if least is None or (least >= first and most <= last):
        return stamps
    inside = pc.and_(pc.greater_equal(numbers, first), pc.less_equal(numbers, last))
    return pc.if_else(inside, stamps, pa.scalar(None, stamps.type))


Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class LogCut:
    """A cut through an event log: before some records of each partition, behind all others.

    For partitions with records:

    - `firsts`: the first offset.
    - `below`: one past the last record before the cut, if there is one.
    - `end`: the first offset behind the cut, or the offset up to which the log has read the partition.

    There is no record between `below` and `end`. `at`: the source time of the cut, if it is one of a time.
    """

    firsts: Position = field(default_factory=Position)
    below: Position = field(default_factory=Position)
    end: Position = field(default_factory=Position)
    at: datetime | None = None

    def is_at(self, position: Position, begun: Position) -> bool:
        """True if a lane that began at `begun` and is at `position` has applied exactly the records before the cut. For
        a partition whose first records may be missing in the log, this is only known if the lane has applied nothing of
        it."""
        if any(begun.get(place, 0) > first for place, first in self.firsts.items()):
            return False
        if any(offset > begun.get(place, 0) for place, offset in position.items() if place not in self.end):
            return False
        return all(
            self.below[place] <= position.get(place, 0) <= end
            if place in self.below
            else position.get(place, 0) <= begun.get(place, 0)
            for place, end in self.end.items()
        )

    def has_before(self, position: Position) -> bool:
        """True if `position`, the start of something, has a record before the cut."""
        return any(offset < self.below.get(place, 0) for place, offset in position.items())

    def is_beyond(self, position: Position, newest: datetime | None) -> bool:
        """True if a state built from the records below `position` may contain records behind the cut. `newest` is the
        latest source time of these records."""
        later = self.at is not None and newest is not None and newest > self.at
        return later or any(position.get(place, 0) > end for place, end in self.end.items())


def is_time_ordered(early: Offsets, late: Offsets) -> bool:
    """True if the records are in the order of their times around one point in time. `early`: per partition the last
    offset of that time or earlier. `late`: the first offset of a later time."""
    return all(place not in late or last < late[place] for place, last in early.items())


@dataclass(frozen=True, slots=True)
class CutSides:
    """Offsets around a cut, for partitions with records.

    - `firsts`: the first offset.
    - `early`: the last offset before the cut, if it exists.
    - `late`: the first offset behind the cut, if it exists.
    """

    firsts: Offsets
    lasts: Offsets
    nexts: Offsets

    def to_cut(self, splits: Offsets, covered: Offsets) -> LogCut:
        """The cut before the records at or above `splits`, and behind all records of other partitions. `covered`: the
        offsets up to which the log's lane has read."""
        firsts, nexts = self.firsts, self.nexts
        below = {place: last + 1 for place, last in self.lasts.items()}
        # Records before the first one are unknown: there the cut is at the requested offset.
        end = {place: nexts.get(place, max(offset, covered.get(place, 0))) for place, offset in below.items()}
        end |= {place: min(first, splits[place]) for place, first in firsts.items() if place not in below}
        return LogCut(Position(firsts), Position(below), Position(end))
