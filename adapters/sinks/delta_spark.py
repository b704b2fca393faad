"""Delta Lake tables written by Spark's executors."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from replicator.domain.plan import ApplyPlan
from replicator.ports.frames import Lane

from ..delta.column_names import as_stored
from ..delta.lanes import Lanes
from ..delta.mirrors import Mirrors
from ..delta.options import LakeOptions
from ..spark.applying import SparkLaneSink
from ..spark.ledger import SparkTombstoneLedger
from ..spark.marks import SparkMarks
from ..spark.mirror import SparkMirror
from ..spark.session import split_later
from ..spark.table_writer import SparkTableWriter
from ..sql.dialect import SPARK
from ..sql.explain import explain

AT_ONCE = 4
"""Tables merged side by side: a MERGE spends half its time on one thread of the driver."""


class DeltaSparkSink(SparkLaneSink, Mirrors[DataFrame]):
    """`ports.sink.Sink` and `ports.reader.Reader` over `pyspark.sql.DataFrame`; options: see `LakeOptions`.

    The same tables, positions, locks and remembered deletes as `DeltaRsSink`: the two may follow each other, but for tables
    with liquid clustering. Others are made and widened by delta-rs on the driver; rows are read and written by the executors
    alone.
    """

    def __init__(self, options: Mapping[str, object]) -> None:
        own, session = split_later(options)
        said = LakeOptions.checked(own)
        lake = said.lake
        session.reaches(lake.root, said.storage)
        every = said.compact_every
        ledger = SparkTombstoneLedger(session, lake, every)
        stages, writer = SparkMirror(session, ledger, SparkMarks(session, lake, every)), SparkTableWriter(session)
        lanes = Lanes(lake, lambda lane: lake.table(lane.into), stages, at_once=AT_ONCE, compact_every=every, writer=writer)
        self._session = session
        super().__init__(lake, lanes, ledger, writer)

    def explain(self, lane: Lane, plan: ApplyPlan) -> Mapping[str, str]:
        """See `ports.sink.Explains`."""
        return explain(as_stored(plan), SPARK, SPARK.quoted(lane.into), fold=SPARK)
