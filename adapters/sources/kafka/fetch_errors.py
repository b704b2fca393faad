"""Errors of fetches that may pass, by partition: how often and how long in a row."""

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
    """Errors in a row at one offset."""

    offset: int
    since: float
    last: float
    count: int = 0
    error: str = ""


class Streaks(dict[TopicPartition, Streak]):
    """By partition. A partition that was read on, or had no error for `QUIET` seconds, begins another streak."""

    def add(self, partition: TopicPartition, offset: int) -> Streak:
        """One more error, at the offset that comes next."""
        now, streak = time.monotonic(), self.get(partition)
        if streak is None or streak.offset != offset or now - streak.last > QUIET:
            streak = self[partition] = Streak(offset, now, now)
        streak.last, streak.count = now, streak.count + 1
        return streak


class FetchFailures:
    """Partitions whose fetches fail, over all runs of a source: each new run reads the other partitions for `patience`
    seconds, and meanwhile the source counts as away."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._began = time.monotonic()
        self._streaks = Streaks()

    def begin_run(self) -> None:
        """No fetch failed since the last run, because there was none."""
        self._began = time.monotonic()
        for streak in self._streaks.values():
            streak.last = self._began

    def add(self, partition: TopicPartition, offset: int, error: str) -> None:
        """A fetch failed. Logged once; Retryable when that has lasted for `patience` seconds of this run."""
        streak = self._streaks.add(partition, offset)
        streak.error = error
        tell = log.warning if streak.count == 1 else log.debug
        tell("Reading %s at offset %d failed: %s. It is tried again.", partition, offset, error)
        if streak.last - max(streak.since, self._began) >= self._patience:
            raise _to_error(partition, streak)

    def clear(self, positions: Mapping[TopicPartition, int]) -> None:
        """Partitions that were read on, or fail no more, do not count; `positions`: the offsets that come next."""
        now = time.monotonic()
        for partition, streak in list(self._streaks.items()):
            if positions.get(partition) != streak.offset or now - streak.last > QUIET:
                del self._streaks[partition]

    def check(self) -> None:
        """Retryable while the fetches of a partition have failed for `patience` seconds."""
        for partition, streak in sorted(self._streaks.items()):
            if streak.last - streak.since >= self._patience:
                raise _to_error(partition, streak)


def _to_error(partition: TopicPartition, streak: Streak) -> Retryable:
    seconds = streak.last - streak.since
    sentence = f"Reading {partition} at offset {streak.offset} has failed for {seconds:.0f} s: {streak.error}."
    return Retryable(sentence, next_step=DAMAGED)
