"""The query source on Spark's executors."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from ...spark.session import split_options
from ..delta_table.spark import SparkTableRows
from ..snapshot_diff.source import SnapshotJournalRows
from .options import QueryOptions
from .source import QueryPoller


class QuerySparkSource(SnapshotJournalRows[DataFrame], SparkTableRows):
    """Like `QuerySource`; its options, and `spark`. The driver queries the database and writes the journal, executors
    read it. So both need access to the state folder."""

    def __init__(self, options: Mapping[str, object]) -> None:
        own, spark = split_options(options)
        read = QueryOptions.read(own)
        self._intake = QueryPoller(read)
        super().__init__(read.rows_options(), str(read.journal), spark)
