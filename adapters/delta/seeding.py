"""A lane that begins with what a lane of another lake has: its rows, what is kept beside them, and where it stands."""

from __future__ import annotations

import json
from dataclasses import replace

from deltalake import DeltaTable

from replicator.domain.errors import Fatal
from replicator.domain.plan import LaneState
from replicator.ports.frames import Lane

from .lane import lane_log
from .layout import Lake
from .partitions import partition_columns, refuse_unnameable
from .swapping import HeldLane, copied
from .table_writer import Kept, TableWriter
from .tables import opened, schema_of


def seed(lake: Lake, held: HeldLane, origin: Lane, path: str, writer: TableWriter) -> None:
    """See `ports.state_snapshots.Seeds.seed`, of a lane that is held and whose table was made. What is beside the table
    comes first: without a state nobody looks at it."""
    there, lane = Lake.at(path), held.lane
    table, state = origin_of(there, origin)
    partitions = partition_columns(held.newest())
    refuse_unnameable(table, partitions)
    version = copied(there.tombstones(origin.into), lake.tombstones(lane.into), state.beside, lane.into)
    schemas, own = there.schemas(origin.into), lake.schemas(lane.into)
    for name in schemas.files():
        own.put(name, json.loads(schemas.load(name)))
    rows = writer.replaced_by(table, [Kept(field.name, field) for field in schema_of(table)], partitions)
    held.record(replace(state, took="", beside=None if state.beside is None else version), rows)


def origin_of(there: Lake, origin: Lane) -> tuple[DeltaTable, LaneState]:
    """The table of a lane of a snapshot, and its state; Fatal where it has none."""
    table = opened(there.table(origin.into))
    state = lane_log(there, there.table(origin.into), origin).state(table)
    if state is None:
        raise Fatal(f"the snapshot in {there.root} has no state of lane {origin.id}", next_step="Take another one.")
    return table, state
