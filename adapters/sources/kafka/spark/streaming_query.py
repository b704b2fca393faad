"""A streaming query with micro-batches that another thread than Spark's applies."""

from __future__ import annotations

import json
import logging
import math
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeAlias

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    SourceProgress,
    StreamingQueryListener,
    StreamingQueryProgress,
)
from pyspark.sql.streaming.query import StreamingQuery

from replicator.domain.errors import DataLoss, Fatal, ReplicatorError, Retryable, describe_reload_or_skip
from replicator.domain.position import Position, TopicPartition
from replicator.ports.source import Pace

from ....kafka.clients import SKIP
from ....spark.errors import translate_error as of_spark

log = logging.getLogger(__name__)
WAIT = 0.2
BEGUN = ("offsets", "commits")
"""Folders that every checkpoint has."""


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
        self._handed: SimpleQueue[MicroBatch] = SimpleQueue()
        self._closed = threading.Event()
        self._checkpoint = Path(tempfile.mkdtemp(prefix="replicator-checkpoint-"))
        writer = records.writeStream.foreachBatch(self._hand_over)
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        writer = writer.trigger(processingTime=every) if every is not None else writer.trigger(availableNow=True)
        self._query: StreamingQuery = writer.start()
        self.run_id = str(self._query.runId)

    def _hand_over(self, frame: DataFrame, number: int) -> None:
        """Wait in Spark's thread until the batch is applied."""
        batch = MicroBatch(frame, self._read_end(number))
        self._handed.put(batch)
        while not batch.applied.wait(WAIT) and not self._closed.is_set():
            pass

    def _read_end(self, number: int) -> Position:
        """The end of a micro-batch, which Spark wrote before the batch started."""
        lines = (self._checkpoint / "offsets" / str(number)).read_text(encoding="utf-8").splitlines()
        offsets: Mapping[str, Mapping[str, int]] = json.loads(lines[2])
        return Position({TopicPartition(t, int(p)): o for t, parts in offsets.items() for p, o in parts.items()})

    def next(self, seconds: float) -> MicroBatch | None:
        """The next batch; None if there is none within `seconds`. Raises the error that ended the query."""
        try:
            return self._handed.get(timeout=seconds)
        except Empty:
            if not self._query.isActive:
                self._raise()
            return None

    def has_ended(self) -> bool:
        """True if no batch will follow."""
        return not self._query.isActive and self._handed.empty()

    def close(self) -> None:
        """End the query. A query that waits for a broker ends only when Kafka's client gives up. This is harmless: it
        delivers nothing any more, and no other query uses its checkpoint."""
        self._closed.set()
        try:
            self._query.stop()
        except (Py4JError, PySparkException) as error:
            log.warning("The query over Kafka does not end yet: %s", str(error).partition("\n")[0])
        shutil.rmtree(self._checkpoint, ignore_errors=True)

    def _raise(self) -> None:
        error = self._query.exception()
        if error is None:
            return
        if self._is_gone(str(error)):
            raise Retryable("The checkpoint of the query over Kafka was deleted; another query goes on.") from error
        raise translate_error(error) from error

    def _is_gone(self, message: str) -> bool:
        """True if the checkpoint or a part of it was deleted."""
        missing = rf"{self._checkpoint.name}/\S+ does not exist|No such file or directory: '\S*{self._checkpoint.name}"
        return not all((self._checkpoint / name).is_dir() for name in BEGUN) or re.search(missing, message) is not None


# Progress of a streaming query, from Spark's listener events.

Offsets: TypeAlias = Mapping[str, Mapping[str, int]]


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
    lags = [lag for source in progress.sources if (lag := _read_lag(source)) is not None]
    return Pace(
        batch_seconds=progress.batchDuration / 1000,
        input_rows_per_second=_to_finite(progress.inputRowsPerSecond),
        processed_rows_per_second=_to_finite(progress.processedRowsPerSecond),
        lag_records=sum(lags) if lags else None,
    )


def _to_finite(rate: float) -> float:
    return round(rate, 1) if math.isfinite(rate) else 0.0


def _read_lag(source: SourceProgress) -> int | None:
    """The number of records between the end of a batch and the topics' ends when it was planned."""
    if not source.endOffset or not source.latestOffset:
        return None
    end: Offsets = json.loads(source.endOffset)
    latest: Offsets = json.loads(source.latestOffset)
    return sum(
        max(0, offset - end.get(topic, {}).get(partition, offset))
        for topic, partitions in latest.items()
        for partition, offset in partitions.items()
    )


# Errors of a query over Kafka as the program's own errors.

TOO_FAR = "a record has a time more than 292,271 years from 1970, and Spark's Kafka reader cannot read such a time"
STEP = f"Run this source with `engine: local`, or leave the record out with {SKIP} the record."
LOST = ("KAFKA_DATA_LOSS", "failOnDataLoss", "OffsetOutOfRange")


def translate_error(error: Exception) -> ReplicatorError:
    """The program's error for `error`."""
    text = str(error)
    if any(sign in text for sign in LOST):
        return DataLoss("The next records to read are gone from the broker.", next_step=describe_reload_or_skip())
    if "long overflow" in text:
        return Fatal(TOO_FAR, next_step=STEP)
    return of_spark(error, "reading from Kafka")


@contextmanager
def translate_errors() -> Iterator[None]:
    """Translate Spark's errors with `translate_error`."""
    try:
        yield
    except (Py4JError, PySparkException) as error:
        raise translate_error(error) from error
