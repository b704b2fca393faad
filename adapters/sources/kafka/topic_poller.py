"""Topics while they are read: those that appear, change and vanish, and a broker that comes and goes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from replicator.domain.errors import DataLoss, Retryable
from replicator.domain.position import Position, TopicPartition
from replicator.domain.remedies import describe_reload_or_skip
from replicator.ports.frames import Stop

from .cluster import Cluster, Topic, list_partitions
from .data_loss_check import describe_missing, describe_recreated, find_losses, refuse_losses
from .fetch_errors import Streaks

log = logging.getLogger(__name__)
T = TypeVar("T")

TICK = 1.0
"""Seconds without a record after which an empty batch is handed over."""
LOOK = 0.4
"""Seconds between two looks at the ids of topics: less than `fetch.error.backoff.ms`, so that a topic that was created
again is seen before its first record is handed over, unless it took less than this and no fetch was on its way."""
SOME = 100
"""So many of the topics without news are looked at with the others: a look at all would take longer the more there are."""
GROW = 2.0
"""Seconds between two looks for new topics and partitions."""
GONE = 3.0
"""Seconds for which a topic must be missing before it counts as gone: a broker that starts may not know all of them."""
BELIEVED = 5
"""Refusals of one offset in a row after which the broker is believed, though it says that it has them."""
WAIT = 0.2
"""Seconds after which a call that waits for records looks whether it was asked to stop."""


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """What one search found: of the partitions that were not known the first offsets, and their topics."""

    topics: Mapping[str, Topic]
    firsts: dict[TopicPartition, int]


def retry_patiently(ask: Callable[[], T], patience: float, stop: Stop) -> T | None:
    """What `ask` returns; a Retryable is asked again for `patience` seconds. None when asked to stop before that."""
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
    """The topics that one run reads. One that is created again, or is missing for `GONE` seconds, is a DataLoss; a broker
    that gives no answer for `patience` seconds a Retryable. With `grow`, partitions that appear are told."""

    def __init__(self, cluster: Cluster, topics: Mapping[str, Topic], patience: float, *, grow: bool) -> None:
        self._cluster, self._patience, self._grow = cluster, patience, grow
        self._topics = dict(topics)
        self._missed: dict[str, float] = {}
        self._refusals = Streaks()
        self._grown = self._answered = time.monotonic()
        self._looked = dict.fromkeys(topics, self._answered)
        """When each was looked at, that which was not for the longest first."""
        self._away = False
        # Looks for new topics wait for the broker; records of the topics that are read do not wait for them.
        self._pool = ThreadPoolExecutor(1, "new topics")
        self._search: Future[NewPartitions] | None = None

    def close(self) -> None:
        """Look no more. A look that has begun ends by itself, within a few seconds."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def identity(self) -> dict[str, str]:
        """Per topic the broker's id of it."""
        return {name: topic.id for name, topic in self._topics.items()}

    def note_answer(self) -> None:
        """The broker has just given something."""
        self._answered = time.monotonic()

    def is_due(self, moved: Iterable[str]) -> bool:
        """Whether it is time to look again, when something has come of the topics `moved`."""
        last = next(reversed(self._looked.values()), 0.0)
        return bool(self._missed) or time.monotonic() - min([last, *(self._looked.get(t, 0.0) for t in moved)]) >= LOOK

    def refresh(self, known: Collection[TopicPartition], moved: Iterable[str]) -> dict[TopicPartition, int]:
        """Compare with what was known of them the topics `moved`, those that are missing, and some others, each in its turn.
        The partitions that are not `known`, with their first offsets."""
        fresh: dict[TopicPartition, int] = {}
        self._looked = {p.topic: 0.0 for p in known if p.topic not in self._looked} | self._looked
        some = {*moved, *self._missed, *islice(self._looked, SOME)}
        try:
            self._refuse_changed(some)
            self.note_answer()
            if self._grow:
                fresh = self._take_new(known)
            else:
                self._away = False
        except Retryable as away:
            if time.monotonic() - self._answered >= self._patience:
                raise
            if not self._away:
                log.warning("%s Waiting for it.", away.sentence)
            self._away = True
        for name in some:
            del self._looked[name]
            self._looked[name] = time.monotonic()
        return fresh

    def confirm_loss(self, partition: TopicPartition, offset: int, said: str) -> None:
        """The broker refused an offset with these words: a DataLoss if it does not have it. A broker that has just
        taken over a partition may refuse what it has a moment later; one that goes on refusing is believed."""
        refusals = self._refusals.add(partition, offset).count
        found = find_losses(self._cluster, self._topics, Position({partition: offset}), self.identity)
        if found or refusals > BELIEVED:
            sentence = found.get(partition) or f"{partition} cannot be read on from offset {offset}: {said}."
            raise DataLoss(sentence, next_step=describe_reload_or_skip())
        log.warning("The broker refused offset %d of %s (%s), and has it; it is asked again.", offset, partition, said)

    def _refuse_changed(self, known: Set[str]) -> None:
        now, at = self._cluster.describe_topics(known, timeout=TICK), time.monotonic()
        self._missed = {name: self._missed.get(name, at) for name in known - now.keys()}
        gone = [name for name, since in self._missed.items() if at - since >= GONE]
        before = self.identity
        changed = [
            (name, said) for name in known if name in now and (said := describe_recreated(name, now[name].id, before))
        ]
        refuse_losses({TopicPartition(name, 0): describe_missing(TopicPartition(name, 0), now) for name in gone})
        refuse_losses({TopicPartition(name, 0): said for name, said in changed})

    def _take_new(self, known: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """What the last search found, once it has; otherwise begin one when it is time."""
        if self._search is None:
            if time.monotonic() - self._grown >= GROW:
                self._search = self._pool.submit(self._find_new, frozenset(known))
            return {}
        if not self._search.done():
            return {}
        search, self._search, self._grown = self._search, None, time.monotonic()
        fresh = search.result()
        self._away = False
        if fresh.firsts:
            # Ids that are known stay: a topic created again this very moment must still be seen to differ.
            self._topics = {**fresh.topics, **self._topics}
            log.info("Reading %s from the beginning.", _list_some(fresh.firsts))
        return fresh.firsts

    def _find_new(self, known: Collection[TopicPartition]) -> NewPartitions:
        fresh = {p for p in self._cluster.partitions(timeout=TICK) if p not in known}
        now = self._cluster.describe_topics({p.topic for p in fresh}, timeout=TICK)
        firsts = self._cluster.firsts(fresh.intersection(list_partitions(now)), timeout=TICK)
        # Of one that is just made the broker may not know it yet: the next search finds it again.
        return NewPartitions(now, {p: first for p, first in firsts.items() if first >= 0})


def _list_some(partitions: Collection[TopicPartition], most: int = 20) -> str:
    more = f" and {len(partitions) - most} more partitions" if len(partitions) > most else ""
    return ", ".join(map(str, list(partitions)[:most])) + more
