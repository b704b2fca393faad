"""Truncates event logs by their retention, behind all readers and the checkpoints of all lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, cast

from replicator.application.lane_registry import list_lanes
from replicator.application.sink_features import require_feature
from replicator.domain.position import Position, TopicPartition
from replicator.ports.components import Components, make_event_log_lane
from replicator.ports.frames import Lane
from replicator.ports.sink import Sink
from replicator.ports.stores import RegisterEntry

from .checkpoint import list_checkpoints
from .rebuild import can_rebuild, list_rebuilds

AskSink = Callable[[str, Callable[[Any], Any]], Any]
"""Runs a function with a sink, by its name, and returns the result."""


def list_logs_with_retention(components: Components) -> list[str]:
    """The event logs with a retention."""
    return [name for name, rules in components.sinks.items() if rules.retention is not None]


def truncate_logs(components: Components, ask_sink: AskSink) -> dict[str, dict[TopicPartition, int]]:
    """Truncate every event log with a retention; returns the new start of its partitions, by log.

    Records older than the retention are removed, if nothing needs them:

    - They are below the position of every lane and rebuild that reads them.
    - They are below the oldest checkpoint of every lane of their table.

    `ask_sink`: runs a function in the sinks of a running pipeline.
    """
    done: dict[str, dict[TopicPartition, int]] = {}
    for log in list_logs_with_retention(components):
        before = datetime.now(UTC) - cast(timedelta, components.sinks[log].retention)
        for source, rules in components.sources.items():
            for lane in rules.event_logs:
                if lane.sink == log and (below := find_unneeded(components, source, log)):
                    removed = ask_sink(log, partial(_truncate_log, lane, below, before))
                    done.setdefault(log, {}).update(removed)
    return done


def _truncate_log(lane: Lane, below: Position, before: datetime, sink: Sink[Any]) -> Mapping[TopicPartition, int]:
    truncate = require_feature(sink.features.truncate_log, f"event log {lane.sink!r} cannot remove old records")
    return truncate(lane, below, before)


def find_unneeded(components: Components, source: str, log: str) -> Position:
    """For each partition the offset below which nothing needs the records in the log, regardless of their age.

    Partitions of which all records are needed are left out: a table with a lane without a checkpoint, or a lane
    that has not started.
    """
    entry = components.register.load(source)
    with ExitStack() as stack:
        states = _LanePositions(components, stack)
        end = states.get_position(make_event_log_lane(components.pipeline, source, log))
        offsets = {p: min([end[p], *_list_needed_offsets(components, (source, log, entry), p, states)]) for p in end}
    return Position({partition: offset for partition, offset in offsets.items() if offset > 0})


def _list_needed_offsets(
    components: Components, of_log: tuple[str, str, RegisterEntry], partition: TopicPartition, states: _LanePositions
) -> Iterator[int]:
    """For each reader of a partition the first offset that it needs."""
    source, log, entry = of_log
    tables = [table for table, topics in entry.topics.items() if partition.topic in topics]
    if not tables:
        yield 0  # The tables of the topic are unknown.
    for table in tables:
        rules = components.sources[source].rules_for(table)
        if rules is None:
            continue
        if not any(can_rebuild(components, lane) for lane in rules.lanes):
            yield 0  # Only the log has the table, for targets that may be built later.
        for lane in rules.lanes:
            yield states.get_position(lane).get(partition, 0)
            if can_rebuild(components, lane):
                digest = components.digest(lane)
                usable = [one for one in list_checkpoints(components, lane) if one.rules == digest]
                yield min((one.position.get(partition, 0) for one in usable), default=0)
        yield from (states.get_position(lane).get(partition, 0) for lane in list_rebuilds(components, table, source))
    for name, reader in components.sources.items():
        if reader.lake and reader.lake == components.sinks[log].log_folder:  # This source reads the log.
            topics = components.register.load(name).topics
            lanes = [lane for lane in states.lanes if lane.source == name and partition.topic in topics.get(lane.table, ())]
            yield from (states.get_position(lane).get(partition, 0) for lane in lanes)
            if not lanes:
                yield 0


class _LanePositions:
    """The positions of lanes, from their sinks. An unavailable sink raises, so that nothing is removed by a guess."""

    def __init__(self, components: Components, stack: ExitStack) -> None:
        self._components, self._opened = components, stack
        self._sinks: dict[str, Any] = {}
        self._known: dict[str, Position] = {}
        self.lanes: Sequence[Lane] = list_lanes(components)

    def get_position(self, lane: Lane) -> Position:
        """The position of a lane; empty if it has committed nothing."""
        if lane.id not in self._known:
            if lane.sink not in self._sinks:
                self._sinks[lane.sink] = self._opened.enter_context(closing(self._components.open_sink(lane.sink)))
            state = self._sinks[lane.sink].state(lane)
            self._known[lane.id] = state.position if state else Position()
        return self._known[lane.id]


def make_asker(components: Components) -> AskSink:
    """For sinks that no process has open."""

    def ask(log: str, question: Callable[[Any], Any]) -> Mapping[TopicPartition, int]:
        with closing(components.open_sink(log)) as sink:
            return cast(Mapping[TopicPartition, int], question(sink))

    return ask
