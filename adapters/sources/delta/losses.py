"""Why an event log cannot be continued from a position."""

from __future__ import annotations

from collections.abc import Mapping

from replicator.domain.errors import DataLoss
from replicator.domain.position import TopicPartition

from .ranges import Bounds

ACCEPT = (
    "Restore the event log, reload the table with `replicator lanes resync LANE`, or accept the loss with "
    "`replicator lanes skip LANE --until POSITION`."
)


def lost(bounds: Bounds, place: TopicPartition, offset: int) -> str:
    """Why there is no going on from `offset`, or nothing. Holes between records are not known: offsets may have them."""
    if place not in bounds.ends:
        # Where nothing was read nothing can be missing: a partition without records.
        return f"The event log holds no record of {place} (any more)." if offset else ""
    end = bounds.ends[place]
    if offset > end:
        return f"Offset {offset} of {place} lies above the event log's end at {end}: it has not got what comes before it."
    # A partition whose records below its end are gone has no first one.
    return removed(place, offset, bounds.firsts.get(place, end))


def removed(place: TopicPartition, offset: int, first: int) -> str:
    """The sentence for an offset before the first record, or nothing."""
    if offset >= first:
        return ""
    return f"Records {offset} to {first - 1} of {place} are not in the event log: it begins later, or they were deleted."


def refuse(found: Mapping[TopicPartition, str]) -> None:
    """Raise DataLoss with every sentence of `found`, if there is one."""
    if found:
        raise DataLoss(" ".join(sorted(set(found.values()))), next_step=ACCEPT)
