"""Where a moment lies among the records of an event log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from .position import Position, TopicPartition

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class LogCut:
    """Before some records of an event log, and behind all others. Of the partitions that have records: `firsts`, the first
    of them; `below`, one past the last record before the border, where there is one; `end`, the first offset behind it, or
    how far the log has read the partition. Between `below` and `end` there is no record. `at`: its time at the source, where
    it is one."""

    firsts: Position = field(default_factory=Position)
    below: Position = field(default_factory=Position)
    end: Position = field(default_factory=Position)
    at: datetime | None = None

    def is_at(self, position: Position, begun: Position) -> bool:
        """Whether a lane that began with `begun` and stands at `position` has applied exactly the records before it. Of a
        partition whose records before it are not in the log, if there were some, that is only known where the lane has
        applied nothing; so it is of one of which the log has no record at all."""
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
        """Whether one of the records at a position, the first ones of something, lies before it."""
        return any(offset < self.below.get(place, 0) for place, offset in position.items())

    def is_beyond(self, position: Position, newest: datetime | None) -> bool:
        """Whether what was made of the records below that position, of which the latest is of the time `newest`, may hold
        some that lie behind it."""
        later = self.at is not None and newest is not None and newest > self.at
        return later or any(position.get(place, 0) > end for place, end in self.end.items())


def is_time_ordered(early: Offsets, late: Offsets) -> bool:
    """Whether the records are in the order of their times, as far as one time goes: by partition the last offset of those of
    then or earlier, and the first of those of later."""
    return all(place not in late or last < late[place] for place, last in early.items())


@dataclass(frozen=True, slots=True)
class CutSides:
    """Of partitions that have records: `firsts`, the first offset; the last one before a border, and the first behind it,
    where there are some."""

    firsts: Offsets
    lasts: Offsets
    nexts: Offsets

    def to_cut(self, splits: Offsets, covered: Offsets) -> LogCut:
        """The border before the records at or above `splits`; behind all of a partition that is not in it. `covered`: how
        far the log's lane had read before."""
        firsts, nexts = self.firsts, self.nexts
        below = {place: last + 1 for place, last in self.lasts.items()}
        # Of what was before the first record nothing is known: there the border is where it was asked for.
        end = {place: nexts.get(place, max(offset, covered.get(place, 0))) for place, offset in below.items()}
        end |= {place: min(first, splits[place]) for place, first in firsts.items() if place not in below}
        return LogCut(Position(firsts), Position(below), Position(end))
