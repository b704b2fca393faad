"""Changes that an scd2 target does not show, as an append-only side table in Delta."""

from __future__ import annotations

from threading import Lock

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from replicator.domain.change import OP
from replicator.domain.policy.plan import ApplyPlan
from replicator.domain.position import Position
from replicator.domain.table import Column
from replicator.ports.frames import Lane

from ...delta.errors import translate_errors
from ...delta.folders import Folder
from ...delta.lake import Lake
from ...delta.maintenance import EVERY_COMMITS, TableMaintenance
from ...delta.table_writer import DeltaRsTableWriter
from ...delta.tables import create_table, find_missing_columns, has_table, open_table, read_schema
from .row_lookup import lookup_rows
from .tombstones import exclude_rows, select_applied


class DeltaAbsorbedChanges:
    """The absorbed changes of scd2 targets: upserts within a version, and deletes that ended no version.

    The caller of `record` holds the lane's lock. Rows are written before the target's commit, so a failed
    attempt can leave rows behind. A row counts only once its record is applied.
    """

    def __init__(self, lake: Lake, compact_every: int = EVERY_COMMITS) -> None:
        self._lake = lake
        self._upkeep = TableMaintenance(compact_every)
        self._recording = Lock()

    def record(self, lane: Lane, plan: ApplyPlan, changes: pa.Table) -> None:
        """Stores `changes`, with `_op` and the target's columns. They are visible on return.

        Safe for use from several threads.
        """
        path = self._lake.tombstones(lane.into)
        with self._recording, translate_errors(f"tombstones of {lane.into}"):
            table = open_absorbed_changes(path, lane, plan)
            schema = read_schema(table)
            columns = [
                changes[f.name].cast(f.type) if f.name in changes.column_names else _empty_column(changes, f) for f in schema
            ]
            write_deltalake(table, pa.table(columns, schema=schema), mode="append")
            self._upkeep.after_commit(table, table.version())

    def lookup(self, lane: Lane, plan: ApplyPlan, rows: pa.Table, applied: Position, *, again: bool = False) -> pa.Table:
        """The absorbed changes of the keys in `rows`, with `_op` and the target's columns.

        Changes of records at or above `applied` are left out. With `again`, changes of the records of `rows`
        are, too.
        """
        path = self._lake.tombstones(lane.into)
        with translate_errors(f"tombstones of {lane.into}"):
            table = open_absorbed_changes(path, lane, plan)
            found = lookup_rows(table, read_schema(table).names, {key: pc.unique(rows[key]) for key in plan.table.keys})
        found = select_applied(found, applied)
        return exclude_rows(found, rows) if again else found


def open_absorbed_changes(path: Folder, lane: Lane, plan: ApplyPlan) -> DeltaTable:
    """The table of absorbed changes at `path`, with every column of the plan's target."""
    columns = (Column(OP, pa.string()), *plan.target)
    if not has_table(path):
        create_table(path, lane.into, columns, settings={}, partition_by=[])
    table = open_table(path)
    missing = find_missing_columns(table, lane.into, columns)
    if missing:
        DeltaRsTableWriter().add_columns(table, missing)
    return table


def _empty_column(rows: pa.Table, field: pa.Field) -> pa.Array:
    return pa.nulls(rows.num_rows, field.type)
