"""The broker's topics, and positions from which a stream cannot continue."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, admin
from confluent_kafka import TopicPartition as KafkaPartition

from replicator.domain.errors import Retryable
from replicator.domain.patterns import TopicFilter
from replicator.domain.plain_values import format_count
from replicator.domain.position import Position, TopicPartition

from ...kafka.clients import Requests, unwrap_error
from .options import KafkaSettings

# The broker's topics: ids, partitions, first and last offsets.

TIMEOUT = 5.0
"""Seconds that one request may take."""


# The library has no types for these.
EARLIEST: Any = cast(Any, admin).OffsetSpec.earliest()
LATEST: Any = cast(Any, admin).OffsetSpec.latest()
ConfigResource: Any = cast(Any, admin).ConfigResource
TOPIC_REQUESTS = 3
"""Requests that must all miss a topic before it counts as removed."""


@dataclass(frozen=True, slots=True)
class Topic:
    """`id` is the broker's own; a topic that was deleted and created again has another one. Empty before Kafka 2.8.
    `replicas`: for each partition the configured number of replicas, and the number in sync."""

    id: str
    partitions: int
    replicas: tuple[tuple[int, int], ...] = ()


class Cluster:
    """Requests to the broker. Each may take `TIMEOUT` seconds and raises the program's own errors."""

    def __init__(self, options: KafkaSettings) -> None:
        self._options = options
        self._requests = Requests(options)
        self.wanted = TopicFilter(options.topics)
        self._requests.open_admin()  # Wrong options are found here.

    def note_error(self, error: KafkaError) -> None:
        """See `Requests.note_error`; for other clients of the same source."""
        self._requests.note_error(error)

    def _request(self, failing: str) -> AbstractContextManager[Any]:
        return self._requests.request(f"{failing} at {self._options.bootstrap_servers}")

    def names(self, timeout: float = TIMEOUT) -> tuple[str, ...]:
        """All topics, wanted or not."""
        with self._request("The topics could not be listed") as client:
            return tuple(client.list_topics(timeout=timeout).topics)

    def partitions(self, timeout: float = TIMEOUT) -> tuple[TopicPartition, ...]:
        """All partitions of the existing wanted topics, from one request. Ids are only in `describe_topics`."""
        with self._request("The topics could not be listed") as client:
            listed = client.list_topics(timeout=timeout).topics
        return tuple(TopicPartition(name, n) for name, t in listed.items() if self.wanted(name) for n in t.partitions)

    def topics(self, timeout: float = TIMEOUT) -> Mapping[str, Topic]:
        """The existing wanted topics."""
        return self.describe_topics(filter(self.wanted, self.names(timeout)), timeout)

    def describe_topics(self, names: Iterable[str], timeout: float = TIMEOUT) -> Mapping[str, Topic]:
        """The existing topics among `names`. One request, however many topics the broker has."""
        names = sorted(names)
        if not names:
            return {}
        with self._request("The topics could not be described") as client:
            futures = client.describe_topics(TopicCollection(names), request_timeout=timeout)
            described = {}
            for name, future in futures.items():
                try:
                    described[name] = _read_result(future)
                except KafkaException as error:
                    if unwrap_error(error).code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise
        return {
            name: Topic(str(d.topic_id or ""), len(d.partitions), tuple((len(p.replicas), len(p.isr)) for p in d.partitions))
            for name, d in described.items()
        }

    def find_topics(self, position: Iterable[TopicPartition]) -> Mapping[str, Topic]:
        """The wanted topics of `position`. Requested again if one is missing, as may happen while a broker starts."""
        expected = {p.topic for p in position if self.wanted(p.topic)}
        for _ in range(TOPIC_REQUESTS - 1):
            topics = self.describe_topics(expected)
            if expected <= topics.keys():
                return topics
            time.sleep(0.3)
        return self.describe_topics(expected)

    def _offsets(
        self, partitions: Iterable[TopicPartition], spec: Any, isolation: Any, timeout: float = TIMEOUT
    ) -> dict[TopicPartition, int]:
        request = {KafkaPartition(*p): spec for p in partitions}
        if not request:
            return {}
        with self._request("Offsets could not be read") as client:
            futures = client.list_offsets(request, isolation_level=isolation, request_timeout=timeout)
            return {TopicPartition(p.topic, p.partition): _read_result(f).offset for p, f in futures.items()}

    def beginnings(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """For each partition the offset of the first available record."""
        return _refuse_unknown(self._offsets(partitions, EARLIEST, IsolationLevel.READ_UNCOMMITTED))

    def known_beginnings(self, partitions: Iterable[TopicPartition], timeout: float) -> dict[TopicPartition, int]:
        """The same without partitions whose offsets the broker does not know yet."""
        offsets = self._offsets(partitions, EARLIEST, IsolationLevel.READ_UNCOMMITTED, timeout)
        return {p: offset for p, offset in offsets.items() if offset >= 0}

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """For each partition the offset after the last readable record: open transactions are not readable."""
        return _refuse_unknown(self._offsets(partitions, LATEST, IsolationLevel.READ_COMMITTED))

    def log_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """For each partition the offset of the next written record. No valid position is above it."""
        return _refuse_unknown(self._offsets(partitions, LATEST, IsolationLevel.READ_UNCOMMITTED))

    def offsets_at(self, partitions: Iterable[TopicPartition], at: float) -> dict[TopicPartition, int]:
        """For each partition the offset of the first record not older than `at` (seconds); the end if there is none."""
        partitions = tuple(partitions)
        # The ends come first: a record that is written between the two requests is not skipped.
        ends = self.ends(partitions)
        spec = cast(Any, admin).OffsetSpec.for_timestamp(int(at * 1000))
        offsets = self._offsets(partitions, spec, IsolationLevel.READ_COMMITTED)
        return {p: offset if offset >= 0 else ends[p] for p, offset in offsets.items()}

    def settings(self, names: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
        """The broker's settings of these topics, which must exist."""
        wanted = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
        with self._request("The topics' settings could not be read") as client:
            futures = client.describe_configs(wanted, request_timeout=TIMEOUT)
            by_name = {resource.name: _read_result(future) for resource, future in futures.items()}
        return {name: {key: entry.value for key, entry in entries.items()} for name, entries in by_name.items()}

    def configured_starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """For each partition the start according to `start_from`; the end for a time after all records."""
        wanted = self._options.start_from
        if wanted == "earliest":
            return self.beginnings(partitions)
        if wanted == "latest":
            return self.ends(partitions)
        return self.offsets_at(partitions, datetime.fromisoformat(wanted).timestamp())


def _read_result(future: Any) -> Any:
    return future.result(TIMEOUT * 2)


def _refuse_unknown(offsets: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Retryable for a partition that was just created: the broker may know no offset of it yet, and answers with a negative
    one."""
    if unknown := [p for p, offset in offsets.items() if offset < 0]:
        raise Retryable(f"The broker does not know the offsets of {unknown[0]} yet.")
    return offsets


def list_partitions(topics: Mapping[str, Topic]) -> tuple[TopicPartition, ...]:
    """All partitions of `topics`."""
    return tuple(TopicPartition(name, n) for name, topic in topics.items() for n in range(topic.partitions))


# Errors for positions from which a stream cannot continue.


def find_losses(
    cluster: Cluster, topics: Mapping[str, Topic], position: Position, identity: Mapping[str, str]
) -> dict[TopicPartition, str]:
    """For each partition of `position` that `topics` cannot continue, the error. Unwanted topics are ignored."""
    existing = set(list_partitions(topics))
    requested = [p for p in position if cluster.wanted(p.topic)]
    losses = {p: describe_missing(p, topics) for p in requested if p not in existing}
    losses |= {p: s for p in requested if p in existing and (s := describe_recreated(p.topic, topics[p.topic].id, identity))}
    left = [p for p in requested if p not in losses]
    beginnings, ends = cluster.beginnings(left), cluster.log_ends(left)
    return losses | {p: s for p in left if (s := describe_out_of_range(p, position[p], beginnings[p], ends[p]))}


def describe_missing(partition: TopicPartition, topics: Mapping[str, Topic]) -> str:
    """The error for a missing partition."""
    if partition.topic not in topics:
        return f"Topic {partition.topic} is gone from the broker."
    count = topics[partition.topic].partitions
    return f"Partition {partition} is gone: the topic has {format_count(count, 'partition')} now, so it was created again."


def describe_recreated(topic: str, now: str, identity: Mapping[str, str]) -> str:
    """The error for a topic whose id changed, or empty text. A topic without a known id passes."""
    before = identity.get(topic, "")
    if not before or not now or before == now:
        return ""
    return f"Topic {topic} was deleted and created again (its id was {before} and is {now}): offsets mean other records now."


def describe_out_of_range(partition: TopicPartition, offset: int, first: int, end: int) -> str:
    """The error for an offset outside [first, end], or empty text."""
    if offset < first:
        return (
            f"Records {offset} to {first - 1} of {partition} are gone from the broker: "
            f"retention or a deletion removed them before they were applied."
        )
    if offset > end:
        return (
            f"Offset {offset} of {partition} lies above the stream's end at {end}: "
            f"the topic was created again, or the broker lost or restored its data."
        )
    return ""
