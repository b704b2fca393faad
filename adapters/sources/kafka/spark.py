"""The Kafka source on Spark's executors, with a streaming query whose micro-batches another thread applies."""

from __future__ import annotations

import json
import logging
import math
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)
from pyspark.sql.streaming.query import StreamingQuery

from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem, DataLoss, Fatal, ReplicatorError, Retryable, describe_reload_or_skip
from replicator.domain.position import Position, Span, TopicPartition
from replicator.ports.frames import Batch, ConsumeBatch, Stop
from replicator.ports.source import Pace, SourceFeatures

from ...kafka.clients import SKIP
from ...spark import frames
from ...spark.errors import translate_error
from ...spark.frames import column, to_session
from ...spark.session import split_options
from ...spark.types import spark_schema
from .options import KafkaSettings
from .source import KafkaSource
from .topic_poller import EMPTY_BATCH_SECONDS, STOP_CHECK_SECONDS, TopicPoller, retry_patiently

log = logging.getLogger(__name__)
CHECKPOINT_FOLDERS = ("offsets", "commits")
"""Folders that every checkpoint has."""


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
        if ENDPOINT in self._client:
            # Requests to the OAuth server must be allowed since Kafka 3.9.1. Executors of a cluster need
            # `spark.executor.extraJavaOptions`.
            jvm: Any = self._spark._jvm
            jvm.java.lang.System.setProperty(ALLOWED, self._client[ENDPOINT])
        self._nothing = self._spark.createDataFrame([], spark_schema(RAW))

    @property
    def features(self) -> SourceFeatures:
        return replace(super().features, engine="spark", pace=self.pace)

    def run(self, start: Position, consume_batch: ConsumeBatch[DataFrame], stop: Stop, *, once: bool) -> None:
        """See the port. Calls `consume_batch` in the caller's thread."""
        topics = retry_patiently(self._cluster.topics, self._options.patience_seconds, stop)
        if topics is None:
            return
        self._warn_unmatched(topics)
        with closing(TopicPoller(self._cluster, topics, self._options.patience_seconds, grow=not once)) as poller:
            run = _SparkRun(self._open_stream, poller, consume_batch, self._nothing, self._spark)
            run.announce(Position(self._find_starts(start, topics)))
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
        numbers: dict[str, list[int]] = {}
        for partition in position:
            numbers.setdefault(partition.topic, []).append(partition.partition)
        return {
            **{f"kafka.{name}": value for name, value in self._client.items()},
            "kafka.bootstrap.servers": self._options.bootstrap_servers,
            "kafka.isolation.level": "read_committed",
            "includeHeaders": "true",
            "failOnDataLoss": "true",
            # Otherwise few partitions would leave cores idle. Ranges of one partition stay in order.
            "minPartitions": str(self._spark.sparkContext.defaultParallelism),
            "assign": json.dumps(numbers),
        }

    def read(self, start: Position, until: Position, consume_batch: ConsumeBatch[DataFrame], stop: Stop) -> None:
        """See the port. An `until` above the stream's end is a DataLoss."""
        topics, starts = self._prepare_read(start, until)
        identity = {name: topic.id for name, topic in topics.items()}
        for span in split_span(starts, until, self._options.batch_records):
            if stop.is_set():
                return
            ranges = {"startingOffsets": offsets_to_json(span.start), "endingOffsets": offsets_to_json(span.end)}
            loaded = self._spark.read.format("kafka").options(**self._read_options(span.end), **ranges).load()
            frame, records, size = cache_with_size(to_raw(loaded))
            consume_batch(Batch(frame, span, records, size, identity))


class _SparkRun:
    """The state of one call of `run`."""

    def __init__(
        self,
        streaming: Callable[..., StreamingRecords],
        poller: TopicPoller,
        consume_batch: ConsumeBatch[DataFrame],
        nothing: DataFrame,
        spark: SparkSession,
    ) -> None:
        self._streaming, self._poller, self._consume_batch = streaming, poller, consume_batch
        self._nothing, self._spark = nothing, spark
        self._delivered_at = time.monotonic()
        self.position = Position()

    def announce(self, position: Position) -> None:
        """Deliver an empty batch for partitions that start here."""
        self._consume_batch(Batch(self._nothing, Span(position, position), 0, 0, self._poller.identity))
        self.position = self.position.advanced_to(position)
        self._delivered_at = time.monotonic()

    def follow(self, stop: Stop, *, once: bool) -> None:
        """Read until `stop`, or with `once` up to the end of the stream. New partitions start a new query."""
        while not stop.is_set():
            if self.position:
                self.stream(stop, once=once)
            else:
                stop.wait(STOP_CHECK_SECONDS)  # There is no partition yet.
                self._pause()
            if once:
                return

    def stream(self, stop: Stop, *, once: bool) -> None:
        """Run one query until `stop`, until its end with `once`, or until new partitions appear."""
        count = len(self.position)
        with closing(self._streaming(self.position, once=once)) as query:
            while not stop.is_set() and len(self.position) == count:
                batch = query.next(STOP_CHECK_SECONDS)
                if batch is None:
                    if query.has_ended():
                        return
                    self._pause()
                    continue
                new = (
                    self._poller.refresh(self.position, {p.topic for p in self.position}) if self._poller.is_due(()) else {}
                )
                self._poller.note_answer()
                moved = [p for p, end in batch.end.items() if end > self.position[p]]
                span = Span(self.position.only(moved), batch.end.only(moved))
                frame, records, size = cache_with_size(to_session(batch.frame, self._spark))
                self._consume_batch(Batch(frame, span, records, size, self._poller.identity))
                self.position = self.position.advanced_to(batch.end)
                self._delivered_at = time.monotonic()
                batch.applied.set()
                if new:
                    self.announce(Position(new))

    def _pause(self) -> None:
        if self._poller.is_due(()):
            fresh = self._poller.refresh(self.position, {p.topic for p in self.position})
            if fresh:
                self.announce(Position(fresh))
        if time.monotonic() - self._delivered_at >= EMPTY_BATCH_SECONDS:
            self.announce(Position())


# Spark's Kafka records as raw frames.

SPARK_TIMES = ("1582-10-15T00:00:00Z", "9999-12-31T23:59:59.999Z")
"""Times that Spark's reader returns unchanged: it shifts earlier ones, as days of the Julian calendar."""
NO_TIME = -1
"""The value in milliseconds of a record without a time in Kafka's protocol."""


def to_raw(loaded: DataFrame) -> DataFrame:
    """The columns of Spark's Kafka source as `domain.change.RAW`. Times outside `SPARK_TIMES` are null."""
    at = column("timestamp")
    earliest, latest = (sf.lit(text).cast("timestamp") for text in SPARK_TIMES)
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
    try:
        return frames.cache_with_size(frame)
    except (Py4JError, PySparkException) as error:
        raise translate_query_error(error) from error


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


# A streaming query.

Offsets: TypeAlias = Mapping[str, Mapping[str, int]]
"""Offsets by topic and partition, as Spark has them in JSON."""


@dataclass
class MicroBatch:
    """Records on the way from Spark's thread to the thread that applies them, with their end position."""

    frame: DataFrame
    end: Position
    applied: threading.Event = field(default_factory=threading.Event)


class StreamingRecords:
    """A query over assigned partitions, from given offsets. A batch starts in intervals of `every`; without it the query
    ends at the current end of the stream.

    Sinks store positions, so the checkpoint is only for this query and starts empty. A restart always has the same effect
    as the loss of a checkpoint.
    """

    def __init__(self, records: DataFrame, every: str | None) -> None:
        self._batches: SimpleQueue[MicroBatch] = SimpleQueue()
        self._closed = threading.Event()
        self._checkpoint = Path(tempfile.mkdtemp(prefix="replicator-checkpoint-"))
        writer = records.writeStream.foreachBatch(self._hand_over)
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        writer = writer.trigger(processingTime=every) if every is not None else writer.trigger(availableNow=True)
        self._query: StreamingQuery = writer.start()
        self.run_id = str(self._query.runId)

    def _hand_over(self, frame: DataFrame, number: int) -> None:
        """Wait in Spark's thread until the batch is applied."""
        # Spark wrote the end of the batch before the batch started.
        lines = (self._checkpoint / "offsets" / str(number)).read_text(encoding="utf-8").splitlines()
        offsets: Offsets = json.loads(lines[2])
        end = Position({TopicPartition(t, int(p)): o for t, parts in offsets.items() for p, o in parts.items()})
        batch = MicroBatch(frame, end)
        self._batches.put(batch)
        while not batch.applied.wait(STOP_CHECK_SECONDS) and not self._closed.is_set():
            pass

    def next(self, seconds: float) -> MicroBatch | None:
        """The next batch; None if there is none within `seconds`. Raises the error that ended the query."""
        try:
            return self._batches.get(timeout=seconds)
        except Empty:
            error = None if self._query.isActive else self._query.exception()
        if error is None:
            return None
        is_whole = all((self._checkpoint / name).is_dir() for name in CHECKPOINT_FOLDERS)
        missing = rf"{self._checkpoint.name}/\S+ does not exist|No such file or directory: '\S*{self._checkpoint.name}"
        if not is_whole or re.search(missing, str(error)):
            raise Retryable("The checkpoint of the query over Kafka was deleted; another query goes on.") from error
        raise translate_query_error(error) from error

    def has_ended(self) -> bool:
        """True if no batch will follow."""
        return not self._query.isActive and self._batches.empty()

    def close(self) -> None:
        """End the query. A query that waits for a broker ends only when Kafka's client gives up. This is harmless: it
        delivers nothing any more, and no other query uses its checkpoint."""
        self._closed.set()
        try:
            self._query.stop()
        except (Py4JError, PySparkException) as error:
            log.warning("The query over Kafka does not end yet: %s", str(error).partition("\n")[0])
        shutil.rmtree(self._checkpoint, ignore_errors=True)


# Progress of a streaming query, from Spark's listener events.


class ProgressListener(StreamingQueryListener):
    """Receives events of all queries in its session, and stores the progress of one of them."""

    def __init__(self) -> None:
        self.run_id = ""
        self.pace: Pace | None = None

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Does nothing: there is no progress yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Store the progress after a batch."""
        if str(event.progress.runId) == self.run_id:
            self.pace = to_pace(event.progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Set the rates to zero after some seconds without a record."""
        if str(event.runId) == self.run_id and self.pace is not None:
            self.pace = replace(self.pace, input_rows_per_second=0.0, processed_rows_per_second=0.0)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Does nothing: the next query continues."""


def to_pace(progress: StreamingQueryProgress) -> Pace:
    """The pace of a batch. Spark gives no finite rate after a division by zero."""
    lags = []
    for source in progress.sources:
        if source.endOffset and source.latestOffset:
            end: Offsets = json.loads(source.endOffset)
            latest: Offsets = json.loads(source.latestOffset)
            ends = [(offset, end.get(t, {}).get(p, offset)) for t, parts in latest.items() for p, offset in parts.items()]
            lags.append(sum(max(0, newest - read) for newest, read in ends))
    return Pace(
        batch_seconds=progress.batchDuration / 1000,
        input_rows_per_second=_to_finite(progress.inputRowsPerSecond),
        processed_rows_per_second=_to_finite(progress.processedRowsPerSecond),
        lag_records=sum(lags) if lags else None,
    )


def _to_finite(rate: float) -> float:
    return round(rate, 1) if math.isfinite(rate) else 0.0


# Errors of a query over Kafka as the program's own errors.

TOO_FAR = "a record has a time more than 292,271 years from 1970, and Spark's Kafka reader cannot read such a time"
STEP = f"Run this source with `engine: local`, or leave the record out with {SKIP} the record."
LOSS_SIGNS = ("KAFKA_DATA_LOSS", "failOnDataLoss", "OffsetOutOfRange")


def translate_query_error(error: Exception) -> ReplicatorError:
    """The program's error for `error`."""
    text = str(error)
    if any(sign in text for sign in LOSS_SIGNS):
        return DataLoss("The next records to read are gone from the broker.", next_step=describe_reload_or_skip())
    if "long overflow" in text:
        return Fatal(TOO_FAR, next_step=STEP)
    return translate_error(error, "reading from Kafka")


# librdkafka's settings as settings of the Java client, which Spark's executors use.

LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
BEARER = "org.apache.kafka.common.security.oauthbearer"
ALLOWED = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
SAME_SETTINGS = frozenset({"security.protocol", "ssl.key.password", "ssl.cipher.suites"})
PEM_FILES = {
    "ssl.ca.location": "ssl.truststore.certificates",
    "ssl.certificate.location": "ssl.keystore.certificate.chain",
    "ssl.key.location": "ssl.keystore.key",
}
PEM_TEXTS = {
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
}
OAUTH_PREFIX = "sasl.oauthbearer."
METHOD, ENDPOINT = f"{OAUTH_PREFIX}method", f"{OAUTH_PREFIX}token.endpoint.url"
CLIENT = {
    f"{OAUTH_PREFIX}client.id": "clientId",
    f"{OAUTH_PREFIX}client.secret": "clientSecret",
    f"{OAUTH_PREFIX}scope": "scope",
}
"""Names of options in the Java client's JAAS line (KIP-768)."""
OAUTH = (METHOD, ENDPOINT, *CLIENT)
MECHANISM = ("sasl.mechanism", "sasl.mechanisms")
CREDENTIALS = ("sasl.username", "sasl.password")
HOST_CHECK = "ssl.endpoint.identification.algorithm"


def java_client(security: Mapping[str, str]) -> dict[str, str]:
    """The Java client's settings for librdkafka's `security.*`, `sasl.*` and `ssl.*`. Contains secrets: never log it.

    Raises ConfigProblem that names an unsupported setting, or an unreadable file.
    """
    out: dict[str, str] = {}
    for name, value in security.items():
        if name in SAME_SETTINGS:
            out[name] = value
        elif name in PEM_FILES:
            # The driver sends the content: its paths do not exist on other machines.
            try:
                out[PEM_FILES[name]] = Path(value).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigProblem(
                    f"the file of {name} cannot be read as PEM: {type(error).__name__}",
                    next_step="Name a readable PEM file.",
                ) from error
        elif name in PEM_TEXTS:
            out[PEM_TEXTS[name]] = value
        elif name == HOST_CHECK:
            out[HOST_CHECK] = "" if value == "none" else value
        elif name not in (*MECHANISM, *CREDENTIALS, *OAUTH):
            raise _unsupported_error(name)
    for kind in ("truststore", "keystore"):
        if any(name.startswith(f"ssl.{kind}.") for name in out):
            out[f"ssl.{kind}.type"] = "PEM"
    return out | _login(security)


def _login(security: Mapping[str, str]) -> dict[str, str]:
    mechanism = next((security[name] for name in MECHANISM if name in security), None)
    if mechanism is None:
        return {}
    if mechanism == "OAUTHBEARER":
        # An OAuth server gives the token for a client id and secret (RFC 6749, 4.4).
        if security.get(METHOD) != "oidc" or ENDPOINT not in security:
            raise _unsupported_error(f"sasl.mechanism OAUTHBEARER without {METHOD} oidc and {ENDPOINT}")
        pairs = " ".join(f"{own}={_quote(security[name])}" for name, own in CLIENT.items() if name in security)
        return {
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": f"{BEARER}.OAuthBearerLoginModule required {pairs};",
            "sasl.login.callback.handler.class": f"{BEARER}.OAuthBearerLoginCallbackHandler",
            ENDPOINT: security[ENDPOINT],
        }
    if mechanism not in LOGIN:
        raise _unsupported_error(f"sasl.mechanism {mechanism}")
    user, password = (_quote(security.get(name, "")) for name in CREDENTIALS)
    return {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"{LOGIN[mechanism]} required username={user} password={password};",
    }


def _quote(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _unsupported_error(name: str) -> ConfigProblem:
    names = ", ".join(sorted([*SAME_SETTINGS, *PEM_FILES, *PEM_TEXTS, *MECHANISM, *CREDENTIALS, HOST_CHECK, *OAUTH]))
    return ConfigProblem(
        f"the security setting {name} has no counterpart in the Kafka client that Spark uses",
        next_step=f"On Spark these work: {names}; with {', '.join(LOGIN)}, OAUTHBEARER.",
    )
