"""The side table of a target on Spark: the tables of `sinks.delta.side_tables`."""

from __future__ import annotations

from secrets import token_hex
from typing import Any

import pyarrow as pa
from delta.tables import DeltaTable as SparkTable
from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from replicator.domain.change import OP, Op
from replicator.domain.policy.plan import EVENT_ID, ApplyPlan, cdc_sequence_columns
from replicator.domain.position import Position
from replicator.ports.frames import Lane

from ....apply.column_versions import COLUMN_VERSIONS
from ....delta.commits import Attempt
from ....delta.errors import translate_errors
from ....delta.lake import Lake
from ....delta.table_writer import EVERY_COMMITS
from ....spark.frames import column, keep_parents, read_version
from ....spark.merge import commit_session, confirm_commit, refuse_changed_table
from ....spark.session import LazySession, to_spark_path
from ....sql.dialect import SPARK
from ....sql.scd2_events import ROW_NUMBER
from ..side_tables import EVENT, DeltaColumnVersions, SideTables, append_rows

# Tombstones, and absorbed changes.

THROUGH_DRIVER = 10_000
"""The driver writes up to this number of rows: an append takes Spark 1.8 s, and delta-rs 0.1 s."""


def applied_condition(applied: Position) -> Column:
    """See `sinks.delta.side_tables.select_applied`."""
    event = [sf.regexp_extract(column(EVENT_ID), EVENT.replace("?P<", "?<"), group) for group in (1, 2)]
    ends = [sf.lit(text) for p, offset in applied.items() for text in (f"{p.topic}-{p.partition}", offset)]
    end = sf.create_map(*ends)[event[0]] if ends else sf.lit(None)
    return sf.coalesce(event[1].cast("long") < sf.coalesce(end, sf.lit(0)), sf.lit(True))


def is_of_others(rows: DataFrame) -> Column:
    """See `sinks.delta.side_tables.exclude_rows`. An out-of-band write is small."""
    own = [row[0] for row in rows.select(column(EVENT_ID)).distinct().collect()]
    return ~sf.coalesce(column(EVENT_ID).isin(own), sf.lit(False))


class SparkSideTables(SideTables):
    """`sinks.delta.side_tables.DeltaSideTables` over Spark frames, for rows frames only."""

    def __init__(self, session: LazySession, lake: Lake, compact_every: int = EVERY_COMMITS) -> None:
        super().__init__(lake, compact_every)
        self._session = session

    def open_table(self, lane: Lane, plan: ApplyPlan) -> DeltaTable:
        """The newest version, because Spark writes the table too."""
        self.reopen(lane)
        with translate_errors(f"{lane.into} (its side table)"):
            return super().open_table(lane, plan)

    def record(self, lane: Lane, plan: ApplyPlan, rows: DataFrame) -> bool:
        """Stores absorbed changes, or the deletes among `rows`; True when there are any. They are visible on return."""
        if plan.history is None:
            names = [*plan.table.keys, *cdc_sequence_columns(plan.table.sequence), EVENT_ID]
            stored_rows = rows.filter(column(OP) == Op.DELETE.value).select([column(n) for n in names])
        else:
            stored_rows = rows.drop(ROW_NUMBER)
        few = keep_parents(stored_rows, rows).limit(THROUGH_DRIVER + 1).toArrow()
        if not few.num_rows:
            return False
        table = self.open_table(lane, plan)
        if few.num_rows > THROUGH_DRIVER:
            stored_rows.write.format("delta").mode("append").save(self._spark_path(lane))
            table = self.open_table(lane, plan)
        with translate_errors(f"{lane.into} (its side table)"):
            if few.num_rows <= THROUGH_DRIVER:
                append_rows(table, few)
            self._upkeep.after_commit(table, table.version())
        return True

    def lookup_tombstones(
        self, lane: Lane, plan: ApplyPlan, rows: DataFrame, applied: Position, *, again: bool = False
    ) -> DataFrame:
        """The highest sequence of each key."""
        entries, names = self._read_applied(lane, plan, rows, applied, again), cdc_sequence_columns(plan.table.sequence)
        newest = sf.max(sf.struct(*(column(n) for n in names))).alias("newest")
        columns = [*(column(k) for k in plan.table.keys), *(sf.expr(f"newest.{n}").alias(n) for n in names)]
        return keep_parents(entries.groupBy([column(k) for k in plan.table.keys]).agg(newest).select(columns), rows)

    def lookup_absorbed(
        self, lane: Lane, plan: ApplyPlan, rows: DataFrame, related: DataFrame, applied: Position, *, again: bool = False
    ) -> DataFrame:
        """The absorbed changes of the keys in `rows` and `related`. `_place` is -1."""
        names = [column(k) for k in plan.table.keys]
        keys = rows.select(names).unionAll(related.select(names)).distinct()
        entries = self._read_applied(lane, plan, rows, applied, again).join(keys, list(plan.table.keys), "left_semi")
        return keep_parents(entries.withColumn(ROW_NUMBER, sf.lit(-1)), rows)

    def _read_applied(self, lane: Lane, plan: ApplyPlan, rows: DataFrame, applied: Position, again: bool) -> DataFrame:
        """The stored rows of records below `applied`. With `again`, without those of the records of `rows`."""
        self.open_table(lane, plan)
        entries = self._session.spark.read.format("delta").load(self._spark_path(lane))
        return entries.filter(applied_condition(applied) & is_of_others(rows) if again else applied_condition(applied))

    def _spark_path(self, lane: Lane) -> str:
        return to_spark_path(self._lake.tombstones(lane.into).uri)


# The column versions of a lane.


class SparkColumnVersions(DeltaColumnVersions):
    """See `sinks.delta.side_tables.DeltaColumnVersions`."""

    def __init__(self, session: LazySession, lake: Lake, compact_every: int = EVERY_COMMITS) -> None:
        super().__init__(lake, compact_every)
        self._session = session

    def open_table(self, lane: Lane, plan: ApplyPlan, version: int | None, target_schema: pa.Schema) -> DeltaTable:
        table = super().open_table(lane, plan, version, target_schema)
        if version is None:
            # The table was recreated with old version numbers, and Spark caches tables by their path.
            spark: Any = self._session.spark
            log = spark._jvm.org.apache.spark.sql.delta.DeltaLog
            log.invalidateCache(spark._jsparkSession, spark._jvm.org.apache.hadoop.fs.Path(to_spark_path(table.table_uri)))
        return table

    def read_rows(self, table: DeltaTable) -> DataFrame:
        """All rows at the version of `table`: the key and the text."""
        return read_version(self._session.spark, table.table_uri, table.version())

    def store(self, table: DeltaTable, rows: DataFrame, count: int, lane: Lane) -> int:
        """`write` for a frame with `count` rows; small frames are written by delta-rs on the driver.

        Raises LostRace when another writer committed first.
        """
        if count <= THROUGH_DRIVER:
            return self.write(table, rows.toArrow(), lane)
        with translate_errors(f"{lane.into} (its side table)"):
            self._upkeep.after_commit(table, table.version())
            app = f"replicator/{lane.pipeline}/{lane.id}/beside"
            attempt = Attempt(app, table.version() + 1, token_hex(8), self._lake.tombstones(lane.into))
            refuse_changed_table(table, attempt)
            with commit_session(self._session.spark, attempt) as spark:
                q, keys = SPARK.quote_name, [name for name in rows.columns if name != COLUMN_VERSIONS]
                text = f"s.{q(COLUMN_VERSIONS)}"
                spark_table = SparkTable.forPath(spark, to_spark_path(table.table_uri)).alias("t")
                merger = spark_table.merge(rows.alias("s"), " AND ".join(f"t.{q(k)} = s.{q(k)}" for k in keys))
                merger = merger.whenMatchedDelete(f"{text} IS NULL").whenMatchedUpdate(set={q(COLUMN_VERSIONS): text})
                names = (*keys, COLUMN_VERSIONS)
                merger.whenNotMatchedInsert(f"{text} IS NOT NULL", {q(n): f"s.{q(n)}" for n in names}).execute()
            confirm_commit(table, attempt)
            return int(table.version())
