"""Takes checkpoints of lanes while the pipeline runs, on a separate thread, so that no lane waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import structlog

from replicator.application.backoff import Backoff
from replicator.application.lane_runs import Clock, monotonic
from replicator.application.problem import Problem, to_problem
from replicator.domain.checkpoints import Checkpoint, CheckpointSchedule
from replicator.domain.position import Position
from replicator.ports.frames import Stop

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


class CheckpointScheduler:
    """Takes the checkpoints that are due, and truncates the event logs that they cover. A failure is logged,
    retried later, and stops nothing else.

    - `kept`: the lanes with checkpoints that exist now. `positions`: the positions of lanes by id.
    - `shorten`: truncates the logs, at the start and after new checkpoints. `told`: see `report`.
    """

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
        """Start the thread, if checkpoints are configured."""
        if self._wanted:
            self._thread.start()

    def end(self, seconds: float) -> None:
        """Start no more checkpoints, and wait at most `seconds` for the running one. An incomplete checkpoint does
        not count."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def take_due(self, stop: Stop) -> Problem | None:
        """Take every due checkpoint once, now, until `stop`; return the first problem. Not for use while the thread
        runs."""
        if not self._wanted or stop.is_set():
            return None
        self.take_due_until(stop)
        if not stop.is_set():
            self._truncate_logs()
        problems = [one.problem for one in self._kept.values()]
        return next((problem for problem in (*problems, self._shortening) if problem is not None), None)

    def report(self) -> list[dict[str, Any]]:
        """The last checkpoint of each lane as plain values. Safe from any thread."""
        return self._told(self.list_problems())

    def list_problems(self) -> Mapping[str, Problem]:
        """Why the last attempt failed, by lane. The empty lane name stands for log truncation. Safe from any thread."""
        found = {lane: one.problem for lane, one in dict(self._kept).items() if one.problem is not None}
        return {**found, **({} if self._shortening is None else {"": self._shortening})}

    def take_due_until(self, stop: Stop) -> None:
        """Take the due checkpoints, until `stop`."""
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
