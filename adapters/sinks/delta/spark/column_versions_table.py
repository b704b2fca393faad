"""The column versions of a lane on Spark, in the table of `sinks.delta.column_versions_table`."""

from __future__ import annotations

from secrets import token_hex
from typing import Any

import pyarrow as pa
from delta.tables import DeltaTable as SparkTable
from deltalake import DeltaTable
from pyspark.sql import DataFrame

from replicator.domain.policy.plan import ApplyPlan
from replicator.ports.frames import Lane

from ....apply.column_versions import BESIDE
from ....delta.commits import Attempt
from ....delta.errors import translate_errors
from ....delta.lake import Lake
from ....delta.maintenance import EVERY_COMMITS
from ....spark.merge import commit_session, confirm_commit, refuse_changed_table
from ....spark.object_stores import to_spark_path
from ....spark.session import LazySession
from ....sql.dialect import SPARK
from ..column_versions_table import DeltaColumnVersions
from .tombstones import THROUGH_DRIVER


class SparkColumnVersions(DeltaColumnVersions):
    """See `sinks.delta.column_versions_table.DeltaColumnVersions`."""

    def __init__(self, session: LazySession, lake: Lake, compact_every: int = EVERY_COMMITS) -> None:
        super().__init__(lake, compact_every)
        self._session = session

    def open_table(self, lane: Lane, plan: ApplyPlan, version: int | None, kept: pa.Schema) -> DeltaTable:
        table = super().open_table(lane, plan, version, kept)
        if version is None:
            # The table was recreated with old version numbers, and Spark caches tables by their path.
            spark: Any = self._session.spark
            log = spark._jvm.org.apache.spark.sql.delta.DeltaLog
            log.invalidateCache(spark._jsparkSession, spark._jvm.org.apache.hadoop.fs.Path(to_spark_path(table.table_uri)))
        return table

    def read_rows(self, table: DeltaTable) -> DataFrame:
        """All rows at the version of `table`: the key and the text."""
        reader = self._session.spark.read.format("delta").option("versionAsOf", table.version())
        return reader.load(to_spark_path(table.table_uri))

    def store(self, table: DeltaTable, rows: DataFrame, count: int, lane: Lane) -> int:
        """`write` for a frame with `count` rows; small frames are written by delta-rs on the driver.

        Raises LostRace when another writer committed first.
        """
        if count <= THROUGH_DRIVER:
            return self.write(table, rows.toArrow(), lane)
        with translate_errors(f"tombstones of {lane.into}"):
            self._upkeep.after_commit(table, table.version())
            app = f"replicator/{lane.pipeline}/{lane.id}/beside"
            attempt = Attempt(app, table.version() + 1, token_hex(8), self._path(lane))
            refuse_changed_table(table, attempt)
            with commit_session(self._session.spark, attempt) as spark:
                _merge_rows(SparkTable.forPath(spark, to_spark_path(table.table_uri)), rows)
            confirm_commit(table, attempt)
            return int(table.version())


def _merge_rows(table: SparkTable, rows: DataFrame) -> None:
    """The merge of `DeltaColumnVersions.write`."""
    q, keys = SPARK.quote_name, [name for name in rows.columns if name != BESIDE]
    text = f"s.{q(BESIDE)}"
    merger = table.alias("t").merge(rows.alias("s"), " AND ".join(f"t.{q(k)} = s.{q(k)}" for k in keys))
    merger = merger.whenMatchedDelete(f"{text} IS NULL").whenMatchedUpdate(set={q(BESIDE): text})
    merger.whenNotMatchedInsert(f"{text} IS NOT NULL", {q(n): f"s.{q(n)}" for n in (*keys, BESIDE)}).execute()
