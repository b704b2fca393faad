"""Replaces a lane's table by its rebuild: one commit of the lane has its rows, its columns and its state.

The commit overwrites the table. A renamed folder would take two steps, lose the history, break readers at work, and
does not exist in object stores.

Tombstones and schemas are in other files. So the state of that commit names the table to copy them from, and
the next holder of the lane copies them before anything else. A mark next to the positions shows that there may
be such a state. It is written first and removed last.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from deltalake import DeltaTable

from replicator.domain.errors import DataLoss, Fatal
from replicator.domain.policy.plan import LaneState
from replicator.ports.frames import Lane
from replicator.ports.sink import CutoverDecision, StoredLane

from ...apply.ownership import is_owned
from ...delta.commits import Operation
from ...delta.folders import Folder
from ...delta.lake import Lake
from ...delta.partitions import partition_columns, refuse_unnameable
from ...delta.table_writer import TableWriter, TargetColumn, overwrite_table
from ...delta.tables import has_table, open_table, read_schema
from .lane import open_lane_log

MARK = "swapping.json"
Forget = Callable[[], None]
"""Drops this process's cached data about side tables."""


class SwapLane(Protocol):
    """A lane that this instance holds."""

    lane: Lane

    def newest(self) -> DeltaTable:
        """Its table."""

    def state(self) -> LaneState | None:
        """Its state."""

    def set_properties(self, wanted: Mapping[str, str]) -> None:
        """Sets properties that its table does not have."""

    def record_state(self, state: LaneState | None, write: Operation | None = None) -> None:
        """Commits `write` with this state."""


def swap_tables(
    lake: Lake, lanes: tuple[SwapLane, SwapLane], judge: CutoverDecision, writer: TableWriter, forget: Forget
) -> LaneState:
    """See `ports.sink.SinkFeatures.swap`, for two held lanes. The second one has the new rows."""
    held, rebuilt = lanes
    source, made = rebuilt.newest(), rebuilt.state()
    if made is None:
        raise Fatal(f"{rebuilt.lane.id} is empty, so it cannot replace {held.lane.id}")
    _refuse_unswappable(held, source)
    state = judge(held.state(), made)
    lake.positions(held.lane.pipeline, held.lane.id).put(MARK, {"format": 1})
    held.set_properties(source.metadata().configuration)
    columns = [TargetColumn(field.name, field) for field in read_schema(source)]
    held.record_state(replace(state, copied_from=rebuilt.lane.into), writer.replace_with(source, columns))
    forget()
    return finish_swap(lake, held) or state


def finish_swap(lake: Lake, held: SwapLane) -> LaneState | None:
    """Finishes a swap that was killed at any point; returns the lane's state after it, None when there is
    nothing to finish."""
    positions = lake.positions(held.lane.pipeline, held.lane.id)
    if not positions.has_file(MARK):
        return None
    state = held.state()
    if state is not None and state.copied_from:
        state = _copy_side_tables(lake, held.lane, state)
        held.record_state(state)
    positions.drop(MARK)
    return state


def _refuse_unswappable(held: SwapLane, source: DeltaTable) -> None:
    table = held.newest()
    if not is_owned(table.metadata().description):
        raise Fatal(
            f"table {held.lane.into} existed before lane {held.lane.id}, and keeps its own rows",
            next_step="Name another table with `--into`.",
        )
    if partition_columns(table) and not partition_columns(source):
        raise Fatal(
            f"table {held.lane.into} is partitioned, but its rebuild is not, and no commit can change that",
            next_step=f"Name another table with `--into`, or `replicator drop {held.lane.id}` and load it.",
        )


def _copy_side_tables(lake: Lake, lane: Lane, state: LaneState) -> LaneState:
    """Copies the side tables of the rebuild. Returns the lane's state afterwards; may be repeated."""
    if not has_table(lake.table(state.copied_from)):
        raise DataLoss(
            f"the rows of lane {lane.id} came from table {state.copied_from}, which does not exist any more, so its "
            "tombstones are lost",
            next_step=f"Load the lane again with `replicator lanes resync {lane.id}`.",
        )
    version = copy_table(lake.tombstones(state.copied_from), lake.tombstones(lane.into), state.side_table_version, lane.into)
    schemas, own = lake.schemas(state.copied_from), lake.schemas(lane.into)
    for name in own.files():
        own.drop(name)
    for name in schemas.files():
        own.put(name, json.loads(schemas.load(name)))
    return replace(state, copied_from="", side_table_version=None if state.side_table_version is None else version)


def copy_table(source: Folder, target: Folder, version: int | None, name: str) -> int | None:
    """Replaces `target` by `source` (at `version`); returns the new version of `target`, None when `source`
    does not exist."""
    target.clear()
    if not has_table(source):
        return None
    found = open_table(source, version)
    settings = {key: value for key, value in found.metadata().configuration.items() if value is not None}
    made = DeltaTable.create(
        target.uri, read_schema(found), name=name, configuration=settings, storage_options=target.options
    )
    overwrite_table(made, found, [TargetColumn(field.name, field) for field in read_schema(found)])
    return int(made.version())


# A lane starts from the stored state of a lane of another lake: rows, side table and position.


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
