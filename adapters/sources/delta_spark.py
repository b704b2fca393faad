"""The source that reads an event log on Spark's executors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from replicator.domain.change import RAW, RAW_RECORD_POSITION
from replicator.domain.position import Span
from replicator.ports.adapter_options import ROWS
from replicator.ports.frames import Batch

from ..event_log import to_raw
from ..spark.errors import translate_error
from ..spark.frames import cache_with_size, column, map_frame
from ..spark.session import split_options_lazily, to_spark_path
from ..spark.types import spark_schema
from .delta_options import DeltaSourceSettings
from .delta_reader import FileRewritten, WindowSize
from .delta_table.source import RowsSource
from .event_log.delta_log import LogSnapshot, ReadWindow
from .event_log.delta_source import TIME, EventLogSource


def delta_spark_source(options: DeltaSourceSettings | Mapping[str, Any]) -> DeltaSparkSource | RowsSource:
    """The source for the configured `format`."""
    form = options.get("format") if isinstance(options, Mapping) else options.format
    return RowsSource(options) if form == ROWS else DeltaSparkSource(options)


class DeltaSparkSource(EventLogSource[DataFrame]):
    """`EventLogSource` whose frames are `pyspark.sql.DataFrame`. Its options, and `spark`.

    Executors read the records, from the table version for which the batch was planned. The driver reads the table's log.
    For files with several partitions it also reads the columns `partition` and `offset`, so it needs access to the
    folder. The bytes of a batch are known only after reading: `batch_bytes` limits the following batches.
    """

    def __init__(self, options: DeltaSourceSettings | Mapping[str, Any]) -> None:
        own, session = split_options_lazily(options)
        super().__init__(own)
        session.add_store(self._log.root, self._options.storage)
        self._spark = session.spark
        self._nothing = self._spark.createDataFrame([], spark_schema(RAW))

    def load(self, snapshot: LogSnapshot, window: ReadWindow, pace: WindowSize) -> Batch[DataFrame]:  # noqa: ARG002
        """One query, cached in Spark's storage."""
        if not window.files:
            return self.empty_batch(window.span)
        try:
            frame, records, size = cache_with_size(self._read_records(snapshot, window))
        except (Py4JError, PySparkException) as error:
            for file in window.files:
                if not file.path.exists():
                    raise FileRewritten(file.path) from error
            raise translate_error(error, f"reading the event log {self._log.root}") from error
        return Batch(frame, window.span, records, size)

    def empty_batch(self, span: Span) -> Batch[DataFrame]:
        """A batch without records."""
        return Batch(self._nothing, span, 0, 0)

    def _read_records(self, snapshot: LogSnapshot, window: ReadWindow) -> DataFrame:
        reader = self._spark.read.format("delta").option("versionAsOf", snapshot.version)
        topic, partition, offset = (column(name) for name in RAW_RECORD_POSITION)
        start, end = window.span.start, window.span.end
        ranges = [(topic == p.topic) & (partition == p.partition) & (offset >= start[p]) & (offset < end[p]) for p in end]
        rows = reader.load(to_spark_path(self._log.root.uri)).filter(reduce(or_, ranges))
        period = self._period
        if TIME.name in period.stored_schema.names:
            time = column(TIME.name)
            since = sf.lit(True) if period.since is None else time >= sf.lit(period.since)
            until = sf.lit(True) if period.until is None else time <= sf.lit(period.until)
            rows = rows.filter(time.isNull() | (since & until))
        rows = rows.select([column(name) for name in RAW.names])
        # A record may occur twice, in overlapping files or in a file that was compacted from such files.
        rows = rows.dropDuplicates(list(RAW_RECORD_POSITION))
        # Spark reads files in any order, and rows may have any order in them.
        return map_frame(rows.orderBy(*RAW_RECORD_POSITION), to_raw, RAW)
