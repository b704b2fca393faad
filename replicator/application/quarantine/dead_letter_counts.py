"""Counts of open dead letters, for people. A separate thread reads them from the store now and then."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import structlog

from replicator.application.lane_runs import Clock, monotonic
from replicator.application.problem import to_problem
from replicator.ports.dead_letters import DeadLetterGroup, DeadLetters
from replicator.ports.telemetry import Telemetry

log = structlog.get_logger(__name__)

AFTER_REJECTS = 5.0
"""Seconds between two counts while records are rejected."""
OTHERWISE = 60.0
"""Seconds between two counts otherwise: other programs retry and remove dead letters."""
SHARE = 20
"""A slow count is repeated only after this many times its duration."""


class DeadLetterCounts:
    """`counts`: the last counts; None before the first, and while the store cannot be read. Thread-safe."""

    def __init__(self, store: DeadLetters, telemetry: Telemetry, clock: Clock = monotonic) -> None:
        self._store = store
        self._telemetry = telemetry
        self._clock = clock
        self._lock = threading.Lock()
        self._is_stale = True
        self._ended_at: float | None = None
        self._took = 0.0
        self._is_failing = False
        self.counts: Mapping[DeadLetterGroup, int] | None = None

    def invalidate(self) -> None:
        """Note that dead letters were written."""
        self._is_stale = True

    def refresh(self) -> None:
        """Count again if it is due. Uses a thread of its own, since the store may be slow or not answer."""
        pause = max(AFTER_REJECTS if self._is_stale else OTHERWISE, SHARE * self._took)
        if (self._ended_at is None or self._clock() - self._ended_at >= pause) and not self._lock.locked():
            threading.Thread(target=self.recount, name="dead letters", daemon=True).start()

    def recount(self) -> None:
        """Count now."""
        with self._lock:
            began, self._is_stale = self._clock(), False
            try:
                self.counts = dict(self._store.count_open())
                self._is_failing = False
            except Exception as error:
                # Warn once for several failures in a row: the count is repeated every few seconds.
                tell = log.debug if self._is_failing else log.warning
                tell("dead letters cannot be counted", sentence=to_problem(error).sentence)
                self.counts, self._is_stale, self._is_failing = None, True, True
            self._telemetry.dead_letters(self.counts or {})
            self._ended_at = self._clock()
            self._took = self._ended_at - began


def count_for_lane(counts: Mapping[DeadLetterGroup, int], source: str, table: str, lane: str) -> int:
    """The dead letters that keep records from a lane: its own, and its table's from before fan-out.

    `table` is empty for an event log, which has every record.
    """
    shared = counts.get(DeadLetterGroup(source, table, ""), 0) if table else 0
    return shared + sum(count for group, count in counts.items() if group.lane == lane)
