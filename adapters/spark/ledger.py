"""Remembered deletes of a target, written and read on the executors; the same table as `delta.ledger`'s."""

from __future__ import annotations

from deltalake import write_deltalake
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from replicator.domain.change import OP, Op
from replicator.domain.plan import EVENT_ID, ApplyPlan, Facts, cdc_sequence_columns
from replicator.domain.sequence import Sequence
from replicator.ports.frames import Lane

from ..delta.errors import translating
from ..delta.folders import Folder
from ..delta.layout import Lake
from ..delta.ledger import forget_entries, ledger_columns
from ..delta.tables import create, exists, opened, schema_of
from ..delta.upkeep import EVERY_COMMITS, Upkeep
from .frames import column, derived
from .session import Session
from .stores import place

THROUGH_DRIVER = 10_000
"""Up to so many deletes of a batch are written by the driver: to append some rows Spark takes 1.8 s, delta-rs 0.1."""


class SparkTombstoneLedger:
    """`ports.sink.TombstoneLedger` over Spark's frames, for rows frames only. Who records holds the lane's lock."""

    def __init__(self, session: Session, lake: Lake, compact_every: int = EVERY_COMMITS) -> None:
        self._session = session
        self._lake = lake
        self._upkeep = Upkeep(compact_every)

    def record(self, lane: Lane, plan: ApplyPlan, rows: DataFrame, facts: Facts) -> Sequence | None:
        """Remember the deletes among `rows`; an upper bound of the sequences recorded now, None when there are none."""
        if not (plan.repair.ledger and facts.deletes):
            return None
        path = self._table(lane, plan)
        names = [*plan.table.keys, *cdc_sequence_columns(plan.table.sequence), EVENT_ID]
        deletes = rows.filter(column(OP) == Op.DELETE.value).select([column(n) for n in names])
        few = deletes.limit(THROUGH_DRIVER + 1).toArrow()
        if few.num_rows > THROUGH_DRIVER:
            deletes.write.format("delta").mode("append").save(place(path.uri))
        with translating(f"tombstones of {lane.into}"):
            table = opened(path)
            if 0 < few.num_rows <= THROUGH_DRIVER:
                write_deltalake(table, few.cast(schema_of(table)), mode="append")
            self._upkeep.after_commit(table, table.version())
        return facts.highest

    def lookup(self, lane: Lane, plan: ApplyPlan, rows: DataFrame) -> DataFrame:
        """The highest remembered sequence of each key; entries that the rows' own records made are left out."""
        path = self._table(lane, plan)
        entries = self._session.spark.read.format("delta").load(place(path.uri))
        own = rows.select(column(EVENT_ID)).distinct()
        others = entries.join(own, EVENT_ID, "left_anti")
        names = cdc_sequence_columns(plan.table.sequence)
        newest = sf.max(sf.struct(*(column(n) for n in names))).alias("newest")
        found = others.groupBy([column(k) for k in plan.table.keys]).agg(newest)
        columns = [*(column(k) for k in plan.table.keys), *(sf.expr(f"newest.{n}").alias(n) for n in names)]
        return derived(found.select(columns), rows)

    def forget(self, lane: Lane, plan: ApplyPlan, high: Sequence) -> None:
        """See `ports.sink.TombstoneLedger.forget`. Done by the driver."""
        path = self._table(lane, plan)
        with translating(f"tombstones of {lane.into}"):
            forget_entries(opened(path), plan, high)

    def drop(self, lane: Lane) -> None:
        """Forget every delete of this lane's target."""
        path = self._lake.tombstones(lane.into)
        with translating(f"tombstones of {lane.into}"):
            path.clear()

    def _table(self, lane: Lane, plan: ApplyPlan) -> Folder:
        path = self._lake.tombstones(lane.into)
        with translating(f"tombstones of {lane.into}"):
            if not exists(path):
                create(path, lane.into, ledger_columns(plan, lane, self._lake), settings={}, partition_by=[])
        return path
