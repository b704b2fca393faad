"""Whether an event log has everything that a lane's target was made of: what is made of less would lack rows in silence."""

from __future__ import annotations

from contextlib import closing
from typing import Any, cast

from replicator.application import joining
from replicator.application.register import FileRegister
from replicator.application.rules import event_log_lane
from replicator.domain.plan import LaneState
from replicator.domain.position import Position
from replicator.ports.register import Seen
from replicator.settings import LaneSettings, Loaded

from . import adapters, parts, snapshots
from .histories import DATABASE, log_of, opened_log, transport_of_log


def refuse_incomplete(loaded: Loaded, lane: LaneSettings, begun: Position, step: str) -> None:
    """DataLoss, naming what is missing, unless the event log has every record from where the lane began in its source; of
    what is missing, a snapshot that holds everything from `begun` on will do. Of a lane that has applied nothing nothing can
    be missing."""
    source, log = log_of(loaded, lane.table)
    mine = adapters.lane(loaded, lane)
    with closing(cast(Any, adapters.sink(loaded, lane.sink))) as sink:
        live: LaneState | None = sink.state(mine)
    if live is None:
        return
    seen = FileRegister(parts.register_folder(loaded)).load(source)
    first = seen.beginnings.get(mine.id, Position())
    needed = {place: first.get(place, 0) for place, offset in live.position.items() if offset > first.get(place, 0)}
    kept = (_began(loaded, lane, seen, source, log), _firsts(loaded, source, log), begun)
    joining.refuse_incomplete(mine, log, needed, kept, step)


def _began(loaded: Loaded, lane: LaneSettings, seen: Seen, source: str, log: str) -> Position:
    """From where on the log was written, of partitions that have kept what came first. Of one in a database, from which
    anybody may have deleted rows, only its first records tell that."""
    if transport_of_log(loaded, log) == DATABASE:
        return Position()
    began = seen.beginnings.get(event_log_lane(loaded.settings.pipeline, source, log).id, Position())
    removed = snapshots.removed(loaded, lane)
    return began.only(place for place in began if place not in removed)


def _firsts(loaded: Loaded, source: str, log: str) -> Position:
    with opened_log(loaded, source, log) as opened:
        found: Position = opened.start()
        return found
