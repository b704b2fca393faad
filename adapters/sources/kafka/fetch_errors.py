"""Transient fetch errors, by partition: how often and how long in a row."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

from replicator.domain.errors import Retryable
from replicator.domain.position import TopicPartition

from ...kafka.errors import DAMAGED

log = logging.getLogger(__name__)

QUIET = 10.0
"""Seconds without an error that end a streak: librdkafka repeats a failed fetch every half second."""


@dataclass(slots=True)
class Streak:
    """Consecutive errors at one offset."""

    offset: int
    since: float
    last: float
    count: int = 0
    error: str = ""


class Streaks(dict[TopicPartition, Streak]):
    """Streaks by partition. After progress, or `QUIET` seconds without an error, a partition starts a new streak."""

    def add(self, partition: TopicPartition, offset: int) -> Streak:
        """Add an error at the next offset."""
        now, streak = time.monotonic(), self.get(partition)
        if streak is None or streak.offset != offset or now - streak.last > QUIET:
            streak = self[partition] = Streak(offset, now, now)
        streak.last, streak.count = now, streak.count + 1
        return streak


class FetchFailures:
    """Partitions with failing fetches, over all runs of a source. Each new run reads the other partitions for `patience`
    seconds; the source counts as unavailable then."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._began = time.monotonic()
        self._streaks = Streaks()

    def begin_run(self) -> None:
        """Restart the time of all streaks: there were no fetches between runs."""
        self._began = time.monotonic()
        for streak in self._streaks.values():
            streak.last = self._began

    def add(self, partition: TopicPartition, offset: int, error: str) -> None:
        """Add a failed fetch. Logged once; raises Retryable after `patience` seconds of failures in this run."""
        streak = self._streaks.add(partition, offset)
        streak.error = error
        tell = log.warning if streak.count == 1 else log.debug
        tell("Reading %s at offset %d failed: %s. It is tried again.", partition, offset, error)
        if streak.last - max(streak.since, self._began) >= self._patience:
            raise _to_error(partition, streak)

    def clear(self, positions: Mapping[TopicPartition, int]) -> None:
        """Remove partitions that made progress or no longer fail. `positions`: the next offsets."""
        now = time.monotonic()
        for partition, streak in list(self._streaks.items()):
            if positions.get(partition) != streak.offset or now - streak.last > QUIET:
                del self._streaks[partition]

    def check(self) -> None:
        """Raise Retryable if fetches of a partition have failed for `patience` seconds."""
        for partition, streak in sorted(self._streaks.items()):
            if streak.last - streak.since >= self._patience:
                raise _to_error(partition, streak)


def _to_error(partition: TopicPartition, streak: Streak) -> Retryable:
    seconds = streak.last - streak.since
    sentence = f"Reading {partition} at offset {streak.offset} has failed for {seconds:.0f} s: {streak.error}."
    return Retryable(sentence, next_step=DAMAGED)
