"""A consumer with assigned partitions, read in batches with adjacent spans."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeAlias, cast

import pyarrow as pa
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from replicator.domain.change import RAW
from replicator.domain.errors import DataLoss, describe_reload_or_skip
from replicator.domain.out_of_range import null_out_of_range
from replicator.domain.position import Position, Span, TopicPartition
from replicator.ports.frames import Batch

from ...arrow.record_positions import payload_bytes
from ...kafka.clients import (
    OFFSETS,
    REOPEN,
    REOPEN_MAX,
    client_log,
    close_consumer,
    is_transient,
    translate_client_error,
    unwrap_error,
)
from .options import KafkaSettings

log = logging.getLogger(__name__)

MESSAGES_PER_CALL = 2_000
"""Messages per call to librdkafka: few, so that their memory is reused (measured: half the time of 50,000)."""
FIRST_MESSAGES = 500
BACKLOG = 1_000
"""Known unread records from which on waiting for a fuller batch pays."""
LINGER = 0.2
"""Seconds that a batch may wait for more records during a backlog. Without a backlog nothing waits."""
PAUSE = 0.02
METADATA_SECONDS = 2.0
"""Seconds for the broker's answer about a topic. The shutdown may wait for it."""


@dataclass
class RecordBuffer:
    """Records for the next batch."""

    chunks: list[pa.RecordBatch] = field(default_factory=list)
    records: int = 0
    size: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Append the records of `batch`."""
        self.chunks.append(batch)
        self.records += batch.num_rows
        self.size += payload_bytes(batch)


class PartitionReader:
    """Reads assigned partitions. Not for use from several threads.

    `next` has the next offset of each partition. A partition with an `until` is released when it reaches it.
    """

    def __init__(self, options: KafkaSettings, error_cb: Callable[[KafkaError], None], wait_ms: int = 500) -> None:
        self._options = options
        self._settings = {"fetch.wait.max.ms": str(wait_ms), **options.consumer(), "error_cb": error_cb}
        self._consumer = self._open_consumer()
        self.next: dict[TopicPartition, int] = {}
        self._batch_ends: dict[TopicPartition, int] = {}
        self._until: dict[TopicPartition, int] = {}
        self._announce: set[TopicPartition] = set()
        self._assigned: set[TopicPartition] = set()
        self._refused: dict[TopicPartition, str] = {}
        self._failed: dict[TopicPartition, str] = {}
        self._bounded = self._doubt = False
        self._request_pool = ThreadPoolExecutor(1, "topics of the reader")
        self._broker_check: Future[bool] | None = None
        self._quiet_since, self._reopen_after = time.monotonic(), REOPEN

    def _open_consumer(self) -> Consumer:
        try:
            return Consumer(self._settings, logger=client_log(self._options.hide_secrets))
        except KafkaException as error:
            raise translate_client_error(self._options, unwrap_error(error), "The Kafka consumer cannot be set up") from None

    def close(self) -> None:
        """Close the connection."""
        self._request_pool.shutdown(cancel_futures=True)
        close_consumer(self._consumer)

    def assign(self, starts: Mapping[TopicPartition, int], until: Mapping[TopicPartition, int] | None = None) -> None:
        """Read additional partitions, each from its offset, up to its `until` if it has one."""
        self.next.update(starts)
        self._batch_ends.update(starts)
        self._announce.update(starts)
        if until is not None:
            self._bounded = True
            self._until.update(until)
        wanted = {p: offset for p, offset in starts.items() if not self._has_reached_end(p)}
        if wanted:
            self._consumer.incremental_assign([KafkaPartition(*p, offset) for p, offset in wanted.items()])
            self._assigned.update(wanted)

    def refresh(self, topic: str) -> None:
        """Have librdkafka refresh a topic now: an unknown partition would wait for the next regular refresh.

        Does not wait: the answer may come after a fetch that the broker holds open.
        """
        self._request_pool.submit(self._reaches_broker, topic)

    def _reaches_broker(self, topic: str) -> bool:
        """Request the topic. False if the client is connected to no broker, or knows none."""
        try:
            return bool(self._consumer.list_topics(topic, timeout=METADATA_SECONDS).brokers)
        except KafkaException as error:
            log.debug("Topic %s could not be checked: %s", topic, self._options.hide_secrets(str(error)))
            # Other errors are late: the answer waits behind a large or throttled one.
            return unwrap_error(error).code() != KafkaError._TRANSPORT

    def _has_reached_end(self, partition: TopicPartition) -> bool:
        return partition in self._until and self.next[partition] >= self._until[partition]

    def is_finished(self) -> bool:
        """True if every partition has an end and was read up to it."""
        return self._bounded and all(map(self._has_reached_end, self.next))

    def take_doubt(self) -> bool:
        """True once after the broker reported that a topic changed or is missing."""
        doubt, self._doubt = self._doubt, False
        return doubt

    def take_refused(self) -> dict[TopicPartition, str]:
        """Partitions whose next offset the broker refused, with its message. Each refusal is returned once. Refused
        partitions are not read until `resume`. Partitions that were read up to their end are left out: late answers for
        them are possible."""
        refused, self._refused = self._refused, {}
        return {partition: message for partition, message in refused.items() if partition in self._assigned}

    def take_failed(self) -> dict[TopicPartition, str]:
        """Partitions with transient fetch errors, each returned once. Fetches are repeated."""
        failed, self._failed = self._failed, {}
        return failed

    def resume(self, partition: TopicPartition) -> None:
        """Continue a refused partition from its next offset."""
        self._consumer.incremental_unassign([KafkaPartition(*partition)])
        self._consumer.incremental_assign([KafkaPartition(*partition, self.next[partition])])

    def list_advanced(self) -> set[TopicPartition]:
        """Partitions in which `next` is above the last batch: records, transaction markers, aborted records."""
        return {p for p, offset in self.next.items() if offset > self._batch_ends[p]}

    def gather(self, wait: float) -> RecordBuffer:
        """All available records. If there are none, the first record within `wait` seconds, or nothing."""
        buffer = RecordBuffer()
        first = self._consumer.poll(wait)
        if first is not None:
            self._quiet_since, self._reopen_after = time.monotonic(), REOPEN
        elif self._assigned and time.monotonic() - self._quiet_since >= self._reopen_after:
            self._check_client()
        messages = [] if first is None else [first, *self._consumer.consume(FIRST_MESSAGES, 0)]
        until = time.monotonic() + LINGER
        while messages:
            moved = self._take_messages(messages, buffer)
            # Released before more are created, so that their memory is reused.
            messages.clear()
            messages = self._read_more(buffer, moved, until)
        return buffer

    def _check_client(self) -> None:
        """Request a topic, without waiting. Open the client again if it reaches no broker: see `REOPEN`."""
        if self._broker_check is None:
            self._broker_check = self._request_pool.submit(self._reaches_broker, min(self._assigned).topic)
        elif self._broker_check.done():
            if self._broker_check.result():
                self._reopen_after = REOPEN
            else:
                write_log = log.warning if self._reopen_after == REOPEN else log.debug
                write_log("The Kafka client reaches no broker at %s. It is opened again.", self._options.bootstrap_servers)
                self._reopen_after = min(2 * self._reopen_after, REOPEN_MAX)
                fresh = self._open_consumer()
                self.close()
                self._consumer, self._request_pool = fresh, ThreadPoolExecutor(1, "topics of the reader")
                self._consumer.incremental_assign([KafkaPartition(*p, self.next[p]) for p in self._assigned])
            self._broker_check, self._quiet_since = None, time.monotonic()

    def _read_more(self, buffer: RecordBuffer, moved: Iterable[TopicPartition], until: float) -> list[Message]:
        """The next messages of a batch with room left: queued ones, or ones that a known backlog will provide."""
        mean = max(1, buffer.size // max(1, buffer.records))
        records, size = self._options.batch_records - buffer.records, self._options.batch_bytes - buffer.size
        room = min(MESSAGES_PER_CALL, records, size // mean)
        if room <= 0:
            return []
        messages: list[Message] = self._consumer.consume(room, 0)
        while not messages and time.monotonic() < until and self._count_behind(moved) >= BACKLOG:
            messages = self._consumer.consume(room, PAUSE)
        return messages

    def _count_behind(self, partitions: Iterable[TopicPartition]) -> int:
        """The number of unread records in `partitions`, as far as known without a request."""
        unfinished = [p for p in partitions if not self._has_reached_end(p)]
        ends = [(p, self._consumer.get_watermark_offsets(KafkaPartition(*p), cached=True)) for p in unfinished]
        return sum(max(0, end[1] - self.next[p]) for p, end in ends if end is not None)

    def _take_messages(self, messages: list[Message], buffer: RecordBuffer) -> Iterable[TopicPartition]:
        """Add the records among `messages` to `buffer`, advance `next`, handle events. Returns advanced partitions. Raises
        DataLoss if offsets go back."""
        events = [m for m in messages if m.error()] if any(map(Message.error, messages)) else []
        if events:
            messages = [m for m in messages if not m.error()]
        past: set[TopicPartition] = set()
        if self._bounded:
            past = {p for m in messages if offset_of(m) >= self._until[p := to_partition(m)]}
            messages = [m for m in messages if offset_of(m) < self._until[to_partition(m)]]
        keys = list(zip(map(topic_of, messages), map(partition_of, messages), strict=True))
        offsets = list(map(offset_of, messages))
        firsts = dict(zip(reversed(keys), reversed(offsets), strict=True))
        lasts = {TopicPartition(*key): offset for key, offset in dict(zip(keys, offsets, strict=True)).items()}
        for partition, last in lasts.items():
            first, expected = firsts[partition], self.next.get(partition, 0)
            if first < expected:
                raise DataLoss(
                    f"Offsets of {partition} went back from {expected} to {first}.", next_step=describe_reload_or_skip()
                )
            self.next[partition] = last + 1
        if messages:
            buffer.add(record_batch(messages))
        for partition in past.union(p for p in lasts if self._has_reached_end(p)):
            self._release(partition)
        # After the records: an end is reported when the records before it were read.
        for event in events:
            self._handle_event(event, cast(KafkaError, event.error()))
        return lasts

    def _release(self, partition: TopicPartition) -> None:
        """Set the partition to its `until` and stop fetching it."""
        self.next[partition] = self._until[partition]
        if partition in self._assigned:
            self._assigned.remove(partition)
            self._consumer.incremental_unassign([KafkaPartition(*partition)])

    def _handle_event(self, event: Message, error: KafkaError) -> None:
        partition = to_partition(event)
        if error.code() == KafkaError._PARTITION_EOF:
            self._at_end(partition, cast(int, event.offset()))
        elif error.code() in OFFSETS:
            self._refused[partition] = error.str()
        elif not is_transient(error):
            offset = event.offset()
            at = self.next.get(partition, 0) if offset is None else offset
            raise translate_client_error(self._options, error, f"Reading {partition} at offset {at} failed")
        else:
            self._doubt = True
            if partition in self._assigned:
                self._failed[partition] = self._options.hide_secrets(f"{error.str()} ({error.name()})")

    def _at_end(self, partition: TopicPartition, offset: int) -> None:
        """Advance to `offset`: only transaction markers and aborted records are below it."""
        if partition not in self.next or offset <= self.next[partition]:
            return
        self.next[partition] = offset
        if self._has_reached_end(partition):
            self._release(partition)

    def to_batch(self, buffer: RecordBuffer, identity: Mapping[str, str]) -> Batch[pa.Table]:
        """The records of `buffer` with their span: partitions that advanced since the last call, and newly assigned ones."""
        moved = self.list_advanced() | self._announce
        span = Span(Position({p: self._batch_ends[p] for p in moved}), Position({p: self.next[p] for p in moved}))
        self._batch_ends.update(span.end)
        self._announce.clear()
        return Batch(pa.Table.from_batches(buffer.chunks, schema=RAW), span, buffer.records, buffer.size, identity)


def to_partition(message: Message) -> TopicPartition:
    """The partition of a message or event."""
    return TopicPartition(cast(str, message.topic()), cast(int, message.partition()))


# Messages of librdkafka to raw record batches, without Python objects per field that outlive their chunk.

HeaderList: TypeAlias = tuple[tuple[str, bytes | None], ...] | None
# The stubs allow for errors, which lack these fields; used only for other messages.
topic_of = cast("Callable[[Message], str]", Message.topic)
partition_of = cast("Callable[[Message], int]", Message.partition)
offset_of = cast("Callable[[Message], int]", Message.offset)
_headers_of = cast("Callable[[Message], list[tuple[str, bytes | None]] | None]", Message.headers)
HEADERS = RAW.field("headers").type


def record_batch(messages: Sequence[Message]) -> pa.RecordBatch:
    """`messages`, without errors, as one batch of `domain.change.RAW` in the same order."""
    times = [None if kind == TIMESTAMP_NOT_AVAILABLE else at for kind, at in map(Message.timestamp, messages)]
    return pa.record_batch(
        [
            pa.array(list(map(topic_of, messages)), pa.string()),
            pa.array(list(map(partition_of, messages)), pa.int32()),
            pa.array(list(map(offset_of, messages)), pa.int64()),
            null_out_of_range(pa.array(times, RAW.field("timestamp").type)),
            _build_headers(messages),
            pa.array(list(map(Message.key, messages)), pa.binary()),
            pa.array(list(map(Message.value, messages)), pa.binary()),
        ],
        schema=RAW,
    )


def _build_headers(messages: Sequence[Message]) -> pa.Array:
    """A connector sends the same few lists of headers with all messages: each is built once and repeated."""
    distinct: dict[HeaderList, int] = {}
    codes: list[int] = []
    last: list[tuple[str, bytes | None]] | None = None
    code = -1
    for header_list in map(_headers_of, messages):
        if code < 0 or header_list != last:  # comparing with the previous one is cheaper than hashing all texts
            code = distinct.setdefault(header_list if header_list is None else tuple(header_list), len(distinct))
            last = header_list
        codes.append(code)
    if len(distinct) == 1 and None in distinct:
        return pa.nulls(len(messages), HEADERS)
    pairs = [pair for headers in distinct for pair in headers or ()]
    offsets: list[int | None] = []
    end = 0
    for headers in distinct:
        # A null offset makes the list at that index null.
        offsets.append(None if headers is None else end)
        end += len(headers or ())
    names, values = pa.array([n for n, _ in pairs], pa.string()), pa.array([v for _, v in pairs], pa.binary())
    flat = pa.StructArray.from_arrays([names, values], fields=list(HEADERS.value_type))
    lists = pa.ListArray.from_arrays(pa.array([*offsets, end], pa.int32()), flat, type=HEADERS)
    return lists.take(pa.array(codes, pa.int32()))
