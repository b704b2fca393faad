"""The lanes of a running pipeline: what each is doing, how far it got, and why it stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

import structlog

from replicator.domain.errors import AlreadyWritten, ExitCode
from replicator.domain.policy import retention
from replicator.domain.policy.plan import Counts, DeleteHorizon
from replicator.domain.position import Position, Span
from replicator.ports.frames import Lane
from replicator.ports.telemetry import Telemetry

from .problem import Problem, to_problem
from .stream.lane_schema import LaneSchema
from .table_rules import EVENT_LOG_POLICY

log = structlog.get_logger(__name__)


class LaneStatus(StrEnum):
    """What a lane is doing. `retrying` is shown instead of the first three while its sink does not answer."""

    STARTING = "starting"  # its position is being asked for
    CATCHING_UP = "catching_up"  # reads from its own position towards the main one
    RUNNING = "running"  # gets what the main stream brings
    STOPPING = "stopping"  # gets nothing more, and is suspended once what was handed over is committed
    RETRYING = "retrying"
    PAUSED = "paused"
    SUSPENDED = "suspended"


@dataclass
class LaneRun:
    """One lane at work.

    `begin`: where each of its partitions began, kept in the register. `handed_over`: everything below is handed over or
    known to hold nothing for it; `sent`: where the next span starts (behind `handed_over` while there was nothing to
    write). These three belong to the thread of its source. `generation` grows whenever the lane's work in flight becomes
    void; writes carry `placed`, the generation under which the lane was given its position. `rule`: what its target was
    written under, or empty. `schema`: where the schema of its table stands; its source's thread's too. The rest is guarded
    by `LaneRuns`. `purged_up_to` as in `LaneState`. `stop`: why it is stopping. `waiting`: the rows of other lanes that
    its writes wait for; `is_full`: so many writes wait that it is to be handed no more.
    """

    lane: Lane
    status: LaneStatus = LaneStatus.STARTING
    generation: int = 0
    placed: int = -1
    begin: Position = field(default_factory=Position)
    sent: Position = field(default_factory=Position)
    handed_over: Position = field(default_factory=Position)
    rule: str = ""
    applied: Position = field(default_factory=Position)
    problem: Problem | None = None
    retrying: Problem | None = None
    counts: Counts = field(default_factory=Counts)
    newest: int | None = None
    applied_at: datetime | None = None
    purged_up_to: DeleteHorizon | None = None
    stop: Problem | None = None
    waiting: Problem | None = None
    is_full: bool = False
    schema: LaneSchema = field(init=False)

    def __post_init__(self) -> None:
        self.schema = LaneSchema(self.lane)

    @property
    def is_event_log(self) -> bool:
        """True for the lane of a whole source."""
        return self.lane.policy == EVENT_LOG_POLICY

    @property
    def shown_status(self) -> LaneStatus:
        """The status as people see it."""
        trouble = (self.retrying or self.waiting) and self.status not in (LaneStatus.PAUSED, LaneStatus.SUSPENDED)
        return LaneStatus.RETRYING if trouble else self.status


class LaneRuns:
    """Every lane of the pipeline, and the only place that changes a lane's status. Safe for use from several threads."""

    def __init__(self, telemetry: Telemetry, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._telemetry = telemetry
        self._now = now
        self._lock = threading.RLock()
        self._runs: dict[str, LaneRun] = {}
        self._calls: dict[str, tuple[str, datetime]] = {}
        self.voided = 0
        """How often what some lane had in flight became void: while it stays, everything that was handed over gets there."""

    def add(self, lane: Lane) -> LaneRun:
        """A new lane, starting. KeyError when its id is taken."""
        with self._lock:
            if lane.id in self._runs:
                raise KeyError(lane.id)
            self._runs[lane.id] = LaneRun(lane)
            return self._runs[lane.id]

    def find(self, lane_id: str) -> LaneRun | None:
        """The lane of that id."""
        with self._lock:
            return self._runs.get(lane_id)

    def list_runs(self) -> tuple[LaneRun, ...]:
        """Every lane there is, in order of appearance."""
        with self._lock:
            return tuple(self._runs.values())

    def get_lock(self) -> threading.RLock:
        """For readers that need several fields of a lane to belong together."""
        return self._lock

    def place_lane(
        self,
        run: LaneRun,
        position: Position,
        applied: Position,
        forgotten: DeleteHorizon | None = None,
        schema: LaneSchema | None = None,
    ) -> None:
        """The lane's position, up to where it forgot deletes, and its schema became known; it has to catch up before it
        runs."""
        with self._lock:
            if run.status is not LaneStatus.STARTING:
                return
            run.sent = run.handed_over = position
            run.applied, run.purged_up_to = applied, forgotten
            run.placed = run.generation
            run.schema = schema or LaneSchema(run.lane)
            self._set_status(run, LaneStatus.CATCHING_UP)

    def join_lane(self, run: LaneRun) -> None:
        """The lane has caught up and runs with the main stream."""
        with self._lock:
            if run.status is LaneStatus.CATCHING_UP:
                self._set_status(run, LaneStatus.RUNNING)

    def fall_back(self, run: LaneRun) -> None:
        """The main stream is ahead of the lane: it catches up from where it is."""
        with self._lock:
            if run.status is LaneStatus.RUNNING:
                self._set_status(run, LaneStatus.CATCHING_UP)

    def stop(self, run: LaneRun, problem: Problem) -> None:
        """Suspend the lane for a reason, once what it was handed is committed: it gets nothing more."""
        with self._lock:
            if run.status in (LaneStatus.RUNNING, LaneStatus.CATCHING_UP):
                run.stop = problem
                self._set_status(run, LaneStatus.STOPPING)
        self._suspend_stopped(run)

    def _suspend_stopped(self, run: LaneRun) -> None:
        """Suspend a lane that is stopping, and has nothing in flight."""
        with self._lock:
            stop = run.stop
            if stop is None or any(run.applied.get(p, run.begin.get(p, o)) < o for p, o in run.sent.items()):
                return
        self.suspend(run, stop)

    def suspend(self, run: LaneRun, problem: Problem, error: BaseException | None = None) -> None:
        """Stop the lane for a reason; what it has in flight is void."""
        with self._lock:
            if isinstance(error, AlreadyWritten):  # Its sink does not know what the lane reads.
                problem = to_problem(error.for_partitions(run.begin))
            run.problem, run.retrying = problem, None
            self._void_writes(run, LaneStatus.SUSPENDED)
        log.error(
            "lane suspended",
            lane=run.lane.id,
            code=int(problem.code),
            sentence=problem.sentence,
            next_step=problem.next_step,
            exc_info=error if problem.code is ExitCode.RUNTIME else None,
        )

    def pause(self, run: LaneRun) -> None:
        """Stop the lane because somebody asked; what it has in flight is void. A suspended lane stays suspended."""
        with self._lock:
            if run.status is not LaneStatus.SUSPENDED:
                self._void_writes(run, LaneStatus.PAUSED)

    def restart(self, run: LaneRun) -> None:
        """Begin again by asking the sink where the lane stands."""
        with self._lock:
            run.problem = run.retrying = None
            self._void_writes(run, LaneStatus.STARTING)

    def is_live(self, run: LaneRun, generation: int) -> bool:
        """True while work handed over under `generation` still counts."""
        return run.generation == generation

    def set_sink_problem(self, runs: Iterable[LaneRun], problem: Problem | None) -> None:
        """The lanes' sink does not answer (and why), or, with None, answers again."""
        with self._lock:
            for run in runs:
                if run.status not in (LaneStatus.SUSPENDED, LaneStatus.PAUSED):
                    run.retrying = problem

    @contextmanager
    def note_sink_call(self, sink: str, doing: str) -> Iterator[None]:
        """Within, a call of the sink is waited for; from the thread of its worker."""
        self._calls[sink] = (doing, self._now())
        try:
            yield
        finally:
            del self._calls[sink]

    def get_sink_call(self, sink: str) -> tuple[str, datetime] | None:
        """The call of the sink that is waited for, in words, and since when."""
        return self._calls.get(sink)

    def list_called_sinks(self) -> set[str]:
        """The sinks of which a call is waited for."""
        return set(self._calls.copy())

    def wait_for_rows(self, run: LaneRun, problem: Problem | None, *, is_full: bool = False) -> None:
        """Writes of the lane wait for rows of other lanes (and for which), or, with None, they do not any more."""
        with self._lock:
            run.waiting, run.is_full = problem, is_full

    def set_sink_outage(self, sink: str, problem: Problem | None) -> None:
        """A sink does not answer, so that none of its lanes gets on, those included whose writes wait; or, with None, it
        answers again."""
        self.set_sink_problem((run for run in self.list_runs() if run.lane.sink == sink), problem)

    def record_commit(
        self, run: LaneRun, position: Position, counts: Counts, newest: int | None, forgotten: DeleteHorizon | None = None
    ) -> None:
        """A write of the lane is committed. Says so when it made the lane forget deletes."""
        with self._lock:
            news = forgotten is not None and forgotten != run.purged_up_to
            run.purged_up_to = forgotten or run.purged_up_to
            run.applied = run.applied.advanced_to(position)
            run.counts = run.counts + counts
            run.retrying = None
            run.newest = max((n for n in (run.newest, newest) if n is not None), default=None)
            run.applied_at = self._now()
        self._suspend_stopped(run)
        if news:
            log.info("deletes forgotten", lane=run.lane.id, **retention.to_summary(forgotten))

    def find_unapplied(self, run: LaneRun) -> Span | None:
        """What the lane was handed and its target does not stand behind yet; None while writes are on their way."""
        with self._lock:
            at = Position({**run.handed_over, **run.begin, **run.applied})
            if any(at.get(p, o) < o for p, o in run.sent.items()):
                return None
            left = [p for p, o in run.handed_over.items() if at[p] < o]
            return Span(at.only(left), run.handed_over.only(left))

    def is_busy(self, *, without: str) -> bool:
        """True while lanes of other sinks than `without` have something in flight."""
        active = (LaneStatus.RUNNING, LaneStatus.CATCHING_UP, LaneStatus.STOPPING)
        with self._lock:
            return any(
                run.lane.sink != without
                and run.status in active
                and any(run.applied.get(p, run.begin.get(p, o)) < o for p, o in run.sent.items())
                for run in self._runs.values()
            )

    def is_all_suspended(self) -> bool:
        """True when there are lanes and every one of them is suspended."""
        with self._lock:
            runs = self._runs.values()
            return bool(runs) and all(run.status is LaneStatus.SUSPENDED for run in runs)

    def exit_code(self) -> ExitCode:
        """The gravest code of the suspended lanes; OK without any."""
        with self._lock:
            problems = [run.problem for run in self._runs.values() if run.status is LaneStatus.SUSPENDED]
        return max((p.code for p in problems if p), default=ExitCode.OK)

    def _void_writes(self, run: LaneRun, status: LaneStatus) -> None:
        run.generation += 1
        run.stop = None
        self.voided += 1
        self._set_status(run, status)

    def _set_status(self, run: LaneRun, status: LaneStatus) -> None:
        if run.status is not status:
            halted = LaneStatus.PAUSED in (run.status, status) or run.status is LaneStatus.SUSPENDED
            tell = log.info if halted else log.debug
            tell("lane status", lane=run.lane.id, was=run.status.value, now=status.value)
        run.status = status
        self._telemetry.lane_up(run.lane.id, status not in (LaneStatus.PAUSED, LaneStatus.SUSPENDED))


Clock = Callable[[], float]
"""Seconds that only grow."""

monotonic: Clock = time.monotonic
