"""Progress of a streaming query, from Spark's listener events."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    SourceProgress,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from replicator.ports.telemetry import Pace

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
