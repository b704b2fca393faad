"""Taking snapshots of lanes' states beside a running pipeline: on a thread of its own, which no lane waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import structlog

from replicator.domain.position import Position
from replicator.domain.state_snapshots import Schedule, StateSnapshot
from replicator.ports.frames import Stop

from .lanes import Clock, monotonic
from .problem import Problem, problem_of
from .retry import Backoff

log = structlog.get_logger(__name__)

LOOK = 1.0
"""Seconds between two looks at how far lanes are."""
LEAST = 60.0
"""Seconds until it is looked again after one that brought nothing new: the event log is not as far as the lane."""
LONGEST = 600.0
"""Seconds between two attempts at most."""

Take = Callable[[], StateSnapshot]
Shorten = Callable[[], None]
Told = Callable[[Mapping[str, Problem]], list[dict[str, Any]]]
"""What is told of the last snapshots, given why the last attempts failed."""


@dataclass
class Kept:
    """A lane of which snapshots are taken: `take` takes one, `last` looks up the newest one under its rules."""

    lane: str
    schedule: Schedule
    take: Take
    last: Callable[[], StateSnapshot | None]
    backoff: Backoff = field(default_factory=lambda: Backoff(first=1.0, longest=LONGEST))
    known: StateSnapshot | None = None
    looked: bool = False
    next_at: float = 0.0
    problem: Problem | None = None


class Snapshotting:
    """Takes snapshots that are due, and has event logs shortened behind them. A failure is told, tried again later, and
    stops nothing else.

    `kept`: of the lanes that there are by now. `positions`: where lanes stand, by id. `shorten` is called at the beginning,
    and after snapshots; `told`: see `report`."""

    def __init__(
        self,
        kept: Callable[[], Sequence[Kept]],
        positions: Callable[[], Mapping[str, Position]],
        shorten: Shorten,
        told: Told = lambda _: [],
        *,
        wanted: bool = True,
        clock: Clock = monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._find, self._positions, self._shorten, self._told = kept, positions, shorten, told
        self._clock, self._now = clock, now
        self._wanted = wanted
        self._kept: dict[str, Kept] = {}
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
        self.look(stop)
        if not stop.is_set():
            self._shortened()
        problems = [one.problem for one in self._kept.values()]
        return next((problem for problem in (*problems, self._shortening) if problem is not None), None)

    def report(self) -> list[dict[str, Any]]:
        """The last snapshot of each lane, as plain values, from any thread."""
        return self._told(self.problems())

    def problems(self) -> Mapping[str, Problem]:
        """Why the last attempt of a lane failed, by lane; from any thread. Without a lane: why logs are not shortened."""
        found = {lane: one.problem for lane, one in dict(self._kept).items() if one.problem is not None}
        return {**found, **({} if self._shortening is None else {"": self._shortening})}

    def look(self, stop: Stop) -> None:
        """Take those that are due, until `stop`."""
        for one in self._find():
            self._kept.setdefault(one.lane, one)
        positions, taken = self._positions(), False
        for one in self._kept.values():
            if stop.is_set() or self._clock() < one.next_at:
                continue
            if not one.looked:
                one.known, one.looked = one.last(), True
            if one.schedule.is_due(one.known, positions.get(one.lane, Position()), self._now()):
                taken = self._taken(one) or taken
        if taken:
            self._shortened()

    def _run(self) -> None:
        self._shortened()
        while not self._ended.wait(LOOK):
            try:
                self.look(self._ended)
            except Exception as error:
                log.error("snapshots are not taken", sentence=problem_of(error).sentence)
                self._ended.wait(LONGEST)

    def _taken(self, one: Kept) -> bool:
        before = one.known
        try:
            one.known = one.take()
        except Exception as error:
            one.problem = problem_of(error)
            one.next_at = self._clock() + one.backoff.delay()
            log.warning("snapshot was not taken", lane=one.lane, sentence=one.problem.sentence)
            return False
        one.problem = None
        one.backoff.reset()
        if before is not None and one.known.number == before.number:
            one.next_at = self._clock() + LEAST
            return False
        log.info("snapshot taken", lane=one.lane, number=one.known.number, rows=one.known.rows, bytes=one.known.bytes)
        return True

    def _shortened(self) -> None:
        try:
            self._shorten()
            self._shortening = None
        except Exception as error:
            self._shortening = problem_of(error)
            log.warning("event log was not shortened", sentence=self._shortening.sentence)
