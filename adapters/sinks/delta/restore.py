"""Starts a lane from the stored state of a lane of another lake: rows, side table and position."""

from __future__ import annotations

import json
from dataclasses import replace

from deltalake import DeltaTable

from replicator.domain.errors import Fatal
from replicator.domain.policy.plan import LaneState
from replicator.ports.checkpoints import StoredLane
from replicator.ports.frames import Lane

from ...delta.lake import Lake
from ...delta.partitions import partition_columns, refuse_unnameable
from ...delta.table_writer import TableWriter, TargetColumn
from ...delta.tables import open_table, read_schema
from .lane import open_lane_log
from .table_swap import SwapLane, copy_table


def restore_lane(lake: Lake, held: SwapLane, stored: StoredLane, writer: TableWriter) -> None:
    """See `ports.sink.SinkFeatures.restore_state`, for a lane that is held and whose table was created. The side
    tables come first: without a state nothing reads them."""
    there, origin, lane = Lake.at(stored.path), stored.lane, held.lane
    table, state = open_source_lane(there, origin)
    partitions = partition_columns(held.newest())
    refuse_unnameable(table, partitions)
    version = copy_table(there.tombstones(origin.into), lake.tombstones(lane.into), state.side_table_version, lane.into)
    schemas, own = there.schemas(origin.into), lake.schemas(lane.into)
    for name in schemas.files():
        own.put(name, json.loads(schemas.load(name)))
    rows = writer.replace_with(table, [TargetColumn(field.name, field) for field in read_schema(table)], partitions)
    held.record_state(
        replace(state, copied_from="", side_table_version=None if state.side_table_version is None else version), rows
    )


def open_source_lane(there: Lake, origin: Lane) -> tuple[DeltaTable, LaneState]:
    """The table of a lane of a checkpoint, and its state. Raises Fatal when it has none."""
    table = open_table(there.table(origin.into))
    state = open_lane_log(there, there.table(origin.into), origin).state(table)
    if state is None:
        raise Fatal(f"the snapshot in {there.root} has no state of lane {origin.id}", next_step="Take another one.")
    return table, state
