"""Delta Lake tables written by Spark's executors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame

from replicator.domain.plan import ApplyPlan, LaneState
from replicator.ports.frames import Lane
from replicator.ports.sink import Belonging

from ..delta.column_names import as_stored
from ..delta.errors import translating
from ..delta.lanes import Lanes
from ..delta.mirrors import Mirrors
from ..delta.options import MirrorOptions
from ..delta.tables import exists
from ..spark.applying import SparkLaneSink
from ..spark.beside import SparkBeside
from ..spark.catalog import CatalogNames
from ..spark.ledger import SparkTombstoneLedger
from ..spark.marks import SparkMarks
from ..spark.mirror import SparkMirror
from ..spark.session import split_later
from ..spark.table_writer import SparkTableWriter
from ..sql.dialect import SPARK
from ..sql.explain import explain
from ..sql.views import view_of, view_of_lane

AT_ONCE = 4
"""Tables merged side by side: a MERGE spends half its time on one thread of the driver."""


class DeltaSparkSink(SparkLaneSink, Mirrors[DataFrame]):
    """`ports.sink.Sink` and `ports.reader.Reader` over `pyspark.sql.DataFrame`; options: see `MirrorOptions`.

    The same tables, positions, locks and remembered deletes as `DeltaRsSink`: the two may follow each other, but for tables
    with liquid clustering. Others are made and widened by delta-rs on the driver; rows are read and written by the executors
    alone.

    With a `schema` each table has its name there, and its view: from `prepare` on, and of a lane with a position from the
    first `state`. Both raise what keeps the catalog from that; no row is applied before.
    """

    def __init__(self, options: Mapping[str, object]) -> None:
        own, session = split_later(options)
        said = MirrorOptions.checked(own)
        lake = said.lake
        session.reaches(lake.root, said.storage)
        every = said.compact_every
        ledger = SparkTombstoneLedger(session, lake, every)
        marks, beside = SparkMarks(session, lake, every), SparkBeside(session, lake, every)
        stages, writer = SparkMirror(session, ledger, marks, beside), SparkTableWriter(session)
        lanes = Lanes(
            lake,
            lambda lane: lake.table(lane.into),
            stages,
            at_once=AT_ONCE,
            compact_every=every,
            vacuum=said.vacuum,
            writer=writer,
        )
        self._session = session
        schema = said.schema_name
        self._names = None if schema is None else CatalogNames(session, schema, lambda lane: lake.table(lane.into))
        super().__init__(lake, lanes, ledger, writer)

    def prepare(self, lane: Lane, plan: ApplyPlan) -> None:
        """See `ports.sink.Sink.prepare`. ConfigProblem when a name in the catalog is somebody else's."""
        if self._names is not None:
            # Before there is a table that has no name.
            self._names.refuse_taken(lane, view_of(plan))
        super().prepare(lane, plan)
        if self._names is not None:
            self._names.ensure(lane, view_of(plan))

    def state(self, lane: Lane) -> LaneState | None:
        """See `ports.sink.Sink.state`. Every lane is asked for it at the start, also one that then has nothing to write."""
        state = super().state(lane)
        if self._names is not None and state is not None:
            self._names.remember(lane, view_of_lane(lane))
        return state

    def belongings(self, lane: Lane) -> Sequence[Belonging]:
        """See `ports.sink.Drops.belongings`."""
        found = super().belongings(lane)
        if self._names is None:
            return found
        with translating(lane.into):
            kind, there = self._lanes.remains(lane).kind(), exists(self._lake.table(lane.into))
        if kind == "none" and there:
            # The table is of others, who may have it under its name.
            return found
        return [*found, *self._names.belongings(lane, stays=kind == "found")]

    def drop(self, lane: Lane) -> None:
        """See `ports.sink.Drops.drop`. Names go last, when the table is gone."""
        if not self.belongings(lane):
            return
        super().drop(lane)
        if self._names is not None:
            self._names.forget(lane)

    def explain(self, lane: Lane, plan: ApplyPlan) -> Mapping[str, str]:
        """See `ports.sink.Explains`."""
        self._layout(lane, plan)
        stages = explain(as_stored(plan), SPARK, SPARK.quoted(lane.into), fold=SPARK)
        return stages if self._names is None else {**stages, **self._names.named(lane).stages(view_of(plan))}
