"""Delta Lake tables on a local disk, written in process by delta-rs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import pyarrow as pa

from replicator.domain.plan import ApplyPlan, LaneState
from replicator.ports.frames import Applied, Lane, RejectRows, Write
from replicator.ports.sink import SinkCapabilities

from ..delta.column_names import stored_columns
from ..delta.errors import translating
from ..delta.lanes import Lanes, refuse_lane
from ..delta.layout import Lake
from ..delta.ledger import DeltaTombstoneLedger
from ..delta.mirror import Mirror
from ..delta.options import LakeOptions
from ..delta.reading import read_table, table_name
from ..delta.schemas import remember_schema
from ..delta.tables import create, exists, refuse_unsafe, widen
from ..sql.dialect import DELTA_RS, DUCKDB
from ..sql.explain import explain

POLICIES = frozenset({"scd1", "append"})


class DeltaRsSink:
    """`ports.sink.Sink` and `ports.reader.Reader` over `pyarrow.Table`; option `path`, the lake's folder.

    Every lane commits alone. When one fails, the lanes before it in the same call are applied and stay so: the error
    carries a note that names them, and giving them again does nothing. Not safe for use from several threads, but for
    `state`, `tables` and `read`.
    """

    capabilities = SinkCapabilities(atomic_across_lanes=False, policies=POLICIES)
    frame = pa.Table

    def __init__(self, options: Mapping[str, object]) -> None:
        self._lake = Lake.at(LakeOptions.checked(options).path)
        self._ledger = DeltaTombstoneLedger(self._lake)
        self._lanes = Lanes(self._lake, lambda lane: self._lake.table(lane.into), Mirror(self._ledger))

    def prepare(self, lane: Lane, plan: ApplyPlan) -> None:
        """See `ports.sink.Sink.prepare`."""
        refuse_lane(lane, plan, POLICIES)
        with translating(lane.into):
            self._lake.refuse_collision(lane.into)
            held = self._lanes.hold(lane)
            path = self._lake.table(lane.into)
            if not exists(path):
                create(path, lane.into, stored_columns(plan.target), settings={}, partition_by=[])
                held.forget_snapshot()
            table = held.newest()
            refuse_unsafe(table, lane.into, plan.target)
            if widen(table, lane.into, plan.target):
                held.forget_snapshot()
            remember_schema(self._lake.schemas(lane.into), plan.table)

    def state(self, lane: Lane) -> LaneState | None:
        """See `ports.sink.Sink.state`."""
        return self._lanes.state(lane)

    def apply(self, writes: Sequence[Write[pa.Table]], reject: RejectRows[pa.Table]) -> Applied:
        """See `ports.sink.Sink.apply`; each lane must be prepared."""
        return self._lanes.apply(writes, reject)

    def skip(self, lane: Lane, state: LaneState) -> None:
        """See `ports.sink.Sink.skip`. Fatal when the lane has no table yet."""
        self._lanes.skip(lane, state)

    def reset(self, lane: Lane) -> None:
        """See `ports.sink.Sink.reset`. The table stays, empty, with its history; remembered deletes go."""
        self._lanes.reset(lane)
        self._ledger.drop(lane)

    def explain(self, lane: Lane, plan: ApplyPlan) -> Mapping[str, str]:
        """See `ports.sink.Explains`."""
        return explain(plan, DELTA_RS, DELTA_RS.quoted(lane.into), repair=DUCKDB)

    def close(self) -> None:
        """See `ports.sink.Sink.close`."""
        self._lanes.close()

    def tables(self) -> Sequence[str]:
        """See `ports.reader.Reader.tables`."""
        with translating("of the lake"):
            return [table_name(folder) for folder in self._lake.folders()]

    def read(
        self,
        name: str,
        *,
        version: int | None = None,
        as_of: datetime | None = None,
        where: str | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """See `ports.reader.Reader.read`."""
        with translating(name):
            return read_table(self._lake.table(name), name, version=version, as_of=as_of, where=where, limit=limit)
