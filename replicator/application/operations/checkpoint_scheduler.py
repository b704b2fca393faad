"""Taking snapshots of lanes' states beside a running pipeline: on a thread of its own, which no lane waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import structlog

from replicator.application.delivery.retry import Backoff
from replicator.application.lane_runs import Clock, monotonic
from replicator.application.problem import Problem, to_problem
from replicator.domain.checkpoints import Checkpoint, CheckpointSchedule
from replicator.domain.position import Position
from replicator.ports.frames import Stop

log = structlog.get_logger(__name__)

LOOK_SECONDS = 1.0
"""Seconds between two looks at how far lanes are."""
SHORTEST_DELAY = 60.0
"""Seconds until it is looked again after one that brought nothing new: the event log is not as far as the lane."""
LONGEST_DELAY = 600.0
"""Seconds between two attempts at most."""

TakeCheckpoint = Callable[[], Checkpoint]
TruncateLogs = Callable[[], None]
MakeReport = Callable[[Mapping[str, Problem]], list[dict[str, Any]]]
"""What is told of the last snapshots, given why the last attempts failed."""


@dataclass
class ScheduledCheckpoint:
    """A lane of which snapshots are taken: `take` takes one, `last` looks up the newest one under its rules."""

    lane: str
    schedule: CheckpointSchedule
    take: TakeCheckpoint
    last: Callable[[], Checkpoint | None]
    backoff: Backoff = field(default_factory=lambda: Backoff(first=1.0, longest=LONGEST_DELAY))
    checkpoint: Checkpoint | None = None
    has_looked: bool = False
    next_at: float = 0.0
    problem: Problem | None = None


class CheckpointScheduler:
    """Takes snapshots that are due, and has event logs shortened behind them. A failure is told, tried again later, and
    stops nothing else.

    `kept`: of the lanes that there are by now. `positions`: where lanes stand, by id. `truncate_log` is called at the
    beginning, and after snapshots; `told`: see `report`."""

    def __init__(
        self,
        kept: Callable[[], Sequence[ScheduledCheckpoint]],
        positions: Callable[[], Mapping[str, Position]],
        shorten: TruncateLogs,
        told: MakeReport = lambda _: [],
        *,
        wanted: bool = True,
        clock: Clock = monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._find, self._positions, self._shorten, self._told = kept, positions, shorten, told
        self._clock, self._now = clock, now
        self._wanted = wanted
        self._kept: dict[str, ScheduledCheckpoint] = {}
        self._shortening: Problem | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="snapshots", daemon=True)

    def start(self) -> None:
        """Begin to take them, where some are wanted."""
        if self._wanted:
            self._thread.start()

    def end(self, seconds: float) -> None:
        """Begin no more, and wait for the one at work: that long, and no longer, as one that is not complete is none."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def take_due(self, stop: Stop) -> Problem | None:
        """Take each that is due, once, now, until `stop`; the first problem. Not beside a thread that was started."""
        if not self._wanted or stop.is_set():
            return None
        self.take_due_until(stop)
        if not stop.is_set():
            self._truncate_logs()
        problems = [one.problem for one in self._kept.values()]
        return next((problem for problem in (*problems, self._shortening) if problem is not None), None)

    def report(self) -> list[dict[str, Any]]:
        """The last snapshot of each lane, as plain values, from any thread."""
        return self._told(self.list_problems())

    def list_problems(self) -> Mapping[str, Problem]:
        """Why the last attempt of a lane failed, by lane; from any thread. Without a lane: why logs are not shortened."""
        found = {lane: one.problem for lane, one in dict(self._kept).items() if one.problem is not None}
        return {**found, **({} if self._shortening is None else {"": self._shortening})}

    def take_due_until(self, stop: Stop) -> None:
        """Take those that are due, until `stop`."""
        for one in self._find():
            self._kept.setdefault(one.lane, one)
        positions, taken = self._positions(), False
        for one in self._kept.values():
            if stop.is_set() or self._clock() < one.next_at:
                continue
            if not one.has_looked:
                one.checkpoint, one.has_looked = one.last(), True
            if one.schedule.is_due(one.checkpoint, positions.get(one.lane, Position()), self._now()):
                taken = self._take_checkpoint(one) or taken
        if taken:
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
            self._shorten()
            self._shortening = None
        except Exception as error:
            self._shortening = to_problem(error)
            log.warning("event log was not shortened", sentence=self._shortening.sentence)
