"""Checks that an event log has all records of a lane. A rebuild from fewer records would lack rows without any error."""

from __future__ import annotations

from contextlib import closing
from typing import Any, cast

from replicator.application.operations import cutover
from replicator.application.stream.file_register import FileRegister
from replicator.domain.policy.plan import LaneState
from replicator.domain.position import Position
from replicator.ports.components import make_event_log_lane
from replicator.ports.register import RegisterEntry
from replicator.settings import LaneSettings, Loaded

from . import adapters, build, checkpoints
from .event_logs import DATABASE_TRANSPORT, find_log, get_log_transport, open_log


def refuse_incomplete(loaded: Loaded, lane: LaneSettings, begun: Position, step: str) -> None:
    """DataLoss, with the missing offsets, unless the event log has every record from the start of the lane.

    A checkpoint with everything from `begun` on may replace missing records. A lane that has applied nothing lacks
    nothing.
    """
    source, log = find_log(loaded, lane.table)
    mine = adapters.build_lane(loaded, lane)
    with closing(cast(Any, adapters.build_sink(loaded, lane.sink))) as sink:
        live: LaneState | None = sink.state(mine)
    if live is None:
        return
    seen = FileRegister(build.get_register_folder(loaded)).load(source)
    first = seen.beginnings.get(mine.id, Position())
    needed = {place: first.get(place, 0) for place, offset in live.position.items() if offset > first.get(place, 0)}
    kept = (_find_log_start(loaded, lane, seen, source, log), _read_first_offsets(loaded, source, log), begun)
    cutover.refuse_incomplete(mine, log, needed, kept, step)


def _find_log_start(loaded: Loaded, lane: LaneSettings, seen: RegisterEntry, source: str, log: str) -> Position:
    """The start position of the log, without partitions that have lost their first records.

    For a log in a database, whose rows anyone may delete, only its first records prove that.
    """
    if get_log_transport(loaded, log) == DATABASE_TRANSPORT:
        return Position()
    began = seen.beginnings.get(make_event_log_lane(loaded.settings.pipeline, source, log).id, Position())
    removed = checkpoints.get_removed(loaded, lane)
    return began.only(place for place in began if place not in removed)


def _read_first_offsets(loaded: Loaded, source: str, log: str) -> Position:
    with open_log(loaded, source, log) as opened:
        found: Position = opened.start()
        return found
