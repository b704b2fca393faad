"""When a target is asked for as it was: a time at the source or a place in its stream, and which version of it that is."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from replicator.application.register import FileRegister
from replicator.application.remembering import remembered
from replicator.application.rules import event_log_lane
from replicator.application.schemas import Altered, altered_behind
from replicator.domain.borders import Border
from replicator.domain.errors import Fatal
from replicator.domain.plan import LaneState
from replicator.domain.position import Position
from replicator.domain.selection import Misasked
from replicator.ports.reader import TellsVersions
from replicator.settings import LaneSettings, Loaded

from . import adapters, parts, snapshots
from .histories import log_of

Then = datetime | Position
"""A time at the source, or a position: the records below it."""


@dataclass(frozen=True)
class Moment:
    """What was asked for, and where that lies among the records of the event log; None for a time in whose order they are
    not."""

    asked: Then
    border: Border | None

    @property
    def until(self) -> datetime | Border:
        """Up to where records are applied: to the border, in the order of the log, or those that tell no later time."""
        return cast(datetime, self.asked) if self.border is None else self.border

    def __str__(self) -> str:
        if isinstance(self.asked, datetime):
            return self.asked.isoformat()
        return as_places(self.asked)


def moment_of(loaded: Loaded, lane: LaneSettings, asked: Then) -> Moment:
    """The moment among the records of the lane's table. A time without zone is one in UTC. ConfigProblem without an event
    log; Misasked for a position that names not every partition in which the log has records, or another, or one beyond the
    log's end, and for a time of which nobody can say which tombstones had come."""
    source, log = log_of(loaded, lane.table)
    topics = snapshots.topics_of(loaded, lane)
    if isinstance(asked, datetime):
        asked = asked if asked.tzinfo else asked.replace(tzinfo=UTC)
    if not topics:
        if isinstance(asked, datetime):
            return Moment(asked, None)
        raise Misasked(f"no record of table {lane.table} was seen yet", next_step="Start the program, or ask for a time.")
    with closing(cast(Any, adapters.sink(loaded, log))) as kept:
        state: LaneState | None = kept.state(event_log_lane(loaded.settings.pipeline, source, log))
        border: Border | None = kept.border(topics, asked, state.position if state else Position())
    if isinstance(asked, Position) and border is not None:
        _refuse_strange(asked, border)
    if border is None and lane.tombstones == "delete":
        raise Misasked(
            f"records of table {lane.table} did not come in the order of their times, and tombstones, which delete rows, "
            "tell none: which of them had come by then nobody can say",
            next_step="Ask for a place, TOPIC:PARTITION:OFFSET, as `history` and `audit` tell them.",
        )
    return Moment(asked, border)


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a target that holds what the records before a moment made of it, and nothing of others. `ahead`: its
    columns are those of later records, or nobody knows."""

    number: int
    ahead: bool


def version_of(loaded: Loaded, lane: LaneSettings, reader: Any, moment: Moment) -> Version | None:
    """The newest one of the lane's target; None where there is none, or none is known. Older ones may be of other rules."""
    border = moment.border
    if border is None or not hasattr(reader, "standings"):
        return None
    mine = adapters.lane(loaded, lane)
    begun = FileRegister(parts.register_folder(loaded)).load(lane.source).beginnings.get(mine.id, Position())
    number = next((version for version, at in reader.standings(mine) if border.is_at(at, begun)), None)
    if number is None:
        return None
    altered = altered_behind(border, mine, remembered(reader, mine))
    return Version(number, bool(altered) and _is_ahead(reader, lane.into, number, altered))


def _is_ahead(reader: TellsVersions, table: str, version: int, altered: Mapping[str, Altered]) -> bool:
    try:
        columns = reader.columns_at(table, version)
    except Fatal:
        return True  # It is gone.
    there = dict(zip(columns.names, columns.types, strict=True))
    return any(one.is_done(there.get(name)) for name, one in altered.items())


def as_places(position: Position) -> str:
    """The last places below it, as `history` and `audit` tell places, and `--as-of` takes them."""
    return Position({place: offset - 1 for place, offset in position.items()}).as_option()


def _refuse_strange(asked: Position, border: Border) -> None:
    known, last = set(border.firsts), as_places(border.below)
    strange, missing = sorted(set(asked) - known), sorted(known - set(asked))
    if strange:
        step = f"There are records of: {', '.join(map(str, sorted(known))) or 'none'}."
        raise Misasked(f"the event log has no records of {strange[0]}", next_step=step)
    if missing:
        raise Misasked(
            f"the table's records are in {len(known)} partitions, and of {missing[0]} no place is said",
            next_step=f"Say one of each, as in {as_places(Position({**border.end, **asked}))}.",
        )
    beyond = sorted(place for place, offset in asked.items() if offset > border.end[place])
    if beyond:
        raise Misasked(f"the event log ends before that place of {beyond[0]}", next_step=f"Its last one is {last}.")
