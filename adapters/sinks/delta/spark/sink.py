"""Sinks in a lake on Spark: the Delta sink, the event log and the event store. Executors write the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pyarrow as pa
from deltalake import DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from replicator.domain.change import RAW_RECORD_POSITION
from replicator.domain.policy.plan import ApplyPlan, Counts, LaneState
from replicator.ports.frames import ApplyOutcome, Lane, RejectRows, Write
from replicator.ports.sink import LaneArtifact, SinkFeatures

from ....apply.explain import explain
from ....delta.commits import Attempt, LostRace
from ....delta.errors import translate_errors
from ....delta.options import LakeOptions
from ....delta.tables import has_table, to_stored_plan
from ....spark.catalog import CatalogNames
from ....spark.errors import translate_errors as translate_spark_errors
from ....spark.frames import column, from_arrow, keep_parents
from ....spark.merge import make_append_operation
from ....spark.rows import SinkOverFrames, drop_applied
from ....spark.session import LazySession, split_options_lazily
from ....spark.table_writer import SparkTableWriter
from ....sql.dialect import SPARK
from ....sql.render import find_lane_view, find_view
from ....stores import EventLogSettings, EventStoreSettings
from ..event_log import DAY, LogClearing, LogTable, refuse_stored_records
from ..event_store import APP, NAME, DeltaEventLanes, DeltaEventStore
from ..lane import PreparedCommit
from ..lanes import LaneSink
from ..options import DeltaSettings
from ..sink import MirrorSink
from .mirror import SparkMirror

# The common methods of sinks in a lake on Spark.


class SparkLaneSink(LaneSink[DataFrame]):
    """Translates Spark's errors. It must be the first base class of a sink, which sets `_session`."""

    frame = DataFrame
    _session: LazySession

    def apply(self, writes: Sequence[Write[DataFrame]], reject: RejectRows[DataFrame]) -> ApplyOutcome:
        with translate_spark_errors(f"writing {', '.join(write.lane.id for write in writes)}"):
            # Frames use the session that created them, which may not have this sink's store yet.
            _ = self._session.spark
            return super().apply(writes, reject)


# The Delta sink for Spark: executors write the tables.


class DeltaSparkSink(SparkLaneSink, MirrorSink[DataFrame]):
    """`ports.sink.Sink` over `pyspark.sql.DataFrame`; options: see `DeltaSettings`.

    Tables, positions, locks and tombstones are the same as those of `DeltaRsSink`, so a lane can change between
    the two. Tables with liquid clustering are an exception. Other tables are created and widened by delta-rs on
    the driver; only the executors read and write rows.

    With a `schema`, each table and its view have a name in the catalog. `prepare` creates it; for a lane with a
    position, the first `state` does. Both raise an error if the catalog prevents it; no row is applied before.
    """

    at_once = 4
    """A MERGE spends half its time on one thread of the driver."""

    def __init__(self, options: DeltaSettings | Mapping[str, Any]) -> None:
        own, session = split_options_lazily(options)
        settings = DeltaSettings.read(own)
        lake_options = LakeOptions.from_settings(settings)
        lake = lake_options.lake
        session.add_store(lake.root, lake_options.storage)
        preparer = SparkMirror(session, lake, lake_options.compact_every)
        super().__init__(lake, lake_options, preparer, preparer.side_tables, SparkTableWriter(session))
        self._session = session
        schema = settings.schema_name
        self._names = None if schema is None else CatalogNames(session, schema, self.find_table)

    @property
    def features(self) -> SinkFeatures:
        return replace(super().features, explain=self.explain)

    def prepare(self, lane: Lane, plan: ApplyPlan) -> None:
        """Raises ConfigProblem when a name in the catalog belongs to another table."""
        if self._names is not None:
            # Checked before the table is created, so that none is left without a name.
            self._names.refuse_foreign_name(lane, find_view(plan))
        super().prepare(lane, plan)
        if self._names is not None:
            self._names.ensure(lane, find_view(plan))

    def state(self, lane: Lane) -> LaneState | None:
        """At the start, `state` is called for every lane, also for lanes without new rows."""
        state = super().state(lane)
        if self._names is not None and state is not None:
            self._names.ensure_once(lane, find_lane_view(lane))
        return state

    def list_artifacts(self, lane: Lane) -> Sequence[LaneArtifact]:
        artifacts = super().list_artifacts(lane)
        if self._names is None:
            return artifacts
        with translate_errors(lane.into):
            kind, has_existing_table = self.read_remains(lane).find_origin(), has_table(self.find_table(lane))
        if kind == "none" and has_existing_table:
            # The table belongs to others, who may have registered it under its name.
            return artifacts
        return [*artifacts, *self._names.list_artifacts(lane, stays=kind == "found")]

    def drop(self, lane: Lane) -> None:
        """Removes the names last, after the table."""
        if not self.list_artifacts(lane):
            return
        super().drop(lane)
        if self._names is not None:
            self._names.remove_names(lane)

    def explain(self, lane: Lane, plan: ApplyPlan) -> Mapping[str, str]:
        self._layout_columns(lane, plan)
        stages = explain(to_stored_plan(plan), SPARK, SPARK.quote_name(lane.into), fold=SPARK)
        return stages if self._names is None else {**stages, **self._names.catalog_table(lane).stages(find_view(plan))}


# Executors append records to the event log.


class SparkLogAppend(LogClearing):
    """`sinks.delta.lane.CommitPreparer` for the event log, over Spark frames."""

    def prepare_commit(self, snapshot: DeltaTable, state: LaneState, write: Write[DataFrame]) -> PreparedCommit:
        """Appends every row above the position. Only the position identifies redelivered records."""
        refuse_stored_records(snapshot, write, state.position)
        frame, trimmed = drop_applied(write, state.position, RAW_RECORD_POSITION)
        moment = sf.coalesce(column("timestamp"), column("ingested_at"))
        rows = keep_parents(frame.withColumn(DAY, sf.to_date(moment)), frame)
        counts = Counts(applied=write.folded.rows - trimmed, duplicate=trimmed)
        return PreparedCommit(make_append_operation(rows) if counts.applied else None, replace(state), counts, None)


class DeltaSparkEventLog(SparkLaneSink, LogTable[DataFrame]):
    """The event log as one Delta table; options of `DeltaEventLog`, and `spark`."""

    def __init__(self, options: EventLogSettings | Mapping[str, Any]) -> None:
        own, self._session = split_options_lazily(options)
        lake_options = LakeOptions.from_settings(EventLogSettings.read(own))
        lake = lake_options.lake
        self._session.add_store(lake.root, lake_options.storage)
        super().__init__(lake, lake_options, SparkLogAppend(lake.root))


# The event store, written by Spark.


class SparkEventStore(DeltaEventStore):
    """`DeltaEventStore` with commits by Spark; its options, and `spark`.

    Spark appends after commits that happened meanwhile. The commit's transaction prevents this: of two commits
    with the same number, the second is refused or skipped, and this is detected.
    """

    def __init__(self, options: EventStoreSettings | Mapping[str, Any]) -> None:
        own, self._session = split_options_lazily(options)
        settings = EventStoreSettings.read(own)
        lake_options = LakeOptions.from_settings(settings)
        self._session.add_store(lake_options.lake.root, lake_options.storage)
        super().__init__(settings, SparkTableWriter(self._session))

    def _write(self, table: DeltaTable, rows: pa.Table, transaction: Transaction) -> None:
        """Also succeeds when the snapshot is not the newest one, if the newer commits stored no events."""
        attempt = Attempt(APP, transaction.version, str(uuid4()), self._path)
        with translate_spark_errors(f"writing {NAME}"):
            frame = from_arrow(self._session.spark, rows)
            try:
                make_append_operation(frame)(table, attempt)
            except LostRace as lost:
                raise CommitFailedError("another writer was first") from lost


def open_spark_event_lanes(options: EventStoreSettings | Mapping[str, Any]) -> SinkOverFrames:
    """`DeltaEventLanes` for Spark's frames. delta-rs commits on the driver."""
    own, session = split_options_lazily(options)
    return SinkOverFrames(DeltaEventLanes(own), session)
