"""Truncates event logs by their retention, behind all readers and the checkpoints of all lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, cast

from replicator.application.sink_features import require_feature
from replicator.domain.position import Position, TopicPartition
from replicator.ports.components import Components, make_event_log_lane
from replicator.ports.frames import Lane
from replicator.ports.register import RegisterEntry
from replicator.ports.sink import Sink

from .checkpoint import list_checkpoints
from .lanes import list_lanes
from .rebuild import can_rebuild, list_rebuilds

AskSink = Callable[[str, Callable[[Any], Any]], Any]
"""Runs a function with a sink, by its name, and returns the result."""


def list_logs_with_retention(parts: Components) -> list[str]:
    """The event logs with a retention."""
    return [name for name, rules in parts.sinks.items() if rules.retention is not None]


def truncate_logs(parts: Components, ask_sink: AskSink) -> dict[str, dict[TopicPartition, int]]:
    """Truncate every event log with a retention; returns the new start of its partitions, by log.

    Records older than the retention are removed, if nothing needs them:

    - They are below the position of every lane and rebuild that reads them.
    - They are below the oldest checkpoint of every lane of their table.

    `ask_sink`: runs a function in the sinks of a running pipeline.
    """
    done: dict[str, dict[TopicPartition, int]] = {}
    for log in list_logs_with_retention(parts):
        before = datetime.now(UTC) - cast(timedelta, parts.sinks[log].retention)
        for source, rules in parts.sources.items():
            for lane in rules.event_logs:
                if lane.sink == log and (below := find_unneeded(parts, source, log)):
                    found = ask_sink(log, partial(_truncate_log, lane, below, before))
                    done.setdefault(log, {}).update(found)
    return done


def _truncate_log(lane: Lane, below: Position, before: datetime, sink: Sink[Any]) -> Mapping[TopicPartition, int]:
    truncate = require_feature(sink.features.truncate_log, f"event log {lane.sink!r} cannot remove old records")
    return truncate(lane, below, before)


def find_unneeded(parts: Components, source: str, log: str) -> Position:
    """For each partition the offset below which nothing needs the records in the log, regardless of their age.

    Partitions of which all records are needed are left out: a table with a lane without a checkpoint, or a lane
    that has not started.
    """
    seen = parts.register.load(source)
    with ExitStack() as opened:
        states = _LanePositions(parts, opened)
        end = states.get_position(make_event_log_lane(parts.pipeline, source, log))
        found = {place: min([end[place], *_list_needed_offsets(parts, (source, log, seen), place, states)]) for place in end}
    return Position({place: offset for place, offset in found.items() if offset > 0})


def _list_needed_offsets(
    parts: Components, of_log: tuple[str, str, RegisterEntry], place: TopicPartition, states: _LanePositions
) -> Iterator[int]:
    """For each reader of a partition the first offset that it needs."""
    source, log, seen = of_log
    tables = [table for table, topics in seen.topics.items() if place.topic in topics]
    if not tables:
        yield 0  # The tables of the topic are unknown.
    for table in tables:
        rules = parts.sources[source].rules_for(table)
        if rules is None:
            continue
        if not any(can_rebuild(parts, lane) for lane in rules.lanes):
            yield 0  # Only the log has the table, for targets that may be built later.
        for lane in rules.lanes:
            yield states.get_position(lane).get(place, 0)
            if can_rebuild(parts, lane):
                digest = parts.digest(lane)
                kept = [one for one in list_checkpoints(parts, lane) if one.rules == digest]
                yield min((one.position.get(place, 0) for one in kept), default=0)
        yield from (states.get_position(lane).get(place, 0) for lane in list_rebuilds(parts, table, source))
    yield from _list_layer_offsets(parts, log, place, states)


def _list_layer_offsets(parts: Components, log: str, place: TopicPartition, states: _LanePositions) -> Iterator[int]:
    """Offsets that sources of this config need, if they read the log."""
    for name, rules in parts.sources.items():
        if rules.lake and rules.lake == parts.sinks[log].log_folder:
            tables = parts.register.load(name).topics
            mine = [lane for lane in states.lanes if lane.source == name and place.topic in tables.get(lane.table, ())]
            yield from (states.get_position(lane).get(place, 0) for lane in mine)
            if not mine:
                yield 0


class _LanePositions:
    """The positions of lanes, from their sinks. An unavailable sink raises, so that nothing is removed by a guess."""

    def __init__(self, parts: Components, opened: ExitStack) -> None:
        self._parts, self._opened = parts, opened
        self._sinks: dict[str, Any] = {}
        self._known: dict[str, Position] = {}
        self.lanes: Sequence[Lane] = list_lanes(parts)

    def get_position(self, lane: Lane) -> Position:
        """The position of a lane; empty if it has committed nothing."""
        if lane.id not in self._known:
            if lane.sink not in self._sinks:
                self._sinks[lane.sink] = self._opened.enter_context(closing(self._parts.open_sink(lane.sink)))
            state = self._sinks[lane.sink].state(lane)
            self._known[lane.id] = state.position if state else Position()
        return self._known[lane.id]


def make_asker(parts: Components) -> AskSink:
    """For sinks that no process has open."""

    def ask(log: str, question: Callable[[Any], Any]) -> Mapping[TopicPartition, int]:
        with closing(parts.open_sink(log)) as sink:
            return cast(Mapping[TopicPartition, int], question(sink))

    return ask
