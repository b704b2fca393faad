"""The range of records in an event log, and errors for positions outside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from replicator.domain.errors import DataLoss, describe_reload_or_skip
from replicator.domain.position import Position, TopicPartition

ACCEPT = f"Restore the event log. Otherwise, {describe_reload_or_skip()}"


class LogBounds(NamedTuple):
    """The first offset of each partition, and the end of the log."""

    firsts: Position
    ends: Position

    def limit_to(self, below: Position | None) -> LogBounds:
        """The bounds of a log that ends at `below` and has no other partitions."""
        if below is None:
            return self
        ends = Position({place: min(end, self.ends[place]) for place, end in below.items() if place in self.ends})
        return LogBounds(self.firsts.only(place for place, end in ends.items() if self.firsts[place] <= end), ends)


def describe_loss(bounds: LogBounds, place: TopicPartition, offset: int) -> str:
    """The error for reading on from `offset`, or empty text. Holes between records are legal, so they are not
    detected."""
    if place not in bounds.ends:
        # A partition without records: nothing was read from it, so nothing can be missing.
        return f"The event log holds no record of {place} (any more)." if offset else ""
    end = bounds.ends[place]
    if offset > end:
        return f"Offset {offset} of {place} is above the event log's end at {end}: the records before it are missing."
    # If all records below the end were deleted, the partition has no first offset.
    return describe_removed(place, offset, bounds.firsts.get(place, end))


def describe_removed(place: TopicPartition, offset: int, first: int) -> str:
    """The error for an offset before the first record, or empty text."""
    if offset >= first:
        return ""
    return f"Records {offset} to {first - 1} of {place} are not in the event log: it begins later, or they were deleted."


def refuse_losses(found: Mapping[TopicPartition, str]) -> None:
    """Raise DataLoss with all sentences in `found`, if there are any."""
    if found:
        raise DataLoss(" ".join(sorted(set(found.values()))), next_step=ACCEPT)


def recreated_error(where: object) -> DataLoss:
    """The error for a log whose table was replaced: it has other records with the same offsets."""
    return DataLoss(
        f"The event log in {where} was created again: it is another table than before.",
        next_step="Restore the earlier table, or read this one from its beginning with `replicator lanes resync LANE`.",
    )
