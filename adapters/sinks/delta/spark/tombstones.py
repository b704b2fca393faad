"""The tombstones of a target on Spark, in the table of `sinks.delta.tombstones`."""

from __future__ import annotations

from deltalake import write_deltalake
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from replicator.domain.change import OP, Op
from replicator.domain.policy.plan import EVENT_ID, ApplyPlan, Facts, cdc_sequence_columns
from replicator.domain.position import Position
from replicator.domain.sequence import Sequence
from replicator.ports.frames import Lane

from ....delta.errors import translate_errors
from ....delta.folders import Folder
from ....delta.lake import Lake
from ....delta.maintenance import EVERY_COMMITS, TableMaintenance
from ....delta.tables import create_table, has_table, open_table, read_schema
from ....spark.frames import column, keep_parents
from ....spark.object_stores import to_spark_path
from ....spark.session import LazySession
from ..tombstones import EVENT, delete_entries, tombstone_columns

THROUGH_DRIVER = 10_000
"""The driver writes up to this number of deletes: an append takes Spark 1.8 s, and delta-rs 0.1 s."""


def applied_condition(applied: Position) -> Column:
    """See `sinks.delta.tombstones.select_applied`."""
    event = [sf.regexp_extract(column(EVENT_ID), EVENT.replace("?P<", "?<"), group) for group in (1, 2)]
    ends = [sf.lit(text) for p, offset in applied.items() for text in (f"{p.topic}-{p.partition}", offset)]
    end = sf.create_map(*ends)[event[0]] if ends else sf.lit(None)
    return sf.coalesce(event[1].cast("long") < sf.coalesce(end, sf.lit(0)), sf.lit(True))


def is_of_others(rows: DataFrame) -> Column:
    """See `sinks.delta.tombstones.exclude_rows`. An out-of-band write is small."""
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
        with translate_errors(f"tombstones of {lane.into}"):
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
        counted = applied_condition(applied) & is_of_others(rows) if again else applied_condition(applied)
        found = entries.filter(counted).groupBy([column(k) for k in plan.table.keys]).agg(newest)
        columns = [*(column(k) for k in plan.table.keys), *(sf.expr(f"newest.{n}").alias(n) for n in names)]
        return keep_parents(found.select(columns), rows)

    def forget(self, lane: Lane, plan: ApplyPlan, high: Sequence) -> None:
        """The driver deletes them."""
        path = self._ensure_table(lane, plan)
        with translate_errors(f"tombstones of {lane.into}"):
            delete_entries(open_table(path), plan, high)

    def drop(self, lane: Lane) -> None:
        """Deletes all tombstones of this lane's target."""
        path = self._lake.tombstones(lane.into)
        with translate_errors(f"tombstones of {lane.into}"):
            path.clear()

    def reopen(self, lane: Lane) -> None:
        """Does nothing: no table is cached."""

    def _ensure_table(self, lane: Lane, plan: ApplyPlan) -> Folder:
        path = self._lake.tombstones(lane.into)
        with translate_errors(f"tombstones of {lane.into}"):
            if not has_table(path):
                create_table(path, lane.into, tombstone_columns(plan, lane, self._lake), settings={}, partition_by=[])
        return path
