"""Records of backfills as a source for lanes on Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime

import pyarrow as pa
from pyspark.sql import DataFrame

from replicator.domain.position import Position
from replicator.ports.frames import Batch, Stop

from ...spark.frames import cache_frame, from_arrow
from ...spark.session import split_options
from .source import JournalSource


class JournalSparkSource:
    """`ports.backfill.BackfillJournal` over `pyspark.sql.DataFrame`. Options of `JournalSource`, and `spark`, `stores`.

    The driver reads the files, which are on its machine. Executors get the records of a batch in one Spark partition.
    """

    def __init__(self, options: Mapping[str, object]) -> None:
        own, self._spark = split_options(options)
        self._journal = JournalSource(own)

    def owns(self, topic: str) -> bool:
        return self._journal.owns(topic)

    def beginning(self) -> Position:
        return self._journal.beginning()

    def end(self) -> Position:
        return self._journal.end()

    def get_newest_time(self) -> datetime | None:
        return self._journal.get_newest_time()

    def read(self, start: Position, until: Position, apply_batch: Callable[[Batch[DataFrame]], None], stop: Stop) -> None:
        def apply_as_spark_frame(batch: Batch[pa.Table]) -> None:
            apply_batch(replace(batch, frame=cache_frame(from_arrow(self._spark, batch.frame).coalesce(1))))

        self._journal.read(start, until, apply_as_spark_frame, stop)
