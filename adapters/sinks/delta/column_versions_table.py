"""The column versions of a lane with a sequence for each column, as a side table in Delta: one row per key."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from replicator.domain.policy.plan import ApplyPlan
from replicator.domain.table import Column
from replicator.ports.frames import Lane

from ...apply.column_versions import BESIDE
from ...delta.commits import WRITER
from ...delta.errors import translate_errors
from ...delta.folders import Folder
from ...delta.lake import Lake
from ...delta.maintenance import EVERY_COMMITS, TableMaintenance
from ...delta.table_writer import DeltaRsTableWriter, TargetColumn
from ...delta.tables import create_table, has_table, open_table, read_schema
from ...sql.dialect import DELTA_RS
from .row_lookup import lookup_rows


class DeltaColumnVersions:
    """The caller of each method holds the lane's lock.

    The table is written before the target's commit, which stores the version that belongs to it
    (`LaneState.side_table_version`). Later versions are from a failed attempt, or from another writer that lost
    the lane. They are undone before anything is read.
    """

    def __init__(self, lake: Lake, compact_every: int = EVERY_COMMITS) -> None:
        self._lake = lake
        self._upkeep = TableMaintenance(compact_every)

    def open_table(self, lane: Lane, plan: ApplyPlan, version: int | None, kept: pa.Schema) -> DeltaTable:
        """The table at `version`, restored as its newest version; None: empty. `kept`: the target's columns."""
        path = self._path(lane)
        with translate_errors(f"tombstones of {lane.into}"):
            if version is None and has_table(path):
                path.clear()
            if not has_table(path):
                columns = tuple(Column(k, kept.field(k).type) for k in plan.table.keys)
                create_table(path, lane.into, (*columns, Column(BESIDE, pa.string())), settings={}, partition_by=[])
            table = open_table(path)
            if version is not None and table.version() != version:
                table.restore(version)
            there = read_schema(table)
            wanted = [f.with_type(kept.field(f.name).type) if f.name in kept.names else f for f in there]
            if wanted != list(there):
                DeltaRsTableWriter().rewrite(
                    table, [TargetColumn(f.name, f) for f in wanted]
                )  # The target has wider key columns now.
            return table

    def lookup(self, table: DeltaTable, rows: pa.Table | None, lane: Lane) -> pa.Table:
        """The rows of the keys in `rows`, and perhaps others; all rows for None."""
        schema, wanted = read_schema(table), {}
        if rows is not None:
            wanted = {key: pc.unique(rows[key]).drop_null() for key in schema.names if key != BESIDE}
        with translate_errors(f"tombstones of {lane.into}"):
            return lookup_rows(table, schema.names, wanted)

    def write(self, table: DeltaTable, rows: pa.Table, lane: Lane) -> int:
        """Stores `rows` (the key and the text) and returns the new version. A row without a text deletes the
        stored one."""
        if not rows.num_rows:
            return int(table.version())
        q, keys = DELTA_RS.quote_name, [name for name in rows.column_names if name != BESIDE]
        with translate_errors(f"tombstones of {lane.into}"):
            self._upkeep.after_commit(table, table.version())
            merger = table.merge(
                rows.cast(read_schema(table)),
                " AND ".join(f"t.{q(k)} = s.{q(k)}" for k in keys),
                source_alias="s",
                target_alias="t",
                streamed_exec=False,
                writer_properties=WRITER,
            )
            there = f"s.{q(BESIDE)} IS NOT NULL"
            merger = merger.when_matched_delete(f"NOT ({there})").when_matched_update({q(BESIDE): f"s.{q(BESIDE)}"})
            merger.when_not_matched_insert({q(n): f"s.{q(n)}" for n in (*keys, BESIDE)}, there).execute()
            return int(table.version())

    def _path(self, lane: Lane) -> Folder:
        return self._lake.tombstones(lane.into)
