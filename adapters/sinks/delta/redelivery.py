"""Drops rows that a lane has already applied."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import OFFSET, PARTITION, TOPIC
from replicator.domain.position import Position

NAMES = (TOPIC, PARTITION, OFFSET)


def drop_applied(frame: pa.Table, position: Position, names: tuple[str, str, str] = NAMES) -> tuple[pa.Table, int]:
    """The rows of `frame` at or above `position`, and the number of rows below it.

    `names`: the columns with topic, partition and offset.
    """
    topic, number, offset = (frame[n] for n in names)
    below = pa.repeat(pa.scalar(False), frame.num_rows)
    present = set(pc.unique(topic).to_pylist())
    for partition, end in position.items():
        if partition.topic in present:
            mine = pc.and_(pc.equal(topic, partition.topic), pc.equal(number, partition.partition))
            below = pc.or_(below, pc.and_(mine, pc.less(offset, end)))
    if not pc.any(below).as_py():
        return frame, 0
    left = frame.filter(pc.invert(below))
    return left, frame.num_rows - left.num_rows
