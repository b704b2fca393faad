"""The source that asks a database, whose rows are then read by Spark's executors."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from ....spark.session import split
from ..rows.spark import RowsOnSpark
from ..snapshots.source import OfSnapshots
from .intake import QueryIntake
from .options import QueryOptions


class QuerySparkSource(OfSnapshots[DataFrame], RowsOnSpark):
    """As `QuerySource`; its options, and `spark`. The driver asks the database and writes the journal, which executors read:
    so both must see the state folder."""

    def __init__(self, options: Mapping[str, object]) -> None:
        own, spark = split(options)
        read = QueryOptions.read(own)
        self._intake = QueryIntake(read)
        super().__init__(read.rows(), str(read.journal), spark)
