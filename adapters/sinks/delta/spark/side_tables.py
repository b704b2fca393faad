"""The side table of a target on Spark: the tables of `sinks.delta.side_tables`."""

from __future__ import annotations

from secrets import token_hex
from typing import Any

import pyarrow as pa
from delta.tables import DeltaTable as SparkTable
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from replicator.domain.change import OP, Op
from replicator.domain.policy.plan import EVENT_ID, ApplyPlan, Facts, cdc_sequence_columns
from replicator.domain.position import Position
from replicator.domain.sequence import Sequence
from replicator.ports.frames import Lane

from ....apply.column_versions import BESIDE
from ....delta.commits import Attempt
from ....delta.errors import translate_errors
from ....delta.folders import Folder
from ....delta.lake import Lake
from ....delta.table_writer import EVERY_COMMITS, TableMaintenance
from ....delta.tables import create_table, has_table, open_table, read_schema
from ....spark.frames import column, keep_parents
from ....spark.merge import commit_session, confirm_commit, refuse_changed_table
from ....spark.session import LazySession, to_spark_path
from ....sql.dialect import SPARK
from ....sql.scd2_events import ROW_NUMBER
from ..side_tables import EVENT, DeltaColumnVersions, delete_entries, open_absorbed_changes, tombstone_columns

# Tombstones.

THROUGH_DRIVER = 10_000
"""The driver writes up to this number of deletes: an append takes Spark 1.8 s, and delta-rs 0.1 s."""


def applied_condition(applied: Position) -> Column:
    """See `sinks.delta.side_tables.select_applied`."""
    event = [sf.regexp_extract(column(EVENT_ID), EVENT.replace("?P<", "?<"), group) for group in (1, 2)]
    ends = [sf.lit(text) for p, offset in applied.items() for text in (f"{p.topic}-{p.partition}", offset)]
    end = sf.create_map(*ends)[event[0]] if ends else sf.lit(None)
    return sf.coalesce(event[1].cast("long") < sf.coalesce(end, sf.lit(0)), sf.lit(True))


def is_of_others(rows: DataFrame) -> Column:
    """See `sinks.delta.side_tables.exclude_rows`. An out-of-band write is small."""
    own = [row[0] for row in rows.select(column(EVENT_ID)).distinct().collect()]
    return ~column(EVENT_ID).isin(own)


class SparkTombstones:
    """`testing.sink_contract.TombstoneStore` over Spark frames, for rows frames only. The caller of `record` holds the
    lane's lock."""

    def __init__(self, session: LazySession, lake: Lake, compact_every: int = EVERY_COMMITS) -> None:
        self._session = session
        self._lake = lake
        self._upkeep = TableMaintenance(compact_every)

    def record(self, lane: Lane, plan: ApplyPlan, rows: DataFrame, facts: Facts) -> Sequence | None:
        """Stores the deletes among `rows`; returns an upper bound of their sequences, None when there are none."""
        if not (plan.reconcile.uses_tombstones and facts.has_deletes):
            return None
        path = self._ensure_table(lane, plan)
        names = [*plan.table.keys, *cdc_sequence_columns(plan.table.sequence), EVENT_ID]
        deletes = rows.filter(column(OP) == Op.DELETE.value).select([column(n) for n in names])
        few = deletes.limit(THROUGH_DRIVER + 1).toArrow()
        if few.num_rows > THROUGH_DRIVER:
            deletes.write.format("delta").mode("append").save(to_spark_path(path.uri))
        with translate_errors(f"{lane.into} (its side table)"):
            table = open_table(path)
            if 0 < few.num_rows <= THROUGH_DRIVER:
                write_deltalake(table, few.cast(read_schema(table)), mode="append")
            self._upkeep.after_commit(table, table.version())
        return facts.highest

    def lookup(self, lane: Lane, plan: ApplyPlan, rows: DataFrame, applied: Position, *, again: bool = False) -> DataFrame:
        """The highest sequence of each key. Tombstones of records at or above `applied` are left out.

        With `again`, tombstones of the records of `rows` are left out, too.
        """
        path = self._ensure_table(lane, plan)
        entries = self._session.spark.read.format("delta").load(to_spark_path(path.uri))
        names = cdc_sequence_columns(plan.table.sequence)
        newest = sf.max(sf.struct(*(column(n) for n in names))).alias("newest")
        condition = applied_condition(applied) & is_of_others(rows) if again else applied_condition(applied)
        tombstones = entries.filter(condition).groupBy([column(k) for k in plan.table.keys]).agg(newest)
        columns = [*(column(k) for k in plan.table.keys), *(sf.expr(f"newest.{n}").alias(n) for n in names)]
        return keep_parents(tombstones.select(columns), rows)

    def forget(self, lane: Lane, plan: ApplyPlan, high: Sequence) -> None:
        """The driver deletes them."""
        path = self._ensure_table(lane, plan)
        with translate_errors(f"{lane.into} (its side table)"):
            delete_entries(open_table(path), plan, high)

    def drop(self, lane: Lane) -> None:
        """Deletes all tombstones of this lane's target."""
        path = self._lake.tombstones(lane.into)
        with translate_errors(f"{lane.into} (its side table)"):
            path.clear()

    def reopen(self, lane: Lane) -> None:
        """Does nothing: no table is cached."""

    def _ensure_table(self, lane: Lane, plan: ApplyPlan) -> Folder:
        path = self._lake.tombstones(lane.into)
        with translate_errors(f"{lane.into} (its side table)"):
            if not has_table(path):
                create_table(path, lane.into, tombstone_columns(plan, lane, self._lake), settings={}, partition_by=[])
        return path


# The absorbed changes of scd2 targets.


class SparkAbsorbedChanges:
    """See `sinks.delta.side_tables.DeltaAbsorbedChanges`."""

    def __init__(self, session: LazySession, lake: Lake, compact_every: int = EVERY_COMMITS) -> None:
        self._session = session
        self._lake = lake
        self._upkeep = TableMaintenance(compact_every)

    def record(self, lane: Lane, plan: ApplyPlan, changes: DataFrame) -> bool:
        """Stores `changes`, with `_op` and columns of the target; True when there are any. They are visible on
        return."""
        path = self._lake.tombstones(lane.into)
        changes = keep_parents(changes.drop(ROW_NUMBER), changes)
        few = changes.limit(THROUGH_DRIVER + 1).toArrow()
        if not few.num_rows:
            return False
        with translate_errors(f"{lane.into} (its side table)"):
            table = open_absorbed_changes(path, lane, plan)
            if few.num_rows <= THROUGH_DRIVER:
                kinds = {f.name: f for f in read_schema(table)}
                columns = [few[n].cast(kinds[n].type) for n in few.column_names]
                write_deltalake(table, few.from_arrays(columns, names=few.column_names), mode="append", schema_mode="merge")
        if few.num_rows > THROUGH_DRIVER:
            changes.write.format("delta").mode("append").save(to_spark_path(path.uri))
        with translate_errors(f"{lane.into} (its side table)"):
            table = open_absorbed_changes(path, lane, plan)
            self._upkeep.after_commit(table, table.version())
        return True

    def lookup(
        self, lane: Lane, plan: ApplyPlan, rows: DataFrame, related: DataFrame, applied: Position, *, again: bool = False
    ) -> DataFrame:
        """See `DeltaAbsorbedChanges.lookup`. `_place` is -1."""
        path = self._lake.tombstones(lane.into)
        with translate_errors(f"{lane.into} (its side table)"):
            open_absorbed_changes(path, lane, plan)
        changes = self._session.spark.read.format("delta").load(to_spark_path(path.uri))
        names = [column(k) for k in plan.table.keys]
        keys = rows.select(names).unionAll(related.select(names)).distinct()
        condition = applied_condition(applied) & is_of_others(rows) if again else applied_condition(applied)
        matches = changes.filter(condition).join(keys, list(plan.table.keys), "left_semi")
        return keep_parents(matches.withColumn(ROW_NUMBER, sf.lit(-1)), rows)


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
        reader = self._session.spark.read.format("delta").option("versionAsOf", table.version())
        return reader.load(to_spark_path(table.table_uri))

    def store(self, table: DeltaTable, rows: DataFrame, count: int, lane: Lane) -> int:
        """`write` for a frame with `count` rows; small frames are written by delta-rs on the driver.

        Raises LostRace when another writer committed first.
        """
        if count <= THROUGH_DRIVER:
            return self.write(table, rows.toArrow(), lane)
        with translate_errors(f"{lane.into} (its side table)"):
            self._upkeep.after_commit(table, table.version())
            app = f"replicator/{lane.pipeline}/{lane.id}/beside"
            attempt = Attempt(app, table.version() + 1, token_hex(8), self._path(lane))
            refuse_changed_table(table, attempt)
            with commit_session(self._session.spark, attempt) as spark:
                q, keys = SPARK.quote_name, [name for name in rows.columns if name != BESIDE]
                text = f"s.{q(BESIDE)}"
                spark_table = SparkTable.forPath(spark, to_spark_path(table.table_uri)).alias("t")
                merger = spark_table.merge(rows.alias("s"), " AND ".join(f"t.{q(k)} = s.{q(k)}" for k in keys))
                merger = merger.whenMatchedDelete(f"{text} IS NULL").whenMatchedUpdate(set={q(BESIDE): text})
                merger.whenNotMatchedInsert(f"{text} IS NOT NULL", {q(n): f"s.{q(n)}" for n in (*keys, BESIDE)}).execute()
            confirm_commit(table, attempt)
            return int(table.version())
