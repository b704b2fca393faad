"""Records appended to the event log by the executors."""

from __future__ import annotations

from dataclasses import replace

from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from replicator.domain.plan import Counts, LaneState
from replicator.ports.frames import Write

from ..delta.event_log import DAY, POSITION, Clearing, refuse_known
from ..delta.staged import Staged
from .frames import column, derived
from .trim import untouched
from .write import append_stage


class SparkAppending(Clearing):
    """`delta.lane.Stages` for the event log, over Spark's frames."""

    def stage(self, snapshot: DeltaTable, state: LaneState, write: Write[DataFrame]) -> Staged:
        """Every row above the position. Redelivery is told by the position alone."""
        refuse_known(snapshot, write, state.position)
        frame, trimmed = untouched(write, state.position, POSITION)
        moment = sf.coalesce(column("timestamp"), column("ingested_at"))
        rows = derived(frame.withColumn(DAY, sf.to_date(moment)), frame)
        counts = Counts(applied=write.folded.rows - trimmed, duplicate=trimmed)
        return Staged(append_stage(rows) if counts.applied else None, replace(state), counts, None)
