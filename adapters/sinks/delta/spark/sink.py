"""The Delta sink for Spark: executors write the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame

from replicator.domain.policy.plan import ApplyPlan, LaneState
from replicator.ports.frames import Lane
from replicator.ports.sink import LaneArtifact, SinkFeatures

from ....apply.explain import explain
from ....delta.errors import translate_errors
from ....delta.options import LakeOptions
from ....delta.tables import has_table, to_stored_plan
from ....spark.catalog import CatalogNames
from ....spark.session import split_options_lazily
from ....spark.table_writer import SparkTableWriter
from ....sql.dialect import SPARK
from ....sql.views import find_lane_view, find_view
from ..lanes import DeltaLanes
from ..mirror_sink import MirrorSink
from ..options import DeltaSettings
from .absorbed_changes import SparkAbsorbedChanges
from .column_versions_table import SparkColumnVersions
from .lane_sink import SparkLaneSink
from .mirror import SparkMirror
from .tombstones import SparkTombstones

AT_ONCE = 4
"""Tables merged in parallel: a MERGE spends half its time on one thread of the driver."""


class DeltaSparkSink(SparkLaneSink, MirrorSink[DataFrame]):
    """`ports.sink.Sink` over `pyspark.sql.DataFrame`; options: see `DeltaSettings`.

    Tables, positions, locks and tombstones are the same as those of `DeltaRsSink`, so a lane can change between
    the two. Tables with liquid clustering are an exception. Other tables are created and widened by delta-rs on
    the driver; only the executors read and write rows.

    With a `schema`, each table and its view have a name in the catalog. `prepare` creates it; for a lane with a
    position, the first `state` does. Both raise an error if the catalog prevents it; no row is applied before.
    """

    def __init__(self, options: DeltaSettings | Mapping[str, Any]) -> None:
        own, session = split_options_lazily(options)
        settings = DeltaSettings.read(own)
        said = LakeOptions.from_settings(settings)
        lake = said.lake
        session.add_store(lake.root, said.storage)
        every = said.compact_every
        tombstones = SparkTombstones(session, lake, every)
        absorbed_changes, column_versions = (
            SparkAbsorbedChanges(session, lake, every),
            SparkColumnVersions(session, lake, every),
        )
        stages, writer = SparkMirror(session, tombstones, absorbed_changes, column_versions), SparkTableWriter(session)
        lanes = DeltaLanes(
            lake,
            lambda lane: lake.table(lane.into),
            stages,
            at_once=AT_ONCE,
            compact_every=every,
            vacuum=said.vacuum,
            writer=writer,
        )
        self._session = session
        schema = settings.schema_name
        self._names = None if schema is None else CatalogNames(session, schema, lambda lane: lake.table(lane.into))
        super().__init__(lake, lanes, tombstones, writer)

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
        found = super().list_artifacts(lane)
        if self._names is None:
            return found
        with translate_errors(lane.into):
            kind, there = self._lanes.read_remains(lane).find_kind(), has_table(self._lake.table(lane.into))
        if kind == "none" and there:
            # The table belongs to others, who may have registered it under its name.
            return found
        return [*found, *self._names.list_artifacts(lane, stays=kind == "found")]

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
