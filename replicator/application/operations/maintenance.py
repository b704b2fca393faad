"""Maintenance: compacts and vacuums targets, and truncates event logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, cast

from replicator.application.lane_registry import list_lanes, make_refused_id
from replicator.application.sink_features import require_feature
from replicator.domain.errors import ConfigProblem, ReplicatorError, suggest_name
from replicator.domain.events import EVENT_STORE
from replicator.domain.position import Position, TopicPartition
from replicator.domain.table import get_unqualified_name
from replicator.ports.components import Components, make_event_log_lane
from replicator.ports.frames import Lane
from replicator.ports.sink import CompactionResult, Sink, VacuumResult
from replicator.ports.stores import RegisterEntry

from .checkpoint import list_checkpoints
from .rebuild import can_rebuild, list_rebuilds, lock_instance

# Compacts and vacuums targets by name, in their sinks.

DEAD_LETTERS = "dead_letters"
SHORTEST_RETENTION = timedelta(hours=1)
"""A batch in progress has files that no version refers to yet."""


@dataclass(frozen=True, slots=True)
class MaintenanceResult:
    """The outcome for one target: the `result`, or why it was `skipped`, or the `error`."""

    target: str
    result: CompactionResult | VacuumResult | None = None
    skipped: str = ""
    error: ReplicatorError | None = None


def compact_targets(components: Components, names: Sequence[str]) -> Iterator[MaintenanceResult]:
    """Compact the named targets (default: all) one after the other. A failure does not stop the others.

    ConfigProblem, before anything is done, for an unknown name.
    """
    return _run_each(components, names, "compact")


def vacuum_targets(
    components: Components, names: Sequence[str], retain: timedelta | None, *, dry_run: bool
) -> Iterator[MaintenanceResult]:
    """Vacuum the targets. Fenced if another process may be writing files that would be deleted."""
    with ExitStack() as stack:
        if retain is not None and retain < SHORTEST_RETENTION and not dry_run:
            danger = "a vacuum that retains less than an hour would delete files that it is writing"
            stack.enter_context(lock_instance(components, danger, "Retain at least 1 hour, or stop the daemon."))
        yield from _run_each(components, names, "vacuum", retain, dry_run=dry_run)


def _run_each(
    components: Components, names: Sequence[str], verb: str, *options: object, **more: object
) -> Iterator[MaintenanceResult]:
    """Run the feature `verb` of the sinks and of the dead-letter store."""
    targets = _list_targets(components)
    for name in names:
        if not any(_is_named(label, lane, [name]) for label, lane in targets.items()):
            hint = suggest_name(name, targets)
            raise ConfigProblem(
                f"there is no target {name!r}",
                next_step=f"{hint[:1].upper()}{hint[1:]} The targets are: {', '.join(targets)}.".strip(),
            )
    selection = {label: lane for label, lane in targets.items() if not names or _is_named(label, lane, names)}
    with ExitStack() as stack:
        owners: dict[str, Any] = {}
        for label, lane in selection.items():
            name = lane.sink if lane is not None else DEAD_LETTERS
            if name not in owners:
                adapter: Any = components.open_sink(name, "rewrite") if lane is not None else components.open_dead_letters()
                stack.callback(adapter.close)
                owners[name] = adapter.features
            act = getattr(owners[name], verb)
            if act is None:
                if label in names or lane is not None:
                    yield MaintenanceResult(label, skipped="its server does this itself")
                continue
            try:
                result = act(*([] if lane is None else [lane]), *options, **more)
                outcome = MaintenanceResult(label, result, skipped="" if result is not None else "there is no table yet")
            except ReplicatorError as error:
                outcome = MaintenanceResult(label, error=error)
            yield outcome


def _list_targets(components: Components) -> dict[str, Lane | None]:
    """The targets by name, each once, because several lanes may share an event log. None stands for the dead letters."""
    targets: dict[str, Lane | None] = {}
    for lane in list_lanes(components):
        if lane.refused or lane.id == make_refused_id(lane) or lane.sink == EVENT_STORE:
            continue
        targets.setdefault(lane.id if lane.table else lane.sink, lane)
    return {**targets, DEAD_LETTERS: None}


def _is_named(label: str, lane: Lane | None, names: Sequence[str]) -> bool:
    return bool(
        {label, *((lane.table, get_unqualified_name(lane.table)) if lane is not None and lane.table else ())} & {*names}
    )


# Truncates event logs by their retention, behind all readers and the checkpoints of all lanes.

CallSink = Callable[[str, Callable[[Any], Any]], Any]
"""Runs a function with a sink, by its name, and returns the result."""


def list_logs_with_retention(components: Components) -> list[str]:
    """The event logs with a retention."""
    return [name for name, rules in components.sinks.items() if rules.retention is not None]


def truncate_logs(components: Components, call_sink: CallSink) -> dict[str, dict[TopicPartition, int]]:
    """Truncate every event log with a retention; returns the new start of its partitions, by log.

    Records older than the retention are removed, if nothing needs them:

    - They are below the position of every lane and rebuild that reads them.
    - They are below the oldest checkpoint of every lane of their table.

    `call_sink`: runs a function in the sinks of a running pipeline.
    """
    done: dict[str, dict[TopicPartition, int]] = {}
    for log in list_logs_with_retention(components):
        before = datetime.now(UTC) - cast(timedelta, components.sinks[log].retention)
        for source, rules in components.sources.items():
            for lane in rules.event_logs:
                if lane.sink == log and (below := find_unneeded(components, source, log)):
                    removed = call_sink(log, partial(_truncate_log, lane, below, before))
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


def make_sink_caller(components: Components) -> CallSink:
    """For sinks that no process has open."""

    def call_sink(log: str, call: Callable[[Any], Any]) -> Mapping[TopicPartition, int]:
        with closing(components.open_sink(log)) as sink:
            return cast(Mapping[TopicPartition, int], call(sink))

    return call_sink
