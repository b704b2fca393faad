"""Removes a lane from a lake: its table, tombstones, schemas and positions.

A drop first writes a mark next to the positions, and removes it last. A lane with the mark is half dropped: its
state is not read or written until the drop is repeated. So a drop can be killed at any point, and the order in
which an object store deletes files does not matter.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Literal

from deltalake import DeltaTable

from replicator.domain.errors import DataLoss, Fatal, Fenced
from replicator.ports.frames import Lane
from replicator.ports.sink import LaneArtifact

from ...apply.ownership import is_owned, ownership_remark
from ...delta.commits import Attempt, LaneLog
from ...delta.folders import Folder
from ...delta.lake import HOME, Lake, decode_name
from ...delta.tables import has_table, read_schema

MARK = "dropping.json"
TABLE_ID = "table"
WRITTEN = "_cdc_seq_1"
"""Null only in rows from before replication started."""

Kind = Literal["none", "made", "found"]
"""The origin of the lane's table.

- `none`: it does not exist or belongs to others.
- `made`: this program created it.
- `found`: it existed before.
"""

STAYS = {
    "table": "it existed before the lane: the rows of the lane are removed, the table stays",
    "positions": "the last one stays, because the log of the table names it; the lane starts from scratch all the same",
}
"""The reasons why artifacts stay if the table existed before."""


def refuse_half_dropped(lake: Lake, lane: Lane) -> None:
    """Raises DataLoss for a lane with an unfinished drop."""
    if lake.positions(lane.pipeline, lane.id).has_file(MARK):
        raise DataLoss(
            f"lane {lane.id} is half dropped, so it cannot continue",
            next_step=f"`replicator drop {lane.id}` removes the rest. Then the lane can be loaded again.",
        )


def remove_rows(snapshot: DeltaTable, attempt: Attempt) -> None:
    """An `Operation` that deletes the rows that a lane wrote."""
    if WRITTEN in read_schema(snapshot).names:
        snapshot.delete(f'"{WRITTEN}" IS NOT NULL', commit_properties=attempt.properties)


class DeltaLaneRemains:
    """The artifacts of one lane in a lake. `log`: the lane's transactions in its table."""

    def __init__(self, lake: Lake, lane: Lane, log: LaneLog) -> None:
        self._lake = lake
        self._lane = lane
        self._log = log
        self._table = lake.table(lane.into)
        self._positions = lake.positions(lane.pipeline, lane.id)
        self._schemas = lake.schemas(lane.into)
        self._remembered = {"remembered deletes": lake.tombstones(lane.into), "schemas": self._schemas}

    def find_kind(self) -> Kind:
        """The origin of the table. If its log cannot be read, it belongs to the lane when the lane has positions."""
        if not has_table(self._table):
            return "none"
        try:
            snapshot = self._log.open()
        except DataLoss:
            return "made" if self._positions.files() else "none"
        if self._positions.has_file(MARK):
            return "made" if self._read_remark() in (None, str(snapshot.metadata().id)) else "none"
        remark = snapshot.metadata().description
        if remark != ownership_remark(self._lane) and not self._log.version(snapshot):
            return "none"
        return "made" if is_owned(remark) else "found"

    def list_artifacts(self) -> list[LaneArtifact]:
        kind, positions = self.find_kind(), bool(self._positions.files())
        if kind == "none" and not positions:
            return []
        # The log of a table that existed before still names a dropped lane.
        stands = kind != "found" or self._has_position()
        found = {"table": self._table} if stands and kind != "none" else {}
        found |= {what: folder for what, folder in self._remembered.items() if _has_content(folder)}
        found |= {"positions": self._positions} if stands and positions else {}
        return [
            LaneArtifact(what, str(folder), STAYS.get(what, "") if kind == "found" else "") for what, folder in found.items()
        ]

    def refuse_others(self) -> None:
        """Raises Fatal, before anything is removed, when another lane also writes the table, or the table's
        folder is a link."""
        for home in self._lake.other_writers(self._lane):
            other = f"lane {decode_name(home.name)} of pipeline {decode_name(home.parent.name)}"
            raise Fatal(
                f"table {self._lane.into} is written by {other} too; nothing was removed",
                next_step=f"If that lane does not exist any more, remove {home}, and repeat.",
            )
        # No table is in HOME, so every link leads out of it.
        if self._table.is_link_outside(self._lake.root / HOME):
            raise Fatal(
                f"the folder of table {self._lane.into} is a link; nothing was removed",
                next_step=f"Remove {self._table} and the folder that it leads to, and repeat the command. It then removes "
                "the state of the lane.",
            )

    def remove(self, kind: Kind, forget_deletes: Callable[[], None]) -> None:
        """Removes everything, for a table that is not `found`. The caller holds the lane.

        Raises Fenced when another instance wrote the lane meanwhile, which is possible only without a lock.
        """
        if not self._positions.has_file(MARK):
            self._positions.put(MARK, {"format": 1, TABLE_ID: self._table_id()})
        # First, because a writer of the lane checks the file of its last commit before each commit.
        for file in self._positions.files():
            if file != MARK:
                self._positions.drop(file)
        self.remove_side_files(forget_deletes)
        if kind == "made":
            self._table.clear()
        if (kind == "made" and _has_content(self._table)) or set(self._positions.files()) != {MARK}:
            raise Fenced(
                f"another instance wrote lane {self._lane.id} while it was dropped",
                next_step=f"Stop that instance, and repeat `replicator drop {self._lane.id}`.",
            )
        self._positions.clear()

    def remove_side_files(self, forget_deletes: Callable[[], None]) -> None:
        """Removes the tombstones and the schemas."""
        forget_deletes()
        self._schemas.clear()

    def _has_position(self) -> bool:
        """False for a lane that starts again."""
        try:
            return self._log.state(self._log.open()) is not None
        except DataLoss:
            return True

    def _table_id(self) -> str | None:
        """The id that distinguishes the table from a later one in the same folder; None when it cannot be read."""
        try:
            return str(self._log.open().metadata().id) if has_table(self._table) else None
        except DataLoss:
            return None

    def _read_remark(self) -> str | None:
        found: str | None = json.loads(self._positions.load(MARK))[TABLE_ID]
        return found


def _has_content(folder: Folder) -> bool:
    return bool(folder.files() or folder.folders())
