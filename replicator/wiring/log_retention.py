"""Truncates event logs by their retention, behind all readers and the checkpoints of all lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

from replicator.application.operations.lanes import list_lanes
from replicator.application.stream.file_register import FileRegister
from replicator.domain.position import Position, TopicPartition
from replicator.ports.components import make_event_log_lane
from replicator.ports.frames import Lane
from replicator.ports.register import RegisterEntry
from replicator.settings import Loaded
from replicator.settings.fields import to_timedelta
from replicator.settings.sinks import EventLogSettings
from replicator.settings.tables import NO_RETENTION

from . import adapters, build, checkpoints
from .components import ConfiguredComponents
from .erase import list_rebuilds
from .event_logs import get_log_folder
from .rule_digests import digest_rules

AskSink = Callable[[str, Callable[[Any], Any]], Any]
"""Runs a function with a sink, by its name, and returns the result."""


def list_logs_with_retention(loaded: Loaded) -> list[str]:
    """The event logs with a retention."""
    return [name for name in loaded.settings.sinks if _get_retention(loaded, name) is not None]


def truncate_logs(loaded: Loaded, ask_sink: AskSink) -> dict[str, dict[TopicPartition, int]]:
    """Truncate every event log with a retention; returns the new start of its partitions, by log.

    Records older than the retention are removed, if nothing needs them:

    - They are below the position of every lane and rebuild that reads them.
    - They are below the oldest checkpoint of every lane of their table.

    `ask_sink`: runs a function in the sinks of a running pipeline.
    """
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
    """For each partition the offset below which nothing needs the records in the log, whatever their age.

    Partitions of which all records are needed are left out: a table with a lane without a checkpoint, or a lane
    that has not started.
    """
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
    """For each reader of a partition the first offset that it needs."""
    source, log, seen = of_log
    tables = [table for table, topics in seen.topics.items() if place.topic in topics]
    if not tables:
        yield 0  # The tables of the topic are unknown.
    for table in tables:
        if loaded.settings.find_table(table, source) is None:
            continue
        lanes = loaded.settings.resolve_lanes(table, source)
        if not any(settings.is_mirror for settings in lanes):
            yield 0  # Only the log has the table, for targets that may be built later.
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
    """Of sources in this config that read the log."""
    folder = get_log_folder(loaded, log)
    for name, settings in loaded.settings.sources.items():
        if settings.transport == "delta" and str(getattr(settings, "path", "")) == folder:
            tables = FileRegister(build.get_register_folder(loaded)).load(name).topics
            mine = [lane for lane in states.lanes if lane.source == name and place.topic in tables.get(lane.table, ())]
            yield from (states.get_position(lane).get(place, 0) for lane in mine)
            if not mine:
                yield 0


class _LanePositions:
    """The positions of lanes, from their sinks. An unavailable sink raises, so that nothing is removed by a guess."""

    def __init__(self, loaded: Loaded, opened: ExitStack) -> None:
        self._loaded, self._opened = loaded, opened
        self._sinks: dict[str, Any] = {}
        self._known: dict[str, Position] = {}
        self.lanes: Sequence[Lane] = list_lanes(ConfiguredComponents(loaded))

    def get_position(self, lane: Lane) -> Position:
        """The position of a lane; empty if it has committed nothing."""
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
    """For sinks that no process has open."""

    def ask(log: str, question: Callable[[Any], Any]) -> Mapping[TopicPartition, int]:
        with closing(cast(Any, adapters.build_sink(loaded, log))) as sink:
            return cast(Mapping[TopicPartition, int], question(sink))

    return ask
