"""The lanes of a running pipeline: status, positions, and the reasons why they stopped."""

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
from replicator.domain.policy import EVENT_LOG_POLICY
from replicator.domain.policy.late_changes import to_purge_summary
from replicator.domain.policy.plan import Counts, DeleteHorizon
from replicator.domain.position import Position, Span
from replicator.ports.frames import Lane
from replicator.ports.runtime import LaneUp, Telemetry

from .lane_schema import LaneSchema
from .problem import Problem, to_problem

log = structlog.get_logger(__name__)


class LaneStatus(StrEnum):
    """The status of a lane. `retrying` only exists in displays. It replaces any status but paused and suspended while the
    sink does not answer, or writes wait for rows of other lanes."""

    STARTING = "starting"  # its sink was asked for its position
    CATCHING_UP = "catching_up"  # reads from its own position towards the main one
    RUNNING = "running"  # gets the changes of the main stream
    STOPPING = "stopping"  # gets no more writes, and is suspended once its queued writes are committed
    RETRYING = "retrying"
    PAUSED = "paused"
    SUSPENDED = "suspended"


@dataclass
class LaneRun:
    """One running lane.

    `LaneRuns` guards all fields but those of the second list. Some of them:

    - `generation`: grows whenever the lane's writes in flight become void.
    - `position_generation`: the generation in which the lane got its position. Writes carry it.
    - `purged_up_to`: as in `LaneState`.
    - `stop`: the reason why it is stopping.
    - `waiting`: the rows of other lanes that its writes wait for.
    - `is_full`: it must get no more writes, because too many wait.

    Owned by the thread of its source:

    - `begin`: where each of its partitions began, as in the register.
    - `processed_to`: everything below is queued, or has no change for the lane.
    - `queued_to`: the end of its last queued write, where the next one starts; behind `processed_to` while there was
      nothing to write.
    - `rule`: the rule under which its target was written; empty if unknown.
    - `schema`: the current schema of its table.
    """

    lane: Lane
    status: LaneStatus = LaneStatus.STARTING
    generation: int = 0
    position_generation: int = -1
    begin: Position = field(default_factory=Position)
    queued_to: Position = field(default_factory=Position)
    processed_to: Position = field(default_factory=Position)
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
    def is_active(self) -> bool:
        """True while it has a position and was not stopped."""
        return self.status in (LaneStatus.RUNNING, LaneStatus.CATCHING_UP)

    @property
    def has_writes_in_flight(self) -> bool:
        """True while a queued write is not committed."""
        return any(self.applied.get(p, self.begin.get(p, o)) < o for p, o in self.queued_to.items())

    @property
    def shown_status(self) -> LaneStatus:
        """The status as people see it."""
        trouble = (self.retrying or self.waiting) and self.status not in (LaneStatus.PAUSED, LaneStatus.SUSPENDED)
        return LaneStatus.RETRYING if trouble else self.status


class LaneRuns:
    """All lanes of the pipeline. Only this class changes the status of a lane. Thread-safe."""

    def __init__(self, telemetry: Telemetry, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._telemetry = telemetry
        self._now = now
        self._lock = threading.RLock()
        self._runs: dict[str, LaneRun] = {}
        self._calls: dict[str, tuple[str, datetime]] = {}
        self.voided = 0
        """How often a lane's writes in flight became void.

        While it is unchanged, all queued writes will be committed.
        """

    def add(self, lane: Lane) -> LaneRun:
        """Add a lane, in status starting. KeyError if its id exists."""
        with self._lock:
            if lane.id in self._runs:
                raise KeyError(lane.id)
            self._runs[lane.id] = LaneRun(lane)
            return self._runs[lane.id]

    def find(self, lane_id: str) -> LaneRun | None:
        """The lane with that id; None without one."""
        with self._lock:
            return self._runs.get(lane_id)

    def list_runs(self) -> tuple[LaneRun, ...]:
        """All lanes, in order of appearance."""
        with self._lock:
            return tuple(self._runs.values())

    def get_lock(self) -> threading.RLock:
        """The lock, for readers that need several consistent fields of a lane."""
        return self._lock

    def place_lane(
        self,
        run: LaneRun,
        position: Position,
        applied: Position,
        purged: DeleteHorizon | None = None,
        schema: LaneSchema | None = None,
    ) -> None:
        """Set the lane's position, purge horizon and schema, as its sink returned them.

        It then catches up before it runs.
        """
        with self._lock:
            if run.status is not LaneStatus.STARTING:
                return
            run.queued_to = run.processed_to = position
            run.applied, run.purged_up_to = applied, purged
            run.position_generation = run.generation
            run.schema = schema or LaneSchema(run.lane)
            self._set_status(run, LaneStatus.CATCHING_UP)

    def join_lane(self, run: LaneRun) -> None:
        """Let the lane run with the main stream, since it has caught up."""
        with self._lock:
            if run.status is LaneStatus.CATCHING_UP:
                self._set_status(run, LaneStatus.RUNNING)

    def fall_back(self, run: LaneRun) -> None:
        """Let the lane catch up from its position, since the main stream is ahead of it."""
        with self._lock:
            if run.status is LaneStatus.RUNNING:
                self._set_status(run, LaneStatus.CATCHING_UP)

    def stop(self, run: LaneRun, problem: Problem) -> None:
        """Suspend the lane once its queued writes are committed. It gets no more."""
        with self._lock:
            if run.is_active:
                run.stop = problem
                self._set_status(run, LaneStatus.STOPPING)
        self._suspend_stopped(run)

    def _suspend_stopped(self, run: LaneRun) -> None:
        """Suspend a stopping lane that has no writes in flight."""
        with self._lock:
            stop = run.stop
            if stop is None or run.has_writes_in_flight:
                return
        self.suspend(run, stop)

    def suspend(self, run: LaneRun, problem: Problem, error: BaseException | None = None) -> None:
        """Suspend the lane at once. Its writes in flight are void."""
        with self._lock:
            if isinstance(error, AlreadyWritten):  # The sink does not know the partitions that the lane reads.
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
        """Pause the lane, by a command. Its writes in flight are void. A suspended lane stays suspended."""
        with self._lock:
            if run.status is not LaneStatus.SUSPENDED:
                self._void_writes(run, LaneStatus.PAUSED)

    def restart(self, run: LaneRun) -> None:
        """Start the lane again. Its writes in flight are void, and its sink has to return its position."""
        with self._lock:
            run.problem = run.retrying = None
            self._void_writes(run, LaneStatus.STARTING)

    def is_live(self, run: LaneRun, generation: int) -> bool:
        """True while writes queued under `generation` are valid."""
        return run.generation == generation

    def set_sink_problem(self, runs: Iterable[LaneRun], problem: Problem | None) -> None:
        """Note why the lanes' sink does not answer, or, with None, that it answers again."""
        with self._lock:
            for run in runs:
                if run.status not in (LaneStatus.SUSPENDED, LaneStatus.PAUSED):
                    run.retrying = problem

    @contextmanager
    def note_sink_call(self, sink: str, doing: str) -> Iterator[None]:
        """Notes that a call of the sink is waited for. Used by the thread of its worker."""
        self._calls[sink] = (doing, self._now())
        try:
            yield
        finally:
            del self._calls[sink]

    def get_sink_call(self, sink: str) -> tuple[str, datetime] | None:
        """The sink's call in progress, in words, and its start; None without one."""
        return self._calls.get(sink)

    def list_called_sinks(self) -> set[str]:
        """The sinks with a call in progress."""
        return set(self._calls.copy())

    def wait_for_rows(self, run: LaneRun, problem: Problem | None, *, is_full: bool = False) -> None:
        """Note that writes of the lane wait for rows of other lanes (and which), or, with None, that they no
        longer do."""
        with self._lock:
            run.waiting, run.is_full = problem, is_full

    def set_sink_outage(self, sink: str, problem: Problem | None) -> None:
        """Note for all lanes of a sink that it does not answer, or, with None, that it answers again."""
        self.set_sink_problem((run for run in self.list_runs() if run.lane.sink == sink), problem)

    def record_commit(
        self, run: LaneRun, position: Position, counts: Counts, newest: int | None, purged: DeleteHorizon | None = None
    ) -> None:
        """Record a committed write. Logs it if the lane has purged tombstones."""
        with self._lock:
            news = purged is not None and purged != run.purged_up_to
            run.purged_up_to = purged or run.purged_up_to
            run.applied = run.applied.advanced_to(position)
            run.counts = run.counts + counts
            run.retrying = None
            run.newest = max((n for n in (run.newest, newest) if n is not None), default=None)
            run.applied_at = self._now()
        self._suspend_stopped(run)
        if news:
            log.info("deletes forgotten", lane=run.lane.id, **to_purge_summary(purged))

    def find_unapplied(self, run: LaneRun) -> Span | None:
        """The span between the target's position and `processed_to`; None while writes are in flight."""
        with self._lock:
            if run.has_writes_in_flight:
                return None
            at = Position({**run.processed_to, **run.begin, **run.applied})
            partitions = [p for p, o in run.processed_to.items() if at[p] < o]
            return Span(at.only(partitions), run.processed_to.only(partitions))

    def is_busy(self, *, without: str) -> bool:
        """True while lanes of other sinks than `without` have writes in flight."""
        with self._lock:
            others = [run for run in self._runs.values() if run.lane.sink != without]
            return any(r.has_writes_in_flight for r in others if r.is_active or r.status is LaneStatus.STOPPING)

    def is_all_suspended(self) -> bool:
        """True if there are lanes, and all are suspended."""
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
            write_log = log.info if halted else log.debug
            write_log("lane status", lane=run.lane.id, was=run.status.value, now=status.value)
        run.status = status
        self._telemetry.record(LaneUp(run.lane.id, status not in (LaneStatus.PAUSED, LaneStatus.SUSPENDED)))


Clock = Callable[[], float]
"""Returns seconds that only grow."""

monotonic: Clock = time.monotonic
