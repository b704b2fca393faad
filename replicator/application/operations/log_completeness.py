"""Checks that an event log has all records of a lane. A rebuild from fewer records would lack rows without any error."""

from __future__ import annotations

from contextlib import closing

from replicator.domain.policy.plan import LaneState
from replicator.domain.position import Position
from replicator.ports.components import Components
from replicator.ports.frames import Lane
from replicator.ports.register import RegisterEntry

from . import checkpoint, cutover


def refuse_incomplete(parts: Components, lane: Lane, begun: Position, step: str) -> None:
    """DataLoss, with the missing offsets, unless the event log has every record from the start of the lane.

    A checkpoint with everything from `begun` on may replace missing records. A lane that has applied nothing lacks
    nothing.
    """
    log = parts.find_log(lane.table)
    with closing(parts.open_sink(lane.sink)) as sink:
        live: LaneState | None = sink.state(lane)
    if live is None:
        return
    seen = parts.register.load(log.source)
    first = seen.beginnings.get(lane.id, Position())
    needed = {place: first.get(place, 0) for place, offset in live.position.items() if offset > first.get(place, 0)}
    kept = (_find_log_start(parts, lane, seen, log), _read_first_offsets(parts, log), begun)
    cutover.refuse_incomplete(lane, log.sink, needed, kept, step)


def _find_log_start(parts: Components, lane: Lane, seen: RegisterEntry, log: Lane) -> Position:
    """The start position of the log, without partitions that have lost their first records.

    For a log in a database, whose rows anyone may delete, only its first records prove that.
    """
    if parts.sinks[log.sink].is_log_in_database:
        return Position()
    began = seen.beginnings.get(log.id, Position())
    removed = checkpoint.get_removed(parts, lane)
    return began.only(place for place in began if place not in removed)


def _read_first_offsets(parts: Components, log: Lane) -> Position:
    with closing(parts.open_log(log)) as opened:
        found: Position = opened.start()
        return found
