"""What a history does not show of its changes, as a Delta table beside it that is only appended to."""

from __future__ import annotations

from threading import Lock

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from replicator.domain.change import OP
from replicator.domain.plan import ApplyPlan
from replicator.domain.position import Position
from replicator.domain.sequence import Sequence
from replicator.domain.table import Column
from replicator.ports.frames import Lane

from .errors import translating
from .folders import Folder
from .layout import Lake
from .ledger import applied_only, highest_of, others_only
from .related import lookup
from .table_writer import DeltaRsTableWriter
from .tables import create, exists, lacking, opened, schema_of
from .upkeep import EVERY_COMMITS, Upkeep


class DeltaMarks:
    """Changes that were taken into a version, and deletes that ended none. Who records holds the lane's lock.

    Written before the target's commit, so one may be of an attempt that died: none counts before its record is applied.
    """

    def __init__(self, lake: Lake, compact_every: int = EVERY_COMMITS) -> None:
        self._lake = lake
        self._upkeep = Upkeep(compact_every)
        self._recording = Lock()

    def record(self, lane: Lane, plan: ApplyPlan, marks: pa.Table) -> Sequence | None:
        """Remember `marks`, with `_op` and the target's columns; their highest sequence. Visible on return. Safe
        for use from several threads."""
        if not marks.num_rows:
            return None
        path = self._lake.tombstones(lane.into)
        with self._recording, translating(f"tombstones of {lane.into}"):
            table = opened_marks(path, lane, plan)
            schema = schema_of(table)
            columns = [marks[f.name].cast(f.type) if f.name in marks.column_names else _nothing(marks, f) for f in schema]
            write_deltalake(table, pa.table(columns, schema=schema), mode="append")
            self._upkeep.after_commit(table, table.version())
        return highest_of(plan, marks)

    def lookup(
        self, lane: Lane, plan: ApplyPlan, rows: pa.Table, related: pa.Table, applied: Position, *, again: bool = False
    ) -> pa.Table:
        """What is remembered of the keys in `rows`, a rows frame, and in `related`, with `_op` and the target's columns;
        what records at or above `applied` left is not there, nor, with `again`, what those of `rows` left."""
        path = self._lake.tombstones(lane.into)
        with translating(f"tombstones of {lane.into}"):
            table = opened_marks(path, lane, plan)
            found = lookup(table, schema_of(table).names, {k: _both(rows[k], related[k]) for k in plan.table.keys})
        found = applied_only(found, applied)
        return others_only(found, rows) if again else found


def _both(one: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.Array:
    return pc.unique(pa.chunked_array([*one.chunks, *other.cast(one.type).chunks], one.type))


def opened_marks(path: Folder, lane: Lane, plan: ApplyPlan) -> DeltaTable:
    """The table of marks at `path`, with every column of the plan's target."""
    columns = (Column(OP, pa.string()), *plan.target)
    if not exists(path):
        create(path, lane.into, columns, settings={}, partition_by=[])
    table = opened(path)
    missing = lacking(table, lane.into, columns)
    if missing:
        DeltaRsTableWriter().add_columns(table, missing)
    return table


def _nothing(rows: pa.Table, field: pa.Field) -> pa.Array:
    return pa.nulls(rows.num_rows, field.type)
