"""Builds the scheduler of checkpoints for a running pipeline, and its reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, cast

import structlog

from replicator.application.delivery.worker import Worker
from replicator.application.lane_registry import list_lanes
from replicator.application.lane_runs import Clock, LaneRuns, monotonic
from replicator.application.operations import checkpoint
from replicator.application.options import BackgroundThread, Backoff
from replicator.application.problem import Problem, to_problem
from replicator.application.sink_features import require_feature
from replicator.domain.errors import ReplicatorError
from replicator.domain.event_log import Checkpoint, CheckpointSchedule, find_newest_usable
from replicator.domain.position import Position, TopicPartition
from replicator.ports.components import Components, make_event_log_lane
from replicator.ports.frames import Lane, Stop
from replicator.ports.sink import Sink
from replicator.ports.stores import RegisterEntry

from .checkpoint import list_checkpoints
from .rebuild import can_rebuild, list_rebuilds

# Takes checkpoints of lanes while the pipeline runs, on a separate thread, so that no lane waits.

log = structlog.get_logger(__name__)

LOOK_SECONDS = 1.0
"""Seconds between two checks of the lanes' positions."""
SHORTEST_DELAY = 60.0
"""Seconds to wait after an attempt that made no new checkpoint, because the event log is behind the lane."""
LONGEST_DELAY = 600.0
"""Maximum seconds between two attempts."""

TakeCheckpoint = Callable[[], Checkpoint]
TruncateLogs = Callable[[], None]
MakeReport = Callable[[Mapping[str, Problem]], list[dict[str, Any]]]
"""The report of the last checkpoints, from the problems of the last failed attempts."""


@dataclass
class ScheduledCheckpoint:
    """A lane with checkpoints. `take` makes one, `last` returns the newest one under the current rules."""

    lane: str
    schedule: CheckpointSchedule
    take: TakeCheckpoint
    last: Callable[[], Checkpoint | None]
    backoff: Backoff = field(default_factory=lambda: Backoff(first=1.0, longest=LONGEST_DELAY))
    checkpoint: Checkpoint | None = None
    has_looked: bool = False
    next_at: float = 0.0
    problem: Problem | None = None


class CheckpointScheduler(BackgroundThread):
    """Takes the checkpoints that are due, and truncates the event logs that they cover. A failure is logged,
    retried later, and stops nothing else. An incomplete checkpoint does not count.

    - `list_lanes`: the lanes with checkpoints that exist now. `positions`: the positions of lanes by id.
    - `truncate_logs`: called at the start and after new checkpoints. `make_report`: see `report`.
    """

    def __init__(
        self,
        list_lanes: Callable[[], Sequence[ScheduledCheckpoint]],
        positions: Callable[[], Mapping[str, Position]],
        truncate_logs: TruncateLogs,
        make_report: MakeReport = lambda _: [],
        *,
        wanted: bool = True,
        clock: Clock = monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        super().__init__("checkpoints", self._run, wanted=wanted)
        self._list_lanes, self._positions = list_lanes, positions
        self._truncate, self._make_report = truncate_logs, make_report
        self._clock, self._now = clock, now
        self._scheduled: dict[str, ScheduledCheckpoint] = {}
        self._truncate_problem: Problem | None = None

    def take_due(self, stop: Stop) -> Problem | None:
        """Take every due checkpoint once, now, until `stop`; return the first problem. Not for use while the thread
        runs."""
        if not self._wanted or stop.is_set():
            return None
        self.take_due_until(stop)
        if not stop.is_set():
            self._truncate_logs()
        problems = [one.problem for one in self._scheduled.values()]
        return next((problem for problem in (*problems, self._truncate_problem) if problem is not None), None)

    def report(self) -> list[dict[str, Any]]:
        """The last checkpoint of each lane as plain values. Safe from any thread."""
        return self._make_report(self.list_problems())

    def list_problems(self) -> Mapping[str, Problem]:
        """Why the last attempt failed, by lane. The empty lane name stands for log truncation. Safe from any thread."""
        problems = {lane: one.problem for lane, one in dict(self._scheduled).items() if one.problem is not None}
        return {**problems, **({} if self._truncate_problem is None else {"": self._truncate_problem})}

    def take_due_until(self, stop: Stop) -> None:
        """Take the due checkpoints, until `stop`."""
        for one in self._list_lanes():
            self._scheduled.setdefault(one.lane, one)
        positions, has_new = self._positions(), False
        for one in self._scheduled.values():
            if stop.is_set() or self._clock() < one.next_at:
                continue
            if not one.has_looked:
                one.checkpoint, one.has_looked = one.last(), True
            if one.schedule.is_due(one.checkpoint, positions.get(one.lane, Position()), self._now()):
                has_new = self._take_checkpoint(one) or has_new
        if has_new:
            self._truncate_logs()

    def _run(self) -> None:
        self._truncate_logs()
        while not self._ended.wait(LOOK_SECONDS):
            try:
                self.take_due_until(self._ended)
            except Exception as error:
                log.error("snapshots are not taken", sentence=to_problem(error).sentence)
                self._ended.wait(LONGEST_DELAY)

    def _take_checkpoint(self, one: ScheduledCheckpoint) -> bool:
        before = one.checkpoint
        try:
            one.checkpoint = one.take()
        except Exception as error:
            one.problem = to_problem(error)
            one.next_at = self._clock() + one.backoff.next_delay()
            log.warning("snapshot was not taken", lane=one.lane, sentence=one.problem.sentence)
            return False
        one.problem = None
        one.backoff.reset()
        if before is not None and one.checkpoint.number == before.number:
            one.next_at = self._clock() + SHORTEST_DELAY
            return False
        log.info(
            "snapshot taken",
            lane=one.lane,
            number=one.checkpoint.number,
            rows=one.checkpoint.rows,
            bytes=one.checkpoint.bytes,
        )
        return True

    def _truncate_logs(self) -> None:
        try:
            self._truncate()
            self._truncate_problem = None
        except Exception as error:
            self._truncate_problem = to_problem(error)
            log.warning("event log was not shortened", sentence=self._truncate_problem.sentence)


# Truncates event logs by their retention, behind all readers and the checkpoints of all lanes.

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
                    removed = ask_sink(log, partial(_truncate_log, lane, below, before))
                    done.setdefault(log, {}).update(removed)
    return done


def _truncate_log(lane: Lane, below: Position, before: datetime, sink: Sink[Any]) -> Mapping[TopicPartition, int]:
    truncate = require_feature(sink.features.truncate_log, f"event log {lane.sink!r} cannot remove old records")
    return truncate(lane, below, before)


def find_unneeded(parts: Components, source: str, log: str) -> Position:
    """For each partition the offset below which nothing needs the records in the log, regardless of their age.

    Partitions of which all records are needed are left out: a table with a lane without a checkpoint, or a lane
    that has not started.
    """
    entry = parts.register.load(source)
    with ExitStack() as stack:
        states = _LanePositions(parts, stack)
        end = states.get_position(make_event_log_lane(parts.pipeline, source, log))
        offsets = {p: min([end[p], *_list_needed_offsets(parts, (source, log, entry), p, states)]) for p in end}
    return Position({partition: offset for partition, offset in offsets.items() if offset > 0})


def _list_needed_offsets(
    parts: Components, of_log: tuple[str, str, RegisterEntry], partition: TopicPartition, states: _LanePositions
) -> Iterator[int]:
    """For each reader of a partition the first offset that it needs."""
    source, log, entry = of_log
    tables = [table for table, topics in entry.topics.items() if partition.topic in topics]
    if not tables:
        yield 0  # The tables of the topic are unknown.
    for table in tables:
        rules = parts.sources[source].rules_for(table)
        if rules is None:
            continue
        if not any(can_rebuild(parts, lane) for lane in rules.lanes):
            yield 0  # Only the log has the table, for targets that may be built later.
        for lane in rules.lanes:
            yield states.get_position(lane).get(partition, 0)
            if can_rebuild(parts, lane):
                digest = parts.digest(lane)
                usable = [one for one in list_checkpoints(parts, lane) if one.rules == digest]
                yield min((one.position.get(partition, 0) for one in usable), default=0)
        yield from (states.get_position(lane).get(partition, 0) for lane in list_rebuilds(parts, table, source))
    yield from _list_layer_offsets(parts, log, partition, states)


def _list_layer_offsets(parts: Components, log: str, partition: TopicPartition, states: _LanePositions) -> Iterator[int]:
    """Offsets that sources of this config need, if they read the log."""
    for name, rules in parts.sources.items():
        if rules.lake and rules.lake == parts.sinks[log].log_folder:
            tables = parts.register.load(name).topics
            lanes = [lane for lane in states.lanes if lane.source == name and partition.topic in tables.get(lane.table, ())]
            yield from (states.get_position(lane).get(partition, 0) for lane in lanes)
            if not lanes:
                yield 0


class _LanePositions:
    """The positions of lanes, from their sinks. An unavailable sink raises, so that nothing is removed by a guess."""

    def __init__(self, parts: Components, stack: ExitStack) -> None:
        self._parts, self._opened = parts, stack
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


NO_PROBLEMS: Mapping[str, Problem] = {}
ANSWER_SECONDS = 600.0
"""Maximum seconds for the truncation of an event log. Its lane waits meanwhile."""


def build_checkpoint_scheduler(
    parts: Components, lanes: LaneRuns, workers: Mapping[str, Worker[Any]]
) -> CheckpointScheduler:
    """The scheduler of the configured checkpoints."""

    def ask(log: str, question: Callable[[Any], Any]) -> Any:
        if workers[log].join(0):  # The pipeline has ended, so the sink is free.
            return make_asker(parts)(log, question)
        return workers[log].ask(question).result(ANSWER_SECONDS)

    def describe_checkpoints(problems: Mapping[str, Problem]) -> list[dict[str, Any]]:
        return report_checkpoints(parts, {run.lane.id: run.lane.table for run in lanes.list_runs()}, problems)

    wanted = any(rules.checkpoints is not None for rules in parts.sinks.values())
    find, positions = partial(_list_scheduled, parts, lanes), partial(_list_positions, lanes)
    return CheckpointScheduler(find, positions, partial(_truncate_logs, parts, ask), describe_checkpoints, wanted=wanted)


def report_checkpoints(
    parts: Components, lanes: Mapping[str, str], problems: Mapping[str, Problem] = NO_PROBLEMS
) -> list[dict[str, Any]]:
    """The last checkpoint of each of these lanes (id to source table) that has or should have checkpoints.

    Each dict has the lane and the fields of `Checkpoint.to_json`. `usable`: under the current rules and topics.
    `kept`: the number of checkpoints. `error`: of the last attempt.
    """
    report, identities = [], dict[str, Mapping[str, str] | None]()
    for lane in _list_mirror_lanes(parts, lanes):
        store = checkpoint.find_store(parts, lane)
        judged = [] if store is None else [(one, store.describe_damage(one)) for one in store.list_all()]
        checkpoints, damaged = [one for one, wrong in judged if not wrong], [wrong for _, wrong in judged if wrong]
        is_scheduled = _get_schedule(parts, lane) is not None
        if checkpoints or is_scheduled or damaged:
            last = checkpoints[-1] if checkpoints else None
            problem = problems.get(lane.id)
            error = problem.sentence if problem else next(iter(damaged), None)
            entry = last.to_json() if last else {"lane": lane.id, "number": None}
            usable = last is not None and _is_usable(parts, lane, last, identities)
            report.append({**entry, "usable": usable, "kept": len(checkpoints), "error": error})
    if "" in problems:
        report.append({"lane": "", "number": None, "usable": False, "kept": 0, "error": problems[""].sentence})
    return report


def _is_usable(parts: Components, lane: Lane, last: Checkpoint, identities: dict[str, Mapping[str, str] | None]) -> bool:
    """True if the checkpoint has the current rules and topics.

    `identities` caches the topic identities of each log. If a log cannot be read, they are unknown, and no
    checkpoint is usable.
    """
    if last.rules != parts.digest(lane):
        return False
    log = parts.find_log(lane.table).id
    if log not in identities:
        try:
            identities[log] = dict(checkpoint.get_topic_identity(parts, lane))
        except ReplicatorError:
            identities[log] = None
    identity = identities[log]
    return identity is not None and last.has_same_topics(identity)


def _list_scheduled(parts: Components, lanes: LaneRuns) -> list[ScheduledCheckpoint]:
    tables = {run.lane.id: run.lane.table for run in lanes.list_runs() if run.lane.table}
    scheduled = []
    for lane in _list_mirror_lanes(parts, tables):
        schedule = _get_schedule(parts, lane)
        if schedule is not None:
            take, find = partial(checkpoint.take_checkpoint, parts, lane), partial(_find_last, parts, lane)
            scheduled.append(ScheduledCheckpoint(lane.id, schedule, take, find))
    return scheduled


def _find_last(parts: Components, lane: Lane) -> Any:
    return find_newest_usable(checkpoint.list_checkpoints(parts, lane), parts.digest(lane))


def _get_schedule(parts: Components, lane: Lane) -> CheckpointSchedule | None:
    if checkpoint.find_store(parts, lane) is None:
        return None
    return parts.sinks[parts.find_log(lane.table).sink].checkpoints


def _list_mirror_lanes(parts: Components, lanes: Mapping[str, str]) -> Iterator[Lane]:
    for name, table in lanes.items():
        for lane in parts.resolve_lanes(table) if table else ():
            if lane.id == name and can_rebuild(parts, lane) and not lane.refused:
                yield lane


def _list_positions(lanes: LaneRuns) -> dict[str, Position]:
    with lanes.get_lock():
        return {run.lane.id: run.applied for run in lanes.list_runs()}


def _truncate_logs(parts: Components, ask: AskSink) -> None:
    if list_logs_with_retention(parts):
        truncate_logs(parts, ask)
