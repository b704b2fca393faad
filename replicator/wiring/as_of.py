"""Resolves a time or a position to a cut of the event log and to a version of a target."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from replicator.application.lane_schema import AlteredColumn, find_altered_columns
from replicator.application.schema_history import read_schema_versions
from replicator.application.stream.file_register import FileRegister
from replicator.domain.as_of import LogCut
from replicator.domain.errors import Fatal
from replicator.domain.policy.plan import LaneState
from replicator.domain.position import Position
from replicator.domain.read_query import InvalidReadQuery
from replicator.ports.components import make_event_log_lane
from replicator.ports.reader import ListsVersions
from replicator.settings import LaneSettings, Loaded

from . import adapters, build, checkpoints
from .event_logs import find_log

AsOfValue = datetime | Position
"""A time at the source, or a position: the records below it."""


@dataclass(frozen=True)
class AsOf:
    """A requested time or position, with its cut of the event log. The cut is None for a time if records are not in
    time order."""

    value: AsOfValue
    cut: LogCut | None

    @property
    def until(self) -> datetime | LogCut:
        """The end of the records to apply: the cut, or, without one, the time, which no applied record may exceed."""
        return cast(datetime, self.value) if self.cut is None else self.cut

    def __str__(self) -> str:
        if isinstance(self.value, datetime):
            return self.value.isoformat()
        return to_places(self.value)


def resolve_as_of(loaded: Loaded, lane: LaneSettings, value: AsOfValue) -> AsOf:
    """Resolve `value` for the records of the lane's table. A time without zone is in UTC.

    ConfigProblem without an event log. InvalidReadQuery for a position that lacks a partition with records, has an
    unknown one, or is beyond the end of the log. Also for a time, if the arrival of tombstones cannot be ordered by
    time.
    """
    source, log = find_log(loaded, lane.table)
    topics = checkpoints.list_topics(loaded, lane)
    if isinstance(value, datetime):
        value = value if value.tzinfo else value.replace(tzinfo=UTC)
    if not topics:
        if isinstance(value, datetime):
            return AsOf(value, None)
        raise InvalidReadQuery(
            f"no record of table {lane.table} was seen yet", next_step="Start the program, or ask for a time."
        )
    with closing(cast(Any, adapters.build_sink(loaded, log))) as kept:
        state: LaneState | None = kept.state(make_event_log_lane(loaded.settings.pipeline, source, log))
        border: LogCut | None = kept.find_cut(topics, value, state.position if state else Position())
    if isinstance(value, Position) and border is not None:
        _refuse_unknown_partition(value, border)
    if border is None and lane.tombstones == "delete":
        raise InvalidReadQuery(
            f"records of table {lane.table} did not come in the order of their times, and tombstones, which delete rows, "
            "tell none: which of them had come by then nobody can say",
            next_step="Ask for a place, TOPIC:PARTITION:OFFSET, as `history` and `audit` tell them.",
        )
    return AsOf(value, border)


@dataclass(frozen=True, slots=True)
class TargetVersion:
    """A version of a target with the effect of exactly the records below a cut. `is_ahead`: its columns are those
    of later records, or unknown."""

    number: int
    is_ahead: bool


def find_version(loaded: Loaded, lane: LaneSettings, reader: Any, moment: AsOf) -> TargetVersion | None:
    """The newest such version of the lane's target; None if there is none, or none is known. Older ones may have
    other rules."""
    border = moment.cut
    if border is None or not hasattr(reader, "read_version_positions"):
        return None
    mine = adapters.build_lane(loaded, lane)
    begun = FileRegister(build.get_register_folder(loaded)).load(lane.source).beginnings.get(mine.id, Position())
    number = next((version for version, at in reader.read_version_positions(mine) if border.is_at(at, begun)), None)
    if number is None:
        return None
    altered = find_altered_columns(border, mine, read_schema_versions(reader, mine))
    return TargetVersion(number, bool(altered) and _is_ahead(reader, lane.into, number, altered))


def _is_ahead(reader: ListsVersions, table: str, version: int, altered: Mapping[str, AlteredColumn]) -> bool:
    try:
        columns = reader.columns_at(table, version)
    except Fatal:
        return True  # The version is gone.
    there = dict(zip(columns.names, columns.types, strict=True))
    return any(one.is_done(there.get(name)) for name, one in altered.items())


def to_places(position: Position) -> str:
    """The last record of each partition below the position, in the form of `history`, `audit` and `--as-of`."""
    return Position({place: offset - 1 for place, offset in position.items()}).to_option()


def _refuse_unknown_partition(value: Position, cut: LogCut) -> None:
    known, last = set(cut.firsts), to_places(cut.below)
    strange, missing = sorted(set(value) - known), sorted(known - set(value))
    if strange:
        step = f"There are records of: {', '.join(map(str, sorted(known))) or 'none'}."
        raise InvalidReadQuery(f"the event log has no records of {strange[0]}", next_step=step)
    if missing:
        raise InvalidReadQuery(
            f"the table's records are in {len(known)} partitions, and of {missing[0]} no place is said",
            next_step=f"Say one of each, as in {to_places(Position({**cut.end, **value}))}.",
        )
    beyond = sorted(place for place, offset in value.items() if offset > cut.end[place])
    if beyond:
        raise InvalidReadQuery(f"the event log ends before that place of {beyond[0]}", next_step=f"Its last one is {last}.")
