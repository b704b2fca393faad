"""The loop of a stream: batches from a reader, while a poller checks the topics."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa

from replicator.domain.position import TopicPartition
from replicator.ports.frames import Batch, Stop

from .fetch_errors import FetchFailures
from .reader import PartitionReader, RecordBuffer
from .topic_poller import TICK, WAIT, TopicPoller

PACE = 0.1
"""Seconds between the starts of two new topics, at most one per batch. Each start causes work in all later steps, and the
other topics wait for it. A thousand new topics at once would delay them by half a minute."""
ApplyBatch: TypeAlias = Callable[[Batch[pa.Table]], None]


class StreamLoop:
    """A run over `reader`'s partitions, and over new ones that `watch` finds."""

    def __init__(self, reader: PartitionReader, watch: TopicPoller, failures: FetchFailures) -> None:
        self._reader, self._watch, self._failures = reader, watch, failures
        self._handed = self._begun = time.monotonic()
        self._fresh: dict[TopicPartition, int] = {}

    def run(self, apply_batch: ApplyBatch, stop: Stop) -> None:
        """Deliver batches until `stop`, or until all partitions with an end were read."""
        self._failures.begin_run()
        self._deliver(RecordBuffer(), apply_batch)
        while not stop.is_set() and not self._reader.is_finished():
            got = self._reader.gather(WAIT)
            for partition, said in self._reader.take_refused().items():
                self._watch.confirm_loss(partition, self._reader.next[partition], said)
                self._reader.resume(partition)
            self._refresh_topics()  # Before delivery, because records may belong to a topic that was created again.
            for partition, error in self._reader.take_failed().items():
                self._failures.add(partition, self._reader.next[partition], error)
            self._failures.clear(self._reader.next)
            if self._begin_topic() or got.records or time.monotonic() - self._handed >= TICK:
                self._deliver(got, apply_batch)
        if self._reader.is_finished() and self._reader.take_skipped_offsets():
            self._deliver(RecordBuffer(), apply_batch)

    def _deliver(self, got: RecordBuffer, apply_batch: ApplyBatch) -> None:
        if got.records:
            self._watch.note_answer()
        apply_batch(self._reader.to_batch(got, self._watch.identity))
        self._handed = time.monotonic()

    def _refresh_topics(self) -> None:
        moved = {p.topic for p in self._reader.take_skipped_offsets()}
        if self._reader.is_doubtful():
            moved |= {p.topic for p in self._reader.next}
        elif not self._watch.is_due(moved):
            return
        self._fresh.update(self._watch.refresh({*self._reader.next, *self._fresh}, moved))

    def _begin_topic(self) -> bool:
        """Start with the topic that appeared first, if it is time."""
        if not self._fresh or time.monotonic() - self._begun < PACE:
            return False
        topic = next(iter(self._fresh)).topic
        self._reader.assign({p: self._fresh.pop(p) for p in tuple(self._fresh) if p.topic == topic})
        self._reader.refresh(topic)
        self._begun = time.monotonic()
        return True
