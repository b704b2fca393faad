"""The source that reads an event log, whose records stay on Spark's executors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from replicator.domain.change import RAW
from replicator.domain.position import Span, TopicPartition
from replicator.ports.frames import Batch

from ...arrow.logged import raw
from ...event_logs.frames import PLACE
from ...spark.errors import translated
from ...spark.frames import column, mapped, weighed
from ...spark.session import split_later
from ...spark.stores import place
from ...spark.types import spark_schema
from . import ROWS
from .backlog import Window
from .files import Rewritten
from .pace import Pace
from .reading import TIME, Period
from .rows.spark import RowsSparkSource
from .source import EventLogSource
from .table import Snapshot


def delta_spark_source(options: Mapping[str, object]) -> DeltaSparkSource | RowsSparkSource:
    """The source that reads the table in the way that `format` asks for."""
    return RowsSparkSource(options) if options.get("format") == ROWS else DeltaSparkSource(options)


class DeltaSparkSource(EventLogSource[DataFrame]):
    """`EventLogSource` whose frames are `pyspark.sql.DataFrame`; its options, and `spark`.

    Executors read the records, of the version of the table that the batch was planned on. The driver reads the table's log
    and, of files with several partitions, the columns `partition` and `offset`; so it must see the folder too. How many
    bytes a batch has is known only when it was read: `batch_bytes` bounds the ones that follow.
    """

    def __init__(self, options: Mapping[str, object]) -> None:
        own, session = split_later(options)
        super().__init__(own)
        session.reaches(self._log.table.root, self._options.storage)
        self._spark = session.spark
        self._nothing = self._spark.createDataFrame([], spark_schema(RAW))

    def load(self, snapshot: Snapshot, window: Window, pace: Pace) -> Batch[DataFrame]:  # noqa: ARG002
        """One query, kept in Spark's storage."""
        if not window.files:
            return self.nothing(window.span)
        try:
            frame, records, size = weighed(self._records(snapshot, window))
        except (Py4JError, PySparkException) as error:
            for file in window.files:
                if not file.path.exists():
                    raise Rewritten(file.path) from error
            raise translated(error, f"reading the event log {self._log.table.root}") from error
        return Batch(frame, window.span, records, size)

    def nothing(self, span: Span) -> Batch[DataFrame]:
        """A batch without records."""
        return Batch(self._nothing, span, 0, 0)

    def _records(self, snapshot: Snapshot, window: Window) -> DataFrame:
        reader = self._spark.read.format("delta").option("versionAsOf", snapshot.version)
        wanted = reduce(or_, (_is_between(p, window.span.start[p], end) for p, end in window.span.end.items()))
        rows = reader.load(place(self._log.table.root.uri)).filter(wanted)
        if TIME.name in self._period.stored.names:
            rows = rows.filter(_in(self._period))
        rows = rows.select([column(name) for name in RAW.names])
        # A record may be there twice, in files that overlap or in one that somebody compacted of such.
        rows = rows.dropDuplicates(list(PLACE))
        # Files are read in any order, and rows may lie in any order in them.
        return mapped(rows.orderBy(*PLACE), raw, RAW)


def _is_between(where: TopicPartition, start: int, end: int) -> Column:
    topic, partition, offset = (column(name) for name in PLACE)
    return (topic == where.topic) & (partition == where.partition) & (offset >= start) & (offset < end)


def _in(period: Period) -> Column:
    time = column(TIME.name)
    since = sf.lit(True) if period.since is None else time >= sf.lit(period.since)
    until = sf.lit(True) if period.until is None else time <= sf.lit(period.until)
    return time.isNull() | (since & until)
