"""The Delta sink: tables on a disk or in an object store, written in process by delta-rs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from replicator.domain.policy.plan import ApplyPlan
from replicator.ports.frames import FoldedChanges, Lane, LaneOutcome, RejectRows, Write
from replicator.ports.sink import BulkLoads, SinkFeatures

from ...apply.explain import explain
from ...delta.options import LakeOptions
from ...delta.tables import to_stored_plan
from ...sql.dialect import DELTA_RS, DUCKDB
from .lanes import DeltaLanes
from .mirror import DeltaMirror
from .mirror_sink import MirrorSink
from .options import DeltaSettings


class DeltaRsSink(MirrorSink[pa.Table]):
    """`ports.sink.Sink` over `pyarrow.Table`; options: see `DeltaSettings`."""

    frame = pa.Table

    def __init__(self, options: DeltaSettings | Mapping[str, Any]) -> None:
        said = LakeOptions.from_settings(DeltaSettings.read(options))
        lake = said.lake
        stages = DeltaMirror(lake, said.compact_every)
        lanes = DeltaLanes(
            lake, lambda lane: lake.table(lane.into), stages, compact_every=said.compact_every, vacuum=said.vacuum
        )
        super().__init__(lake, lanes, stages.tombstones)

    @property
    def features(self) -> SinkFeatures:
        return replace(super().features, bulk_load=BulkLoads(self.loads, self.load), explain=self.explain)

    def loads(self, lane: Lane, plan: ApplyPlan) -> bool:
        return self._lanes.loads(lane, plan)

    def load(
        self, write: Write[pa.Table], parts: Iterable[FoldedChanges[pa.Table]], reject: RejectRows[pa.Table], folder: Path
    ) -> LaneOutcome:
        return self._lanes.load(write, parts, reject, folder)

    def explain(self, lane: Lane, plan: ApplyPlan) -> Mapping[str, str]:
        self._layout_columns(lane, plan)
        return explain(to_stored_plan(plan), DELTA_RS, DELTA_RS.quote_name(lane.into), reconcile=DUCKDB)
