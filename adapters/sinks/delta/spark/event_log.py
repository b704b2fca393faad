"""Executors append records to the event log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from replicator.domain.change import RAW_RECORD_POSITION
from replicator.domain.policy.plan import Counts, LaneState
from replicator.ports.frames import Write

from ....delta.options import LakeOptions
from ....spark.frames import column, keep_parents
from ....spark.merge import append_stage
from ....spark.rows import drop_applied
from ....spark.session import split_options_lazily
from ....stores import EventLogSettings
from ..event_log import DAY, LogClearing, LogTable, refuse_stored_records
from ..staged_write import StagedWrite
from .lane_sink import SparkLaneSink


class SparkLogAppend(LogClearing):
    """`sinks.delta.lane.WriteStages` for the event log, over Spark frames."""

    def stage(self, snapshot: DeltaTable, state: LaneState, write: Write[DataFrame]) -> StagedWrite:
        """Stages every row above the position. Only the position identifies redelivered records."""
        refuse_stored_records(snapshot, write, state.position)
        frame, trimmed = drop_applied(write, state.position, RAW_RECORD_POSITION)
        moment = sf.coalesce(column("timestamp"), column("ingested_at"))
        rows = keep_parents(frame.withColumn(DAY, sf.to_date(moment)), frame)
        counts = Counts(applied=write.folded.rows - trimmed, duplicate=trimmed)
        return StagedWrite(append_stage(rows) if counts.applied else None, replace(state), counts, None)


class DeltaSparkEventLog(SparkLaneSink, LogTable[DataFrame]):
    """The event log as one Delta table; options of `DeltaEventLog`, and `spark`."""

    def __init__(self, options: EventLogSettings | Mapping[str, Any]) -> None:
        own, self._session = split_options_lazily(options)
        said = LakeOptions.from_settings(EventLogSettings.read(own))
        lake = said.lake
        self._session.add_store(lake.root, said.storage)
        super().__init__(lake, SparkLogAppend(lake.root), said)
