"""Drops rows that a lane has already applied."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from replicator.domain.change import RECORD_POSITION
from replicator.domain.position import Position, TopicPartition
from replicator.ports.frames import Write

from .frames import column, filter_rows


def drop_applied(
    write: Write[DataFrame], position: Position, names: tuple[str, str, str] = RECORD_POSITION
) -> tuple[DataFrame, int]:
    """The rows at or above `position`, and the number of rows below. A job runs only if the write starts below
    the position.

    `names`: the columns with topic, partition and offset.
    """
    frame = write.folded.frame
    again = {p: o for p, o in position.items() if write.span.start.get(p, o) < o}
    if not again:
        return frame, 0
    below = sf.lit(False)
    for place, offset in again.items():
        below = below | _is_below(place, offset, names)
    return filter_rows(frame, ~below), frame.filter(below).count()


def _is_below(place: TopicPartition, offset: int, names: tuple[str, str, str]) -> Column:
    topic, partition, at = (column(name) for name in names)
    return (topic == place.topic) & (partition == place.partition) & (at < offset)
