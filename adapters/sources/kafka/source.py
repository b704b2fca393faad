"""The Kafka source. Partitions are assigned, never subscribed; the caller stores positions."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing

from replicator.domain.position import Position, TopicPartition
from replicator.ports.frames import Stop

from .cluster import Cluster, Topic, list_partitions
from .data_loss_check import find_losses, refuse_losses
from .fetch_errors import FetchFailures
from .group_offsets import GroupOffsets
from .options import KafkaOptions
from .reader import PartitionReader
from .stream_loop import ApplyBatch, StreamLoop
from .topic_poller import TopicPoller, retry_patiently

log = logging.getLogger(__name__)


class KafkaSource:
    """A `Source` over Kafka 0.11 and later (`replicator.ports.source` is the contract), with `pyarrow.Table` as frames.

    Reads committed records only. `options` are those of `KafkaOptions`; errors in them are a ConfigProblem. Connects at
    the first call that needs it.
    """

    def __init__(self, options: Mapping[str, object]) -> None:
        self._options = KafkaOptions.read(options)
        self._cluster = Cluster(self._options)
        self._group = GroupOffsets(self._options)
        self._failures = FetchFailures(self._options.patience_seconds)

    def run(self, start: Position, apply_batch: ApplyBatch, stop: Stop, *, once: bool) -> None:
        """See the port. A topic that is created again while it is read is a DataLoss within about a second."""
        topics = retry_patiently(self._cluster.topics, self._options.patience_seconds, stop)
        if topics is None:
            return
        self._warn(topics)
        starts = self._starts(start, topics)
        ends = self._cluster.ends(starts) if once else None
        self._follow(starts, ends, topics, apply_batch, stop, failures=self._failures)

    def _follow(
        self,
        starts: Mapping[TopicPartition, int],
        until: Mapping[TopicPartition, int] | None,
        topics: Mapping[str, Topic],
        apply_batch: ApplyBatch,
        stop: Stop,
        *,
        failures: FetchFailures,
    ) -> None:
        wait_ms = 500 if until is None else 50
        with closing(PartitionReader(self._options, self._cluster.note_error, wait_ms)) as reader:
            reader.assign(starts, until)
            with closing(TopicPoller(self._cluster, topics, self._options.patience_seconds, grow=until is None)) as watch:
                StreamLoop(reader, watch, failures).run(apply_batch, stop)

    def _starts(self, start: Position, topics: Mapping[str, Topic]) -> dict[TopicPartition, int]:
        refuse_losses(find_losses(self._cluster, topics, start, {}))
        there = list_partitions(topics)
        fresh = self._cluster.firsts(p for p in there if p not in start)
        return {p: start[p] if p in start else fresh[p] for p in there}

    def _warn(self, topics: Mapping[str, Topic]) -> None:
        for pattern in self._cluster.wanted.find_unmatched(topics):
            log.warning("No topic matches %r yet. The first matching topic is read as soon as it exists.", pattern)

    def read(self, start: Position, until: Position, apply_batch: ApplyBatch, stop: Stop) -> None:
        """See the port. Uses a consumer of its own; an `until` above the stream's end is a DataLoss."""
        topics, starts = self._prepare_read(start, until)
        unread = {p: at for p, at in starts.items() if at < until[p]}
        if unread:
            failures = FetchFailures(self._options.patience_seconds)
            self._follow(unread, until.only(unread), topics, apply_batch, stop, failures=failures)

    def _prepare_read(self, start: Position, until: Position) -> tuple[Mapping[str, Topic], dict[TopicPartition, int]]:
        """The topics, and the start of each wanted partition in `until`. Raises DataLoss for missing records."""
        topics = self._cluster.find_topics(until)
        wanted = [p for p in until if self._cluster.wanted(p.topic)]
        refuse_losses(
            find_losses(self._cluster, topics, start.only(wanted), {}) | find_losses(self._cluster, topics, until, {})
        )
        firsts = self._cluster.firsts(p for p in wanted if p not in start)
        return topics, {p: start.get(p, firsts.get(p, 0)) for p in wanted}

    def losses(self, position: Position, identity: Mapping[str, str]) -> Mapping[TopicPartition, str]:
        """See the port. Topics that `topics` does not match are never lost."""
        return find_losses(self._cluster, self._cluster.find_topics(position), position, identity)

    def start(self) -> Position:
        """See the port. A time after all records means the end."""
        return Position(self._cluster.beginnings(list_partitions(self._cluster.topics())))

    def beginning(self) -> Position:
        return Position(self._cluster.firsts(list_partitions(self._cluster.topics())))

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
