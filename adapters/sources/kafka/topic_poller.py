"""Checks of topics while they are read: new, changed and missing ones, and an unavailable broker."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from replicator.domain.errors import DataLoss, Retryable, describe_reload_or_skip, refuse_losses
from replicator.domain.plain_values import format_count
from replicator.domain.position import Position, TopicPartition
from replicator.ports.frames import Stop

from ...kafka.clients import DAMAGED
from .cluster import Cluster, Topic, describe_missing, describe_recreated, find_losses, list_partitions

log = logging.getLogger(__name__)
T = TypeVar("T")

EMPTY_BATCH_SECONDS = 1.0
"""Seconds without a record after which an empty batch is delivered."""
TOPIC_CHECK_SECONDS = 0.4
"""Seconds between two checks of topic ids. Shorter than `fetch.error.backoff.ms`, so that a topic that was created again
is detected before its first record is delivered. An exception is a recreation that is faster than this while no fetch is
pending."""
TOPICS_PER_CHECK = 20
"""The number of topics without news that are checked along with the others. Records wait for the check, which takes a
loaded broker about a millisecond for each topic."""
DISCOVERY_SECONDS = 2.0
"""Seconds between two searches for new topics and partitions."""
REMOVED_AFTER_SECONDS = 3.0
"""Seconds for which a topic must be missing before it counts as removed: a starting broker may not know all topics."""
MAX_REFUSALS = 5
"""Consecutive refusals of one offset after which the refusal is final, although the broker lists the offset."""
MOST_NAMED = 20
"""New partitions that are named in the log."""
STOP_CHECK_SECONDS = 0.2
"""Seconds after which a call that waits for records checks for a stop."""


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """The result of a search: the first offsets of new partitions, and their topics."""

    topics: Mapping[str, Topic]
    firsts: dict[TopicPartition, int]


def retry_patiently(ask: Callable[[], T], patience: float, stop: Stop) -> T | None:
    """The result of `ask`. Repeated after Retryable for `patience` seconds. None if stopped before."""
    until = time.monotonic() + patience
    while not stop.is_set():
        try:
            return ask()
        except Retryable:
            if time.monotonic() >= until:
                raise
            stop.wait(0.2)
    return None


class TopicPoller:
    """The topics of one run. A topic that is created again, or missing for `REMOVED_AFTER_SECONDS`, is a DataLoss. A broker
    without an answer for `patience` seconds is a Retryable. With `grow`, new partitions are returned."""

    def __init__(self, cluster: Cluster, topics: Mapping[str, Topic], patience: float, *, grow: bool) -> None:
        self._cluster, self._patience, self._grow = cluster, patience, grow
        self._topics = dict(topics)
        self._missed: dict[str, float] = {}
        self._refusals = Streaks()
        self._grown = self._answered = time.monotonic()
        self._looked = dict.fromkeys(topics, self._answered)
        """The time of each topic's last check, oldest first."""
        self._away = False
        # Searches for new topics wait for the broker in another thread, so that records of known topics do
        # not wait.
        self._pool = ThreadPoolExecutor(1, "new topics")
        self._search: Future[NewPartitions] | None = None

    def close(self) -> None:
        """Stop searching. A running search ends within a few seconds."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def identity(self) -> dict[str, str]:
        """The broker's id of each topic."""
        return {name: topic.id for name, topic in self._topics.items()}

    def note_answer(self) -> None:
        """Store that the broker just answered."""
        self._answered = time.monotonic()

    def is_due(self, moved: Iterable[str]) -> bool:
        """True if it is time for a check, given that offsets of the topics `moved` advanced."""
        last = next(reversed(self._looked.values()), 0.0)
        return (
            bool(self._missed)
            or time.monotonic() - min([last, *(self._looked.get(t, 0.0) for t in moved)]) >= TOPIC_CHECK_SECONDS
        )

    def refresh(self, partitions: Collection[TopicPartition], moved: Iterable[str]) -> dict[TopicPartition, int]:
        """Compare the topics `moved`, missing topics, and some others in turn with their known state. Returns the
        partitions that are not in `partitions`, with their first offsets."""
        fresh: dict[TopicPartition, int] = {}
        self._looked = {p.topic: 0.0 for p in partitions if p.topic not in self._looked} | self._looked
        topics = {*moved, *self._missed, *islice(self._looked, TOPICS_PER_CHECK)}
        try:
            now, at = self._cluster.describe_topics(topics, timeout=EMPTY_BATCH_SECONDS), time.monotonic()
            self._missed = {name: self._missed.get(name, at) for name in topics - now.keys()}
            removed = [name for name, since in self._missed.items() if at - since >= REMOVED_AFTER_SECONDS]
            refuse_losses({TopicPartition(name, 0): describe_missing(TopicPartition(name, 0), now) for name in removed})
            before = self.identity
            recreated = {name: describe_recreated(name, now[name].id, before) for name in topics if name in now}
            refuse_losses({TopicPartition(name, 0): loss for name, loss in recreated.items() if loss})
            self.note_answer()
            if self._grow:
                fresh = self._take_new(partitions)
            else:
                self._away = False
        except Retryable as away:
            if time.monotonic() - self._answered >= self._patience:
                raise
            if not self._away:
                log.warning("%s Waiting for it.", away.sentence)
            self._away = True
        for name in topics:
            del self._looked[name]
            self._looked[name] = time.monotonic()
        return fresh

    def confirm_loss(self, partition: TopicPartition, offset: int, answer: str) -> None:
        """Check an offset that the broker refused with `answer`. Raises DataLoss if the broker does not have
        it. A broker that just took over a partition may refuse existing offsets for a short time; repeated refusals
        are final."""
        refusals = self._refusals.add(partition, offset).count
        losses = find_losses(self._cluster, self._topics, Position({partition: offset}), self.identity)
        if losses or refusals > MAX_REFUSALS:
            sentence = losses.get(partition) or f"{partition} cannot be read on from offset {offset}: {answer}."
            raise DataLoss(sentence, next_step=describe_reload_or_skip())
        log.warning("The broker refused offset %d of %s (%s), but has it; it is requested again.", offset, partition, answer)

    def _take_new(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The result of the last search if it is done; otherwise start a search if it is time."""
        if self._search is None:
            if time.monotonic() - self._grown >= DISCOVERY_SECONDS:
                self._search = self._pool.submit(self._find_new, frozenset(partitions))
            return {}
        if not self._search.done():
            return {}
        search, self._search, self._grown = self._search, None, time.monotonic()
        fresh = search.result()
        self._away = False
        if fresh.firsts:
            # Known ids stay: a topic that was created again just now must still be detected.
            self._topics = {**fresh.topics, **self._topics}
            names = list(map(str, fresh.firsts))
            more = f" and {format_count(len(names) - MOST_NAMED, 'more partition')}" if len(names) > MOST_NAMED else ""
            log.info("Reading %s from the beginning.", ", ".join(names[:MOST_NAMED]) + more)
        return fresh.firsts

    def _find_new(self, partitions: Collection[TopicPartition]) -> NewPartitions:
        fresh = {p for p in self._cluster.partitions(timeout=EMPTY_BATCH_SECONDS) if p not in partitions}
        now = self._cluster.describe_topics({p.topic for p in fresh}, timeout=EMPTY_BATCH_SECONDS)
        # For a partition that was just created the broker may know no offset yet: the next search finds it again.
        firsts = self._cluster.known_beginnings(fresh.intersection(list_partitions(now)), EMPTY_BATCH_SECONDS)
        return NewPartitions(now, firsts)


# Transient fetch errors, by partition: how often and how long in a row.


STREAK_GAP_SECONDS = 10.0
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
    """Streaks by partition. After progress, or `STREAK_GAP_SECONDS` without an error, a partition starts a new streak."""

    def add(self, partition: TopicPartition, offset: int) -> Streak:
        """Add an error at the next offset."""
        now, streak = time.monotonic(), self.get(partition)
        if streak is None or streak.offset != offset or now - streak.last > STREAK_GAP_SECONDS:
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
        write_log = log.warning if streak.count == 1 else log.debug
        write_log("Reading %s at offset %d failed: %s. It is tried again.", partition, offset, error)
        if streak.last - max(streak.since, self._began) >= self._patience:
            raise _to_error(partition, streak)

    def clear(self, positions: Mapping[TopicPartition, int]) -> None:
        """Remove partitions that made progress or no longer fail. `positions`: the next offsets."""
        now = time.monotonic()
        for partition, streak in list(self._streaks.items()):
            if positions.get(partition) != streak.offset or now - streak.last > STREAK_GAP_SECONDS:
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
