"""The source of snapshots whose changes are read by Spark's executors."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from ....spark.session import split
from ..rows.spark import RowsOnSpark
from .options import SnapshotsOptions
from .source import OfSnapshots, intake_of


class SnapshotsSparkSource(OfSnapshots[DataFrame], RowsOnSpark):
    """`OfSnapshots` whose frames are `pyspark.sql.DataFrame`; its options, and `spark`.

    The driver takes snapshots in and compares them; executors read the journal. So both must see the state folder.
    """

    def __init__(self, options: Mapping[str, object]) -> None:
        own, spark = split(options)
        read = SnapshotsOptions.read(own)
        self._intake = intake_of(read)
        super().__init__(read.rows(), str(read.journal), spark)
