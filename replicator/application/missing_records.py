"""Records that a reload would miss, since the source no longer has them. A reload is refused until that is accepted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from replicator.domain.errors import DataLoss, describe_reload
from replicator.domain.policy import CURRENT_ROW_POLICIES
from replicator.domain.position import Position, TopicPartition
from replicator.ports.frames import Lane
from replicator.ports.source import Source

CoversPartition = Callable[[TopicPartition], bool]


def describe_missing(source: Source[Any], lane: Lane, begun: Position, covers: CoversPartition) -> Sequence[str]:
    """The records that the lane would miss if it began again; empty if none. `begun`: where its partitions began."""
    start, beginning, end = source.start(), source.beginning(), source.end()
    mine = {p: offset for p, offset in start.items() if covers(p)}
    # With sparse offsets, the only known first offset is the stored one.
    sparse = source.features.sparse_offsets
    known = {p: begun.get(p, at) if sparse else 0 for p, at in {**begun, **mine}.items() if covers(p)}
    gone = source.losses(Position(known), {})
    found = []
    for partition, first in sorted(known.items()):
        at = mine.get(partition)
        if at is None:
            found += [gone[partition]] if partition in gone else []
        elif at > first and (partition in gone or at > beginning.get(partition, at)):
            found += [] if _is_whole(source, lane, partition, at) else [f"The source begins at offset {at} of {partition}."]
    if not found and all(end.get(partition, at) <= at for partition, at in mine.items()):
        found.append("The source has no records of its table.")
    return found


def _is_whole(source: Source[Any], lane: Lane, partition: TopicPartition, offset: int) -> bool:
    """True if the records start with a snapshot of all rows, which is enough for a target without history."""
    after_snapshots = source.features.after_snapshots
    if lane.policy not in CURRENT_ROW_POLICIES or after_snapshots is None:
        return False
    return after_snapshots(Position({partition: offset}))[partition] != offset


def refuse_missing(lane: Lane, found: Sequence[str], *, has_backfills: bool) -> None:
    """Raise DataLoss with all sentences of `found`, if there are any."""
    if found:
        step = "`replicator backfill {}` loads the rows as they are now. " if has_backfills else ""
        raise DataLoss(
            f"Lane {lane.id} was not emptied, because the source does not have all its rows any more. {' '.join(found)}",
            next_step=f"{step.format(lane.table) if lane.table else ''}{describe_reload(lane.id, is_short=True)}",
        )
