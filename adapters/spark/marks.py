"""What a history does not show of its changes, written and read on the executors; the same table as `delta.marks`'."""

from __future__ import annotations

from deltalake import write_deltalake
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from replicator.domain.plan import ApplyPlan
from replicator.domain.position import Position
from replicator.ports.frames import Lane

from ..delta.errors import translating
from ..delta.layout import Lake
from ..delta.marks import opened_marks
from ..delta.tables import schema_of
from ..delta.upkeep import EVERY_COMMITS, Upkeep
from ..sql.history_events import PLACE
from .frames import column, derived
from .ledger import THROUGH_DRIVER, is_applied, of_others
from .session import Session
from .stores import place


class SparkMarks:
    """See `delta.marks.DeltaMarks`."""

    def __init__(self, session: Session, lake: Lake, compact_every: int = EVERY_COMMITS) -> None:
        self._session = session
        self._lake = lake
        self._upkeep = Upkeep(compact_every)

    def record(self, lane: Lane, plan: ApplyPlan, marks: DataFrame) -> bool:
        """Remember `marks`, with `_op` and columns of the target; True when there are any. Visible on return."""
        path = self._lake.tombstones(lane.into)
        marks = derived(marks.drop(PLACE), marks)
        few = marks.limit(THROUGH_DRIVER + 1).toArrow()
        if not few.num_rows:
            return False
        with translating(f"tombstones of {lane.into}"):
            table = opened_marks(path, lane, plan)
            if few.num_rows <= THROUGH_DRIVER:
                kinds = {f.name: f for f in schema_of(table)}
                columns = [few[n].cast(kinds[n].type) for n in few.column_names]
                write_deltalake(table, few.from_arrays(columns, names=few.column_names), mode="append", schema_mode="merge")
        if few.num_rows > THROUGH_DRIVER:
            marks.write.format("delta").mode("append").save(place(path.uri))
        with translating(f"tombstones of {lane.into}"):
            table = opened_marks(path, lane, plan)
            self._upkeep.after_commit(table, table.version())
        return True

    def lookup(
        self, lane: Lane, plan: ApplyPlan, rows: DataFrame, related: DataFrame, applied: Position, *, again: bool = False
    ) -> DataFrame:
        """What is remembered of the keys in `rows`, a rows frame, and in `related`, with `_op` and the target's columns;
        what records at or above `applied` left is not there, nor, with `again`, what those of `rows` left. `_place`: -1."""
        path = self._lake.tombstones(lane.into)
        with translating(f"tombstones of {lane.into}"):
            opened_marks(path, lane, plan)
        marks = self._session.spark.read.format("delta").load(place(path.uri))
        names = [column(k) for k in plan.table.keys]
        keys = rows.select(names).unionAll(related.select(names)).distinct()
        counted = is_applied(applied) & of_others(rows) if again else is_applied(applied)
        found = marks.filter(counted).join(keys, list(plan.table.keys), "left_semi")
        return derived(found.withColumn(PLACE, sf.lit(-1)), rows)
