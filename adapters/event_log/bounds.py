"""From where to where an event log holds records, and why it cannot be continued from a position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from replicator.domain.errors import DataLoss
from replicator.domain.position import Position, TopicPartition
from replicator.domain.remedies import describe_reload_or_skip

ACCEPT = f"Restore the event log. Otherwise, {describe_reload_or_skip()}"


class LogBounds(NamedTuple):
    """Per partition the first offset that is there, and where the log ends."""

    firsts: Position
    ends: Position

    def limit_to(self, below: Position | None) -> LogBounds:
        """Those of a log that is taken to end there, and to have nothing of other partitions."""
        if below is None:
            return self
        ends = Position({place: min(end, self.ends[place]) for place, end in below.items() if place in self.ends})
        return LogBounds(self.firsts.only(place for place, end in ends.items() if self.firsts[place] <= end), ends)


def describe_loss(bounds: LogBounds, place: TopicPartition, offset: int) -> str:
    """Why there is no going on from `offset`, or nothing. Holes between records are not known: offsets may have them."""
    if place not in bounds.ends:
        # Where nothing was read nothing can be missing: a partition without records.
        return f"The event log holds no record of {place} (any more)." if offset else ""
    end = bounds.ends[place]
    if offset > end:
        return f"Offset {offset} of {place} lies above the event log's end at {end}: it has not got what comes before it."
    # A partition whose records below its end are gone has no first one.
    return describe_removed(place, offset, bounds.firsts.get(place, end))


def describe_removed(place: TopicPartition, offset: int, first: int) -> str:
    """The sentence for an offset before the first record, or nothing."""
    if offset >= first:
        return ""
    return f"Records {offset} to {first - 1} of {place} are not in the event log: it begins later, or they were deleted."


def refuse_losses(found: Mapping[TopicPartition, str]) -> None:
    """Raise DataLoss with every sentence of `found`, if there is one."""
    if found:
        raise DataLoss(" ".join(sorted(set(found.values()))), next_step=ACCEPT)


def recreated_error(where: object) -> DataLoss:
    """Why a log is not read on whose table is another one: it holds other records under the same offsets."""
    return DataLoss(
        f"The event log in {where} is another table than the one that was read: it was made anew.",
        next_step="Put the one that was read back, or read this one from its beginning with `replicator lanes resync LANE`.",
    )
