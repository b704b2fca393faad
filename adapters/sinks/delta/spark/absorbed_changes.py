"""The absorbed changes of scd2 targets on Spark, in the table of `sinks.delta.absorbed_changes`."""

from __future__ import annotations

from deltalake import write_deltalake
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from replicator.domain.policy.plan import ApplyPlan
from replicator.domain.position import Position
from replicator.ports.frames import Lane

from ....delta.errors import translate_errors
from ....delta.lake import Lake
from ....delta.maintenance import EVERY_COMMITS, TableMaintenance
from ....delta.tables import read_schema
from ....spark.frames import column, keep_parents
from ....spark.object_stores import to_spark_path
from ....spark.session import LazySession
from ....sql.scd2_events import ROW_NUMBER
from ..absorbed_changes import open_absorbed_changes
from .tombstones import THROUGH_DRIVER, applied_condition, is_of_others


class SparkAbsorbedChanges:
    """See `sinks.delta.absorbed_changes.DeltaAbsorbedChanges`."""

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
        with translate_errors(f"tombstones of {lane.into}"):
            table = open_absorbed_changes(path, lane, plan)
            if few.num_rows <= THROUGH_DRIVER:
                kinds = {f.name: f for f in read_schema(table)}
                columns = [few[n].cast(kinds[n].type) for n in few.column_names]
                write_deltalake(table, few.from_arrays(columns, names=few.column_names), mode="append", schema_mode="merge")
        if few.num_rows > THROUGH_DRIVER:
            changes.write.format("delta").mode("append").save(to_spark_path(path.uri))
        with translate_errors(f"tombstones of {lane.into}"):
            table = open_absorbed_changes(path, lane, plan)
            self._upkeep.after_commit(table, table.version())
        return True

    def lookup(
        self, lane: Lane, plan: ApplyPlan, rows: DataFrame, related: DataFrame, applied: Position, *, again: bool = False
    ) -> DataFrame:
        """See `DeltaAbsorbedChanges.lookup`. `_place` is -1."""
        path = self._lake.tombstones(lane.into)
        with translate_errors(f"tombstones of {lane.into}"):
            open_absorbed_changes(path, lane, plan)
        changes = self._session.spark.read.format("delta").load(to_spark_path(path.uri))
        names = [column(k) for k in plan.table.keys]
        keys = rows.select(names).unionAll(related.select(names)).distinct()
        counted = applied_condition(applied) & is_of_others(rows) if again else applied_condition(applied)
        found = changes.filter(counted).join(keys, list(plan.table.keys), "left_semi")
        return keep_parents(found.withColumn(ROW_NUMBER, sf.lit(-1)), rows)
