"""Delta Lake tables on a disk or in an object store, written in process by delta-rs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pyarrow as pa

from replicator.domain.plan import ApplyPlan
from replicator.ports.frames import Folded, Lane, LaneApplied, RejectRows, Write

from ..delta.beside import DeltaBeside
from ..delta.column_names import as_stored
from ..delta.lanes import Lanes
from ..delta.ledger import DeltaTombstoneLedger
from ..delta.marks import DeltaMarks
from ..delta.mirror import Mirror
from ..delta.mirrors import Mirrors
from ..delta.options import MirrorOptions
from ..sql.dialect import DELTA_RS, DUCKDB
from ..sql.explain import explain


class DeltaRsSink(Mirrors[pa.Table]):
    """`ports.sink.Sink` and `ports.reader.Reader` over `pyarrow.Table`; options: see `MirrorOptions`."""

    frame = pa.Table

    def __init__(self, options: Mapping[str, object]) -> None:
        said = MirrorOptions.checked(options)
        lake = said.lake
        ledger = DeltaTombstoneLedger(lake, said.compact_every)
        marks = DeltaMarks(lake, said.compact_every)
        stages = Mirror(ledger, marks, DeltaBeside(lake, said.compact_every))
        lanes = Lanes(lake, lambda lane: lake.table(lane.into), stages, compact_every=said.compact_every, vacuum=said.vacuum)
        super().__init__(lake, lanes, ledger)

    def loads(self, lane: Lane, plan: ApplyPlan) -> bool:
        """See `ports.laying.Loads.loads`."""
        return self._lanes.loads(lane, plan)

    def load(
        self, write: Write[pa.Table], parts: Iterable[Folded[pa.Table]], reject: RejectRows[pa.Table], folder: Path
    ) -> LaneApplied:
        """See `ports.laying.Loads.load`."""
        return self._lanes.load(write, parts, reject, folder)

    def explain(self, lane: Lane, plan: ApplyPlan) -> Mapping[str, str]:
        """See `ports.sink.Explains`."""
        self._layout(lane, plan)
        return explain(as_stored(plan), DELTA_RS, DELTA_RS.quoted(lane.into), repair=DUCKDB)
