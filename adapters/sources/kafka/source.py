"""The Kafka source. Partitions are assigned, never subscribed; the caller stores positions."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from replicator.domain.errors import refuse_losses
from replicator.domain.position import Position, TopicPartition
from replicator.ports.frames import ConsumeBatch, Stop
from replicator.ports.source import SourceFeatures

from ...kafka.clients import REOPEN, client_log, close_consumer
from .cluster import Cluster, Topic, find_losses, list_partitions
from .options import KafkaSettings
from .reader import PartitionReader, RecordBuffer
from .topic_poller import EMPTY_BATCH_SECONDS, STOP_CHECK_SECONDS, FetchFailures, TopicPoller, retry_patiently

log = logging.getLogger(__name__)


class KafkaSource:
    """A `Source` over Kafka 0.11 and later (`replicator.ports.source` is the contract), with `pyarrow.Table` as frames.

    Reads committed records only. `options` are those of `KafkaSettings`; errors in them are a ConfigProblem. Connects at
    the first call that needs it.
    """

    def __init__(self, options: KafkaSettings | Mapping[str, Any]) -> None:
        self._options = KafkaSettings.read(options)
        self._cluster = Cluster(self._options)
        self._group = GroupOffsets(self._options)
        self._failures = FetchFailures(self._options.patience_seconds)

    @property
    def features(self) -> SourceFeatures:
        return SourceFeatures(unmatched=self.unmatched)

    def run(self, start: Position, consume_batch: ConsumeBatch[pa.Table], stop: Stop, *, once: bool) -> None:
        """See the port. A topic that is created again while it is read is a DataLoss within about a second."""
        topics = retry_patiently(self._cluster.topics, self._options.patience_seconds, stop)
        if topics is None:
            return
        self._warn_unmatched(topics)
        starts = self._find_starts(start, topics)
        ends = self._cluster.ends(starts) if once else None
        self._follow(starts, ends, topics, consume_batch, stop, failures=self._failures)

    def _follow(
        self,
        starts: Mapping[TopicPartition, int],
        until: Mapping[TopicPartition, int] | None,
        topics: Mapping[str, Topic],
        consume_batch: ConsumeBatch[pa.Table],
        stop: Stop,
        *,
        failures: FetchFailures,
    ) -> None:
        wait_ms = 500 if until is None else 50
        with closing(PartitionReader(self._options, self._cluster.note_error, wait_ms)) as reader:
            reader.assign(starts, until)
            with closing(TopicPoller(self._cluster, topics, self._options.patience_seconds, grow=until is None)) as poller:
                StreamLoop(reader, poller, failures).run(consume_batch, stop)

    def _find_starts(self, start: Position, topics: Mapping[str, Topic]) -> dict[TopicPartition, int]:
        refuse_losses(find_losses(self._cluster, topics, start, {}))
        existing = list_partitions(topics)
        fresh = self._cluster.beginnings(p for p in existing if p not in start)
        return {p: start[p] if p in start else fresh[p] for p in existing}

    def _warn_unmatched(self, topics: Mapping[str, Topic]) -> None:
        for pattern in self._cluster.wanted.find_unmatched(topics):
            log.warning("No topic matches %r yet. The first matching topic is read as soon as it exists.", pattern)

    def read(self, start: Position, until: Position, consume_batch: ConsumeBatch[pa.Table], stop: Stop) -> None:
        """See the port. Uses a consumer of its own; an `until` above the stream's end is a DataLoss."""
        topics, starts = self._prepare_read(start, until)
        unread = {p: at for p, at in starts.items() if at < until[p]}
        if unread:
            failures = FetchFailures(self._options.patience_seconds)
            self._follow(unread, until.only(unread), topics, consume_batch, stop, failures=failures)

    def _prepare_read(self, start: Position, until: Position) -> tuple[Mapping[str, Topic], dict[TopicPartition, int]]:
        """The topics, and the start of each wanted partition in `until`. Raises DataLoss for missing records."""
        topics = self._cluster.find_topics(until)
        wanted = [p for p in until if self._cluster.wanted(p.topic)]
        refuse_losses(
            find_losses(self._cluster, topics, start.only(wanted), {}) | find_losses(self._cluster, topics, until, {})
        )
        beginnings = self._cluster.beginnings(p for p in wanted if p not in start)
        return topics, {p: start.get(p, beginnings.get(p, 0)) for p in wanted}

    def losses(self, position: Position, identity: Mapping[str, str]) -> Mapping[TopicPartition, str]:
        """See the port. Topics that `topics` does not match are never lost."""
        return find_losses(self._cluster, self._cluster.find_topics(position), position, identity)

    def start(self) -> Position:
        """See the port. A time after all records means the end. Equals `beginning` unless `start_from` says otherwise."""
        return Position(self._cluster.configured_starts(list_partitions(self._cluster.topics())))

    def beginning(self) -> Position:
        return Position(self._cluster.beginnings(list_partitions(self._cluster.topics())))

    def end(self) -> Position:
        """See the port: the end of readable records."""
        return Position(self._cluster.ends(self._cluster.partitions()))

    def unmatched(self) -> Mapping[str, Sequence[str]]:
        return self._cluster.wanted.find_unmatched_with_similar(self._cluster.names())

    def committed(self, position: Position) -> None:
        """Publish `position` as group offsets for lag tools; failures are only logged. Raises Retryable while fetches of
        a partition fail, so that the source counts as unavailable."""
        self._group.commit(position)
        self._failures.check()

    def close(self) -> None:
        """Close the connections; waits up to two seconds for group offsets."""
        self._group.close()


# The loop of a stream: batches from a reader, while a poller checks the topics.

NEW_TOPIC_SECONDS = 0.1
"""Seconds between the starts of two new topics, at most one per batch. Each start causes work in all later steps, and the
other topics wait for it. A thousand new topics at once would delay them by half a minute."""


class StreamLoop:
    """A run over `reader`'s partitions, and over new ones that `poller` finds."""

    def __init__(self, reader: PartitionReader, poller: TopicPoller, failures: FetchFailures) -> None:
        self._reader, self._poller, self._failures = reader, poller, failures
        self._delivered_at = self._begun = time.monotonic()
        self._fresh: dict[TopicPartition, int] = {}

    def run(self, consume_batch: ConsumeBatch[pa.Table], stop: Stop) -> None:
        """Deliver batches until `stop`, or until all partitions with an end were read."""
        self._failures.begin_run()
        self._deliver(RecordBuffer(), consume_batch)
        while not stop.is_set() and not self._reader.is_finished():
            buffer = self._reader.gather(STOP_CHECK_SECONDS)
            for partition, message in self._reader.take_refused().items():
                self._poller.confirm_loss(partition, self._reader.next[partition], message)
                self._reader.resume(partition)
            # Topics are checked before delivery, because records may belong to a topic that was created again.
            moved, has_doubt = {p.topic for p in self._reader.list_advanced()}, self._reader.take_doubt()
            if has_doubt:
                moved |= {p.topic for p in self._reader.next}
            if has_doubt or self._poller.is_due(moved):
                self._fresh.update(self._poller.refresh({*self._reader.next, *self._fresh}, moved))
            for partition, error in self._reader.take_failed().items():
                self._failures.add(partition, self._reader.next[partition], error)
            self._failures.clear(self._reader.next)
            begins_topic = bool(self._fresh) and time.monotonic() - self._begun >= NEW_TOPIC_SECONDS
            if begins_topic:
                # Begin with the topic that appeared first.
                topic = next(iter(self._fresh)).topic
                self._reader.assign({p: self._fresh.pop(p) for p in tuple(self._fresh) if p.topic == topic})
                self._reader.refresh(topic)
                self._begun = time.monotonic()
            if begins_topic or buffer.records or time.monotonic() - self._delivered_at >= EMPTY_BATCH_SECONDS:
                self._deliver(buffer, consume_batch)
        if self._reader.is_finished() and self._reader.list_advanced():
            self._deliver(RecordBuffer(), consume_batch)

    def _deliver(self, buffer: RecordBuffer, consume_batch: ConsumeBatch[pa.Table]) -> None:
        if buffer.records:
            self._poller.note_answer()
        consume_batch(self._reader.to_batch(buffer, self._poller.identity))
        self._delivered_at = time.monotonic()


# Offsets of the consumer group, for people and lag tools. The program never reads them.

CLOSE_SECONDS = 2.0


class GroupOffsets:
    """Commits without joining the group, so that no rebalance happens. A failed commit is only logged."""

    def __init__(self, options: KafkaSettings) -> None:
        self._options = options
        self._consumer: Consumer | None = None
        self._sent: dict[tuple[str, int], int] = {}
        self._waiting = 0
        self._failing = False
        self._answered = 0.0
        self._generation = 0

    def commit(self, position: Position) -> None:
        """Send offsets that changed since the last call. Later calls read the answer."""
        self._serve(0)
        if self._waiting > 0 and time.monotonic() - self._answered >= REOPEN:
            self._disconnect()
        changed = [KafkaPartition(*p, offset) for p, offset in position.items() if self._sent.get(p) != offset]
        if not changed:
            return
        try:
            if self._consumer is None:
                noted = partial(self._note_answer, self._generation)
                settings: dict[str, Any] = {**self._options.consumer(), "on_commit": noted, "error_cb": self._ignore}
                self._consumer = Consumer(settings, logger=client_log(self._options.hide_secrets))
            self._consumer.commit(offsets=changed, asynchronous=True)
        except KafkaException as error:
            self._log_failure(error)
            return
        if self._waiting == 0:
            self._answered = time.monotonic()
        self._waiting += 1
        self._sent.update({(p.topic, p.partition): p.offset for p in changed})

    def _note_answer(self, generation: int, error: KafkaError | None, partitions: list[KafkaPartition]) -> None:
        if generation != self._generation:
            return  # The shutdown of an earlier client.
        self._waiting -= 1
        self._answered = time.monotonic()
        failed = error or next((p.error for p in partitions if p.error), None)
        if failed:
            self._sent.clear()
            self._log_failure(failed)
        else:
            self._failing = False

    def _log_failure(self, error: KafkaError | KafkaException) -> None:
        """Log the first of consecutive failures."""
        write_log = log.debug if self._failing else log.warning
        write_log(
            "Group offsets of %s were not published: %s", self._options.group_id, self._options.hide_secrets(str(error))
        )
        self._failing = True

    def _serve(self, seconds: float) -> None:
        """Read available answers; wait up to `seconds` for missing ones."""
        until = time.monotonic() + seconds
        while self._consumer is not None and self._waiting > 0:
            self._consumer.poll(min(0.1, seconds))
            if time.monotonic() >= until:
                return

    def close(self) -> None:
        """Wait up to `CLOSE_SECONDS` seconds for answers, and close the connection."""
        self._serve(CLOSE_SECONDS)
        self._disconnect()

    def _disconnect(self) -> None:
        self._generation += 1
        if self._consumer is not None:
            close_consumer(self._consumer)
        self._consumer, self._waiting = None, 0
        self._sent.clear()

    def _ignore(self, error: KafkaError) -> None:
        """Connection errors are handled and reported where records are read."""
        log.debug("Group connection: %s", self._options.hide_secrets(str(error)))
