"""A streaming query with micro-batches that another thread than Spark's applies."""

from __future__ import annotations

import json
import logging
import re
import shutil
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from replicator.domain.errors import Retryable
from replicator.domain.position import Position, TopicPartition

from .errors import translate_error

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
        said: Mapping[str, Mapping[str, int]] = json.loads(lines[2])
        return Position({TopicPartition(t, int(p)): o for t, parts in said.items() for p, o in parts.items()})

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

    def _is_gone(self, said: str) -> bool:
        """True if the checkpoint or a part of it was deleted."""
        missing = rf"{self._checkpoint.name}/\S+ does not exist|No such file or directory: '\S*{self._checkpoint.name}"
        return not all((self._checkpoint / name).is_dir() for name in BEGUN) or re.search(missing, said) is not None
