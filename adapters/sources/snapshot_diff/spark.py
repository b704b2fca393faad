"""The snapshots source on Spark's executors."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from ...spark.session import split_options
from ..delta_table.spark import SparkTableRows
from .options import SnapshotsOptions
from .source import SnapshotJournalRows, make_poller


class SnapshotsSparkSource(SnapshotJournalRows[DataFrame], SparkTableRows):
    """`SnapshotJournalRows` with `pyspark.sql.DataFrame` as frames; its options, and `spark`.

    The driver processes and compares snapshots; executors read the journal. So both need access to the state folder.
    """

    def __init__(self, options: Mapping[str, object]) -> None:
        own, spark = split_options(options)
        read = SnapshotsOptions.read(own)
        self._intake = make_poller(read)
        super().__init__(read.rows_options(), str(read.journal), spark)
