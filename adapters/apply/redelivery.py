"""Redelivery: records that a lane has applied before, and records that are missing in front of a write."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import RECORD_POSITION
from replicator.domain.errors import DataLoss, describe_reload_or_skip
from replicator.domain.policy.plan import LaneState
from replicator.domain.position import Position
from replicator.ports.frames import Write


def refuse_gap(write: Write[Any], state: LaneState) -> None:
    """Raises DataLoss when records between the lane's position and the write are missing."""
    for first in write.span.gaps(state.position):
        lane, start = write.lane, write.span.start[first]
        raise DataLoss(
            f"lane {lane.id} is at {first} offset {state.position[first]}, but the batch starts at {start}",
            next_step=describe_reload_or_skip(lane.id, f"{first.topic}:{first.partition}:{start}"),
        )


def is_applied(write: Write[Any], state: LaneState) -> bool:
    """True when nothing of the write is above the lane's position."""
    return not write.out_of_band and not write.span.after(state.position).end


def drop_applied(frame: pa.Table, position: Position, names: tuple[str, str, str] = RECORD_POSITION) -> tuple[pa.Table, int]:
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
