"""The retention of event logs, put together: what nobody is yet to read, and a snapshot of every lane holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

from replicator.application.stream.file_register import FileRegister
from replicator.application.table_rules import make_event_log_lane
from replicator.domain.position import Position, TopicPartition
from replicator.ports.frames import Lane
from replicator.ports.register import RegisterEntry
from replicator.settings import Loaded
from replicator.settings.fields import to_timedelta
from replicator.settings.sinks import EventLogSettings
from replicator.settings.tables import NO_RETENTION

from . import adapters, build, checkpoints
from .change_history import get_log_folder
from .erase import list_rebuilds
from .rule_digests import digest_rules
from .stored_lanes import list_lanes

AskSink = Callable[[str, Callable[[Any], Any]], Any]
"""Has a question answered by a sink, by its name."""


def list_logs_with_retention(loaded: Loaded) -> list[str]:
    """The event logs of which records are removed."""
    return [name for name in loaded.settings.sinks if _get_retention(loaded, name) is not None]


def truncate_logs(loaded: Loaded, ask_sink: AskSink) -> dict[str, dict[TopicPartition, int]]:
    """Remove from every event log that has a retention what is older than it, below the position of every lane that reads it
    and of every replay, and below the oldest snapshot that is kept of every lane of its table; by log where its partitions
    begin now. `ask_sink`: of the sinks of a running program."""
    done: dict[str, dict[TopicPartition, int]] = {}
    for log in list_logs_with_retention(loaded):
        before = datetime.now(UTC) - cast(Any, _get_retention(loaded, log))
        for source in loaded.settings.sources:
            if log in loaded.settings.list_event_logs(source):
                lane, below = make_event_log_lane(loaded.settings.pipeline, source, log), find_unneeded(loaded, source, log)
                if below:
                    found = ask_sink(log, partial(_truncate_log, lane, below, before))
                    done.setdefault(log, {}).update(found)
    return done


def _truncate_log(lane: Lane, below: Position, before: datetime, sink: Any) -> Mapping[TopicPartition, int]:
    return cast(Mapping[TopicPartition, int], sink.truncate_log(lane, below, before))


def find_unneeded(loaded: Loaded, source: str, log: str) -> Position:
    """Below what nobody needs records of the source in an event log any more, whatever their age. Partitions are left out of
    which somebody needs all: a table of which no lane has a snapshot, a lane that has begun nothing."""
    seen = FileRegister(build.get_register_folder(loaded)).load(source)
    with ExitStack() as opened:
        states = _LanePositions(loaded, opened)
        end = states.get_position(make_event_log_lane(loaded.settings.pipeline, source, log))
        found = {
            place: min([end[place], *_list_needed_offsets(loaded, (source, log, seen), place, states)]) for place in end
        }
    return Position({place: offset for place, offset in found.items() if offset > 0})


def _list_needed_offsets(
    loaded: Loaded, of_log: tuple[str, str, RegisterEntry], place: TopicPartition, states: _LanePositions
) -> Iterator[int]:
    """From where on each reader of a partition needs its records."""
    source, log, seen = of_log
    tables = [table for table, topics in seen.topics.items() if place.topic in topics]
    if not tables:
        yield 0  # What is in it is not known.
    for table in tables:
        if loaded.settings.find_table(table, source) is None:
            continue
        lanes = loaded.settings.resolve_lanes(table, source)
        if not any(settings.is_mirror for settings in lanes):
            yield 0  # The log alone has it, for targets that are to be made of it.
        for settings in lanes:
            yield states.get_position(adapters.build_lane(loaded, settings)).get(place, 0)
            if not settings.is_mirror:
                continue
            rules = digest_rules(loaded, settings)
            kept = [one for one in checkpoints.list_checkpoints(loaded, settings) if one.rules == rules]
            yield min((one.position.get(place, 0) for one in kept), default=0)
        yield from (states.get_position(lane).get(place, 0) for lane in list_rebuilds(loaded, table, source))
    yield from _list_layer_offsets(loaded, log, place, states)


def _list_layer_offsets(loaded: Loaded, log: str, place: TopicPartition, states: _LanePositions) -> Iterator[int]:
    """Of sources of this config that read the log."""
    folder = get_log_folder(loaded, log)
    for name, settings in loaded.settings.sources.items():
        if settings.transport == "delta" and str(getattr(settings, "path", "")) == folder:
            tables = FileRegister(build.get_register_folder(loaded)).load(name).topics
            mine = [lane for lane in states.lanes if lane.source == name and place.topic in tables.get(lane.table, ())]
            yield from (states.get_position(lane).get(place, 0) for lane in mine)
            if not mine:
                yield 0


class _LanePositions:
    """Where lanes stand, as their sinks say. A sink that is away ends the whole: nothing is removed on a guess."""

    def __init__(self, loaded: Loaded, opened: ExitStack) -> None:
        self._loaded, self._opened = loaded, opened
        self._sinks: dict[str, Any] = {}
        self._known: dict[str, Position] = {}
        self.lanes: Sequence[Lane] = list_lanes(loaded)

    def get_position(self, lane: Lane) -> Position:
        """The position of a lane; none where it has committed nothing."""
        if lane.id not in self._known:
            if lane.sink not in self._sinks:
                self._sinks[lane.sink] = self._opened.enter_context(
                    closing(cast(Any, adapters.build_sink(self._loaded, lane.sink)))
                )
            state = self._sinks[lane.sink].state(lane)
            self._known[lane.id] = state.position if state else Position()
        return self._known[lane.id]


def _get_retention(loaded: Loaded, log: str) -> Any:
    said = loaded.settings.sinks[log]
    kept = said.retention if isinstance(said, EventLogSettings) else None
    return None if kept is None or kept == NO_RETENTION else to_timedelta(kept)


def make_asker(loaded: Loaded) -> AskSink:
    """Of sinks that nobody has open."""

    def ask(log: str, question: Callable[[Any], Any]) -> Mapping[TopicPartition, int]:
        with closing(cast(Any, adapters.build_sink(loaded, log))) as sink:
            return cast(Mapping[TopicPartition, int], question(sink))

    return ask
