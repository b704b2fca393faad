"""Following a stream while topics appear, change and vanish, and while the broker comes and goes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TypeAlias, TypeVar

import pyarrow as pa

from replicator.domain.errors import Retryable
from replicator.domain.position import TopicPartition
from replicator.ports.frames import Batch, Stop

from .cluster import Cluster, Topic, partitions_of
from .losses import missing, recreated, refuse
from .reader import Gathered, Reader

log = logging.getLogger(__name__)
T = TypeVar("T")
ApplyBatch: TypeAlias = Callable[[Batch[pa.Table]], None]

TICK = 1.0
"""Seconds without a record after which an empty batch is handed over."""
LOOK = 0.4
"""Seconds between two looks at the ids of topics: less than `fetch.error.backoff.ms`, so that a topic that was created
again is seen before its first record is handed over, unless it took less than this and no fetch was on its way."""
GROW = 2.0
"""Seconds between two looks for new topics and partitions."""
GONE = 3.0
"""Seconds for which a topic must be missing before it counts as gone: a broker that starts may not know all of them."""
WAIT = 0.2
"""Seconds after which a call that waits for records looks whether it was asked to stop."""


def patiently(ask: Callable[[], T], patience: float, stop: Stop) -> T | None:
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


class Following:
    """One run over `reader`'s partitions. With `grow`, topics and partitions that appear are read from their beginning.

    A topic that is created again, or is missing for `GONE` seconds, is a DataLoss; a broker that gives no answer for
    `patience` seconds a Retryable. Until then librdkafka connects again by itself and goes on where it was.
    """

    def __init__(
        self, cluster: Cluster, reader: Reader, topics: Mapping[str, Topic], patience: float, *, grow: bool
    ) -> None:
        self._cluster, self._reader, self._patience, self._grow = cluster, reader, patience, grow
        self._topics = dict(topics)
        self._missed: dict[str, float] = {}
        self._looked = self._grown = self._handed = self._answered = time.monotonic()
        self._away = False

    def run(self, apply_batch: ApplyBatch, stop: Stop) -> None:
        """Hand over batches until `stop` or, where every partition has an end, until all are read."""
        self._hand_over(Gathered(), apply_batch)
        while not stop.is_set() and not self._reader.finished():
            got = self._reader.gather(WAIT)
            if self._reader.doubtful() or self._missed or time.monotonic() - self._looked >= LOOK:
                self._look()
            if got.records or time.monotonic() - self._handed >= TICK:
                self._hand_over(got, apply_batch)
        if self._reader.finished() and self._reader.moved():
            self._hand_over(Gathered(), apply_batch)

    def _hand_over(self, got: Gathered, apply_batch: ApplyBatch) -> None:
        if got.records:
            self._answered = time.monotonic()
        apply_batch(self._reader.batch(got, {name: topic.id for name, topic in self._topics.items()}))
        self._handed = time.monotonic()

    def _look(self) -> None:
        """Compare the topics with what was known of them, before records that may be others' are handed over."""
        try:
            self._refuse_changed(self._cluster.described({p.topic for p in self._reader.next}, timeout=TICK))
            self._answered = time.monotonic()
            self._away = False
            if self._grow and self._answered - self._grown >= GROW:
                self._read_new(self._cluster.topics(timeout=TICK))
                self._grown = time.monotonic()
        except Retryable as away:
            if time.monotonic() - self._answered >= self._patience:
                raise
            if not self._away:
                log.warning("%s Waiting for it.", away.sentence)
            self._away = True
        self._looked = time.monotonic()

    def _refuse_changed(self, now: Mapping[str, Topic]) -> None:
        known, at = {p.topic for p in self._reader.next}, time.monotonic()
        self._missed = {name: self._missed.get(name, at) for name in known - now.keys()}
        gone = [name for name, since in self._missed.items() if at - since >= GONE]
        before = {name: topic.id for name, topic in self._topics.items()}
        changed = [(name, said) for name in known & now.keys() if (said := recreated(name, now[name].id, before))]
        refuse({TopicPartition(name, 0): missing(TopicPartition(name, 0), now) for name in gone})
        refuse({TopicPartition(name, 0): said for name, said in changed})

    def _read_new(self, now: Mapping[str, Topic]) -> None:
        fresh = [p for p in partitions_of(now) if p not in self._reader.next]
        if not fresh:
            return
        self._reader.assign(self._cluster.firsts(fresh))
        # Ids that are known stay: a topic created again this very moment must still be seen to differ.
        self._topics = {**now, **self._topics}
        self._reader.refresh({p.topic for p in fresh})
        log.info("Reading %s from the beginning.", ", ".join(map(str, fresh)))
