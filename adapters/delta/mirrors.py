"""What the sinks of mirrors in a lake have in common, whoever writes the rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

import pyarrow as pa

from replicator.domain.plan import ApplyPlan
from replicator.ports.frames import F, Lane
from replicator.ports.sink import SinkCapabilities

from .column_names import stored_columns
from .errors import translating
from .lane_sink import LaneSink
from .lanes import Lanes, refuse_lane
from .layout import Lake
from .reading import read_table, table_name
from .schemas import remember_schema
from .tables import create, exists, refuse_unsafe, widen

POLICIES = frozenset({"scd1", "append"})


class Ledger(Protocol):
    """Remembered deletes that can be forgotten."""

    def drop(self, lane: Lane) -> None:
        """Forget every delete of this lane's target."""


class Mirrors(LaneSink[F]):
    """`ports.sink.Sink` and `ports.reader.Reader` over a lake, but for the stages of a plan and their explanation.

    `tables` and `read` are safe for use from several threads.
    """

    capabilities = SinkCapabilities(atomic_across_lanes=False, policies=POLICIES)

    def __init__(self, lake: Lake, lanes: Lanes, ledger: Ledger) -> None:
        self._lake = lake
        self._ledger = ledger
        super().__init__(lanes)

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

    def reset(self, lane: Lane) -> None:
        """See `ports.sink.Sink.reset`. The table stays, empty, with its history; remembered deletes go."""
        super().reset(lane)
        self._ledger.drop(lane)

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
