"""A lane that begins with what a lane of another lake has: its rows, what is kept beside them, and where it stands."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Protocol

from replicator.domain.errors import Fatal
from replicator.domain.table import Column
from replicator.ports.frames import Lane

from ..sql.made import made_for
from .lane import lane_log
from .layout import Lake
from .options import TableOptions
from .swapping import HeldLane, copied
from .table_writer import DeltaRsTableWriter, Kept
from .tables import create, exists, opened, schema_of


class FreshLane(HeldLane, Protocol):
    """A lane that this instance holds, and of which there is nothing."""

    def forget_snapshot(self) -> None:
        """Read its table anew next time."""


def can_begin(lane: Lane) -> bool:
    """Whether the lane's table is made as the lake of a snapshot has it."""
    options = TableOptions.of(lane)
    return not (options.partition_by or options.cluster_by)


def seed(lake: Lake, held: FreshLane, origin: Lane, path: str) -> None:
    """See `ports.state_snapshots.Seeds.seed`, of a lane that is held. What is beside the table comes first: without a state
    nobody looks at it."""
    there, lane = Lake.at(path), held.lane
    table = opened(there.table(origin.into))
    state = lane_log(there, there.table(origin.into), origin).state(table)
    if state is None:
        raise Fatal(f"the snapshot in {path} has no state of lane {origin.id}", next_step="Take another one.")
    if not exists(lake.table(lane.into)):
        columns = tuple(Column(field.name, field.type) for field in schema_of(table))
        create(lake.table(lane.into), lane.into, columns, settings={}, partition_by=[], remark=made_for(lane))
        held.forget_snapshot()
    version = copied(there.tombstones(origin.into), lake.tombstones(lane.into), state.beside, lane.into)
    schemas, own = there.schemas(origin.into), lake.schemas(lane.into)
    for name in schemas.files():
        own.put(name, json.loads(schemas.load(name)))
    rows = DeltaRsTableWriter().replaced_by(table, [Kept(field.name, field) for field in schema_of(table)])
    held.record(replace(state, took="", beside=None if state.beside is None else version), rows)
