"""Builds the scheduler of checkpoints for a running pipeline, and its reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import structlog

from replicator.application.delivery.worker import Worker
from replicator.application.lane_runs import Clock, LaneRuns, monotonic
from replicator.application.operations import checkpoint
from replicator.application.options import BackgroundThread, Backoff
from replicator.application.problem import Problem, to_problem
from replicator.domain.errors import ReplicatorError
from replicator.domain.event_log import Checkpoint, CheckpointSchedule, find_newest_usable
from replicator.domain.position import Position
from replicator.ports.components import Components
from replicator.ports.frames import Lane, Stop

from .maintenance import list_logs_with_retention, make_sink_caller, truncate_logs
from .rebuild import can_rebuild

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
                log.error("checkpoints are not taken", sentence=to_problem(error).sentence)
                self._ended.wait(LONGEST_DELAY)

    def _take_checkpoint(self, one: ScheduledCheckpoint) -> bool:
        before = one.checkpoint
        try:
            one.checkpoint = one.take()
        except Exception as error:
            one.problem = to_problem(error)
            one.next_at = self._clock() + one.backoff.next_delay()
            log.warning("checkpoint was not taken", lane=one.lane, sentence=one.problem.sentence)
            return False
        one.problem = None
        one.backoff.reset()
        if before is not None and one.checkpoint.number == before.number:
            one.next_at = self._clock() + SHORTEST_DELAY
            return False
        log.info(
            "checkpoint taken",
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
            log.warning("event log was not truncated", sentence=self._truncate_problem.sentence)


NO_PROBLEMS: Mapping[str, Problem] = {}
ANSWER_SECONDS = 600.0
"""Maximum seconds for the truncation of an event log. Its lane waits meanwhile."""


def build_checkpoint_scheduler(
    components: Components, lanes: LaneRuns, workers: Mapping[str, Worker[Any]]
) -> CheckpointScheduler:
    """The scheduler of the configured checkpoints."""

    def call_sink(log: str, call: Callable[[Any], Any]) -> Any:
        if workers[log].join(0):  # The pipeline has ended, so the sink is free.
            return make_sink_caller(components)(log, call)
        return workers[log].submit(call).result(ANSWER_SECONDS)

    def describe_checkpoints(problems: Mapping[str, Problem]) -> list[dict[str, Any]]:
        return report_checkpoints(components, {run.lane.id: run.lane.table for run in lanes.list_runs()}, problems)

    def list_positions() -> dict[str, Position]:
        with lanes.get_lock():
            return {run.lane.id: run.applied for run in lanes.list_runs()}

    def truncate() -> None:
        if list_logs_with_retention(components):
            truncate_logs(components, call_sink)

    wanted = any(rules.checkpoints is not None for rules in components.sinks.values())
    find = partial(_list_scheduled, components, lanes)
    return CheckpointScheduler(find, list_positions, truncate, describe_checkpoints, wanted=wanted)


def report_checkpoints(
    components: Components, lanes: Mapping[str, str], problems: Mapping[str, Problem] = NO_PROBLEMS
) -> list[dict[str, Any]]:
    """The last checkpoint of each of these lanes (id to source table) that has or should have checkpoints.

    Each dict has the lane and the fields of `Checkpoint.to_json`. `usable`: under the current rules and topics.
    `kept`: the number of checkpoints. `error`: of the last attempt.
    """
    report, identities = [], dict[str, Mapping[str, str] | None]()
    for lane in _list_mirror_lanes(components, lanes):
        store = checkpoint.find_store(components, lane)
        judged = [] if store is None else [(one, store.describe_damage(one)) for one in store.list_all()]
        checkpoints, damaged = [one for one, wrong in judged if not wrong], [wrong for _, wrong in judged if wrong]
        is_scheduled = _get_schedule(components, lane) is not None
        if checkpoints or is_scheduled or damaged:
            last = checkpoints[-1] if checkpoints else None
            problem = problems.get(lane.id)
            error = problem.sentence if problem else next(iter(damaged), None)
            entry = last.to_json() if last else {"lane": lane.id, "number": None}
            usable = last is not None and _is_usable(components, lane, last, identities)
            report.append({**entry, "usable": usable, "kept": len(checkpoints), "error": error})
    if "" in problems:
        report.append({"lane": "", "number": None, "usable": False, "kept": 0, "error": problems[""].sentence})
    return report


def _is_usable(
    components: Components, lane: Lane, last: Checkpoint, identities: dict[str, Mapping[str, str] | None]
) -> bool:
    """True if the checkpoint has the current rules and topics.

    `identities` caches the topic identities of each log. If a log cannot be read, they are unknown, and no
    checkpoint is usable.
    """
    if last.rules != components.digest(lane):
        return False
    log = components.find_log(lane.table).id
    if log not in identities:
        try:
            identities[log] = dict(checkpoint.get_topic_identity(components, lane))
        except ReplicatorError:
            identities[log] = None
    identity = identities[log]
    return identity is not None and last.has_same_topics(identity)


def _list_scheduled(components: Components, lanes: LaneRuns) -> list[ScheduledCheckpoint]:
    tables = {run.lane.id: run.lane.table for run in lanes.list_runs() if run.lane.table}
    scheduled = []
    for lane in _list_mirror_lanes(components, tables):
        schedule = _get_schedule(components, lane)
        if schedule is not None:
            take, find = partial(checkpoint.take_checkpoint, components, lane), partial(_find_last, components, lane)
            scheduled.append(ScheduledCheckpoint(lane.id, schedule, take, find))
    return scheduled


def _find_last(components: Components, lane: Lane) -> Any:
    return find_newest_usable(checkpoint.list_checkpoints(components, lane), components.digest(lane))


def _get_schedule(components: Components, lane: Lane) -> CheckpointSchedule | None:
    if checkpoint.find_store(components, lane) is None:
        return None
    return components.sinks[components.find_log(lane.table).sink].checkpoints


def _list_mirror_lanes(components: Components, lanes: Mapping[str, str]) -> Iterator[Lane]:
    for name, table in lanes.items():
        for lane in components.resolve_lanes(table) if table else ():
            if lane.id == name and can_rebuild(components, lane) and not lane.refused:
                yield lane
