"""The Kafka source on Spark's executors."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from replicator.domain.change import RAW
from replicator.domain.position import Position, Span, TopicPartition
from replicator.ports.frames import Batch, Stop
from replicator.ports.source import Pace, SourceFeatures

from ....spark import frames
from ....spark.frames import column, to_session
from ....spark.session import split_options
from ....spark.types import spark_schema
from ..options import KafkaSettings
from ..source import KafkaSource
from ..topic_poller import TICK, WAIT, TopicPoller, retry_patiently
from .java_client import allow_endpoint, java_client
from .streaming_query import MicroBatch, ProgressListener, StreamingRecords, translate_errors

ApplyBatch: TypeAlias = Callable[[Batch[DataFrame]], None]


class KafkaSparkSource(KafkaSource):
    """A `Source` with `pyspark.sql.DataFrame` as frames, with Structured Streaming. Options of `KafkaSource`.

    Partitions are assigned and read from the given positions; each run has a new checkpoint. Missing records end the
    query (`failOnDataLoss`). `max_records_per_trigger` limits a micro-batch, `trigger` is the time between two. Record
    times before 15 October 1582 are null. Settings under `options` apply to the driver's own connections only, not to the
    executors'.
    """

    def __init__(self, options: KafkaSettings | Mapping[str, Any]) -> None:
        own, self._spark = split_options(options)
        self._pace = ProgressListener()
        super().__init__(own)
        self._client = java_client({name: value.get_secret_value() for name, value in self._options.security.items()})
        allow_endpoint(self._spark._jvm, self._client)
        self._nothing = self._spark.createDataFrame([], spark_schema(RAW))

    @property
    def features(self) -> SourceFeatures:
        return replace(super().features, engine="spark", pace=self.pace)

    def run(self, start: Position, apply_batch: ApplyBatch, stop: Stop, *, once: bool) -> None:
        """See the port. Calls `apply_batch` in the caller's thread."""
        topics = retry_patiently(self._cluster.topics, self._options.patience_seconds, stop)
        if topics is None:
            return
        self._warn(topics)
        with closing(TopicPoller(self._cluster, topics, self._options.patience_seconds, grow=not once)) as watch:
            run = _SparkRun(self._open_stream, watch, apply_batch, self._nothing, self._spark)
            run.announce(Position(self._starts(start, topics)))
            self._spark.streams.addListener(self._pace)
            try:
                run.follow(stop, once=once)
            finally:
                self._spark.streams.removeListener(self._pace)

    def pace(self) -> Pace | None:
        return self._pace.pace

    def _open_stream(self, position: Position, *, once: bool) -> StreamingRecords:
        options = {
            **self._read_options(position),
            "startingOffsets": offsets_to_json(position),
            "maxOffsetsPerTrigger": str(self._options.max_records_per_trigger),
        }
        records = to_raw(self._spark.readStream.format("kafka").options(**options).load())
        query = StreamingRecords(records, None if once else self._options.trigger)
        self._pace.run_id = query.run_id
        return query

    def _read_options(self, position: Mapping[TopicPartition, int]) -> dict[str, str]:
        return {
            **{f"kafka.{name}": value for name, value in self._client.items()},
            "kafka.bootstrap.servers": self._options.bootstrap_servers,
            "kafka.isolation.level": "read_committed",
            "includeHeaders": "true",
            "failOnDataLoss": "true",
            # Otherwise few partitions would leave cores idle. Ranges of one partition stay in order.
            "minPartitions": str(self._spark.sparkContext.defaultParallelism),
            "assign": partitions_to_json(position),
        }

    def read(self, start: Position, until: Position, apply_batch: ApplyBatch, stop: Stop) -> None:
        """See the port. An `until` above the stream's end is a DataLoss."""
        topics, starts = self._prepare_read(start, until)
        identity = {name: topic.id for name, topic in topics.items()}
        for span in split_span(starts, until, self._options.batch_records):
            if stop.is_set():
                return
            ranges = {"startingOffsets": offsets_to_json(span.start), "endingOffsets": offsets_to_json(span.end)}
            loaded = self._spark.read.format("kafka").options(**self._read_options(span.end), **ranges).load()
            frame, records, size = cache_with_size(to_raw(loaded))
            apply_batch(Batch(frame, span, records, size, identity))


class _SparkRun:
    """The state of one call of `run`."""

    def __init__(
        self,
        streaming: Callable[..., StreamingRecords],
        watch: TopicPoller,
        apply_batch: ApplyBatch,
        nothing: DataFrame,
        spark: SparkSession,
    ) -> None:
        self._streaming, self._watch, self._apply_batch = streaming, watch, apply_batch
        self._nothing, self._spark = nothing, spark
        self._handed = time.monotonic()
        self.position = Position()

    def announce(self, position: Position) -> None:
        """Deliver an empty batch for partitions that start here."""
        self._apply_batch(Batch(self._nothing, Span(position, position), 0, 0, self._watch.identity))
        self.position = self.position.advanced_to(position)
        self._handed = time.monotonic()

    def follow(self, stop: Stop, *, once: bool) -> None:
        """Read until `stop`, or with `once` up to the end of the stream. New partitions start a new query."""
        while not stop.is_set():
            if self.position:
                self.stream(stop, once=once)
            else:
                self.wait(stop)
            if once:
                return

    def wait(self, stop: Stop) -> None:
        """Wait while there is no partition."""
        stop.wait(WAIT)
        self._pause()

    def stream(self, stop: Stop, *, once: bool) -> None:
        """Run one query until `stop`, until its end with `once`, or until new partitions appear."""
        count = len(self.position)
        with closing(self._streaming(self.position, once=once)) as query:
            while not stop.is_set() and len(self.position) == count:
                batch = query.next(WAIT)
                if batch is not None:
                    self._apply(batch)
                elif query.has_ended():
                    return
                else:
                    self._pause()

    def _pause(self) -> None:
        if self._watch.is_due(()):
            fresh = self._watch.refresh(self.position, {p.topic for p in self.position})
            if fresh:
                self.announce(Position(fresh))
        if time.monotonic() - self._handed >= TICK:
            self.announce(Position())

    def _apply(self, batch: MicroBatch) -> None:
        if self._watch.is_due(()):
            self._watch.refresh(self.position, {p.topic for p in self.position})
        self._watch.note_answer()
        moved = [p for p, end in batch.end.items() if end > self.position[p]]
        span = Span(self.position.only(moved), batch.end.only(moved))
        frame, records, size = cache_with_size(to_session(batch.frame, self._spark))
        self._apply_batch(Batch(frame, span, records, size, self._watch.identity))
        self.position = self.position.advanced_to(batch.end)
        self._handed = time.monotonic()
        batch.applied.set()


# Spark's Kafka records as raw frames.

KNOWN = ("1582-10-15T00:00:00Z", "9999-12-31T23:59:59.999Z")
"""Times that Spark's reader returns unchanged: it shifts earlier ones, as days of the Julian calendar."""
NO_TIME = -1
"""The value in milliseconds of a record without a time in Kafka's protocol."""


def to_raw(loaded: DataFrame) -> DataFrame:
    """The columns of Spark's Kafka source as `domain.change.RAW`. Times outside `KNOWN` are null."""
    at = column("timestamp")
    earliest, latest = (sf.lit(text).cast("timestamp") for text in KNOWN)
    is_known = at.between(earliest, latest) & (sf.unix_millis(at) != NO_TIME)
    headers = sf.transform(column("headers"), lambda h: sf.struct(h["key"].alias("name"), h["value"].alias("value")))
    values = {"timestamp": sf.when(is_known, at), "headers": headers}
    schema = spark_schema(RAW)
    return loaded.select(
        [
            values.get(field.name, column(field.name)).cast(field.dataType).alias(field.name, metadata=field.metadata)
            for field in schema
        ]
    )


def cache_with_size(frame: DataFrame) -> tuple[DataFrame, int, int]:
    """See `adapters.spark.frames.cache_with_size`."""
    with translate_errors():
        return frames.cache_with_size(frame)


def split_span(start: Mapping[TopicPartition, int], until: Position, records: int) -> Iterator[Span]:
    """The range from `start` to `until` in adjacent spans of at most `records` offsets per partition."""
    at = {p: offset for p, offset in start.items() if offset < until[p]}
    while at:
        end = {p: min(until[p], offset + records) for p, offset in at.items()}
        yield Span(Position(at), Position(end))
        at = {p: offset for p, offset in end.items() if offset < until[p]}


def offsets_to_json(position: Mapping[TopicPartition, int]) -> str:
    """The value of Spark's `startingOffsets` and `endingOffsets`."""
    out: dict[str, dict[str, int]] = {}
    for partition, offset in position.items():
        out.setdefault(partition.topic, {})[str(partition.partition)] = offset
    return json.dumps(out)


def partitions_to_json(position: Mapping[TopicPartition, int]) -> str:
    """The value of Spark's `assign`."""
    out: dict[str, list[int]] = {}
    for partition in position:
        out.setdefault(partition.topic, []).append(partition.partition)
    return json.dumps(out)
