"""A table made anew in the place of a lane's own: one commit of the lane has its rows, its columns and its state.

What is kept beside a table (remembered deletes, schemas) is in files of its own. So the state of that commit says where it
is still to be taken from, and who takes the lane next takes it, before anything else. A mark beside the positions tells
that there may be such a state; it is put there first and goes last.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from deltalake import DeltaTable

from replicator.domain.errors import DataLoss, Fatal
from replicator.domain.plan import LaneState
from replicator.ports.frames import Lane
from replicator.ports.sink import Judge

from ..sql.made import is_made
from .commits import Operation
from .folders import Folder
from .layout import Lake
from .partitions import partition_columns
from .table_writer import Kept, TableWriter, overwrite
from .tables import exists, opened, schema_of

MARK = "swapping.json"
Forget = Callable[[], None]
"""Lets go of what this process knows of what is beside a table."""


class HeldLane(Protocol):
    """A lane that this instance holds."""

    lane: Lane

    def newest(self) -> DeltaTable:
        """Its table."""

    def state(self) -> LaneState | None:
        """Where it stands."""

    def set_properties(self, wanted: Mapping[str, str]) -> None:
        """Give its table the properties that it has not."""

    def record(self, state: LaneState | None, write: Operation | None = None) -> None:
        """Commit `write` with this state."""


def swap(lake: Lake, lanes: tuple[HeldLane, HeldLane], judge: Judge, writer: TableWriter, forget: Forget) -> LaneState:
    """See `ports.sink.Swaps.swap`, of two lanes that are held, the second of which has the rows."""
    held, rebuilt = lanes
    source, made = rebuilt.newest(), rebuilt.state()
    if made is None:
        raise Fatal(f"{rebuilt.lane.id} was not filled, so that nothing of it can be in the place of {held.lane.id}")
    _refuse(held, source)
    state = judge(held.state(), made)
    lake.positions(held.lane.pipeline, held.lane.id).put(MARK, {"format": 1})
    held.set_properties(source.metadata().configuration)
    columns = [Kept(field.name, field) for field in schema_of(source)]
    held.record(replace(state, took=rebuilt.lane.into), writer.replaced_by(source, columns))
    forget()
    return finish(lake, held) or state


def finish(lake: Lake, held: HeldLane) -> LaneState | None:
    """Do what is left of a swap, wherever it was killed; the lane's state after it, None where there is none left."""
    positions = lake.positions(held.lane.pipeline, held.lane.id)
    if not positions.holds(MARK):
        return None
    state = held.state()
    if state is not None and state.took:
        state = _taken(lake, held.lane, state)
        held.record(state)
    positions.drop(MARK)
    return state


def _refuse(held: HeldLane, source: DeltaTable) -> None:
    table = held.newest()
    if not is_made(table.metadata().description):
        raise Fatal(
            f"table {held.lane.into} was there before lane {held.lane.id} wrote to it, and keeps its own rows",
            next_step="Name another table with `--into`.",
        )
    if partition_columns(table) and not partition_columns(source):
        raise Fatal(
            f"table {held.lane.into} is partitioned, and anew it would not be, which no commit changes",
            next_step=f"Name another table with `--into`, or `replicator drop {held.lane.id}` and load it.",
        )


def _taken(lake: Lake, lane: Lane, state: LaneState) -> LaneState:
    """The lane's state once it has what was kept beside the table that its rows came from; may be repeated."""
    if not exists(lake.table(state.took)):
        raise DataLoss(
            f"the rows of lane {lane.id} came from table {state.took}, which is gone, and with it what it remembered",
            next_step=f"Load the lane again with `replicator lanes resync {lane.id}`.",
        )
    version = copied(lake.tombstones(state.took), lake.tombstones(lane.into), state.beside, lane.into)
    schemas, own = lake.schemas(state.took), lake.schemas(lane.into)
    for name in own.files():
        own.drop(name)
    for name in schemas.files():
        own.put(name, json.loads(schemas.load(name)))
    return replace(state, took="", beside=None if state.beside is None else version)


def copied(source: Folder, target: Folder, version: int | None, name: str) -> int | None:
    """Let `target` be what `source` is (at `version`); the version that it has then, None where there is nothing."""
    target.clear()
    if not exists(source):
        return None
    found = opened(source, version)
    settings = {key: value for key, value in found.metadata().configuration.items() if value is not None}
    made = DeltaTable.create(target.uri, schema_of(found), name=name, configuration=settings, storage_options=target.options)
    overwrite(made, found, [Kept(field.name, field) for field in schema_of(found)])
    return int(made.version())
