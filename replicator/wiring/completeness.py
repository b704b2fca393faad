"""Whether an event log has everything that a lane's target was made of: what is made of less would lack rows in silence."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any, cast

from replicator.application import joining
from replicator.application.register import FileRegister
from replicator.application.rules import event_log_lane
from replicator.domain.plan import LaneState
from replicator.domain.position import Position
from replicator.settings import LaneSettings, Loaded

from . import adapters, parts, snapshots
from .histories import log_of, reading
from .plugins import load


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
    began = seen.beginnings.get(event_log_lane(loaded.settings.pipeline, source, log).id, Position())
    removed = snapshots.removed(loaded, lane)
    began = began.only(place for place in began if place not in removed)
    joining.refuse_incomplete(mine, log, needed, (began, _firsts(loaded, source, log), begun), step)


def _firsts(loaded: Loaded, source: str, log: str) -> Position:
    local = replace(loaded, settings=loaded.settings.model_copy(update={"engine": adapters.LOCAL}))
    options = {**reading(local, source, log), "batch_bytes": adapters.batch_bytes(local)}
    with closing(cast(Any, load("replicator.sources", "delta")(options))) as opened:
        found: Position = opened.start()
        return found
