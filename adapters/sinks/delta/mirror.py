"""Stages 2 to 4 for tables that mirror a source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from deltalake import DeltaTable

from replicator.domain.policy.plan import ApplyPlan, LaneState
from replicator.domain.sequence import Sequence as SequenceKey
from replicator.ports.frames import Lane, Write

from ...apply.stages import Wanted, reconcile_write
from ...delta.commits import Operation
from ...delta.lake import Lake
from ...delta.merge import delete_all, make_merge_operation
from ...delta.partitions import list_prunable_columns, partition_columns, select_few_values, split_unnameable
from ...delta.table_reader import lookup_rows
from ...delta.tables import read_schema, stored_frame, stored_names, stored_plan
from ...delta.types import conform_to_table
from ...sql.dialect import DELTA_RS_ALONE
from .lane import PreparedCommit
from .side_tables import DeltaColumnVersions, DeltaSideTables


class DeltaMirror:
    """Stages 2 to 4 for all lanes of one sink. Their tables have the columns of `plan.target`."""

    def __init__(self, lake: Lake, compact_every: int) -> None:
        self.side_tables = DeltaSideTables(lake, compact_every)
        self.column_versions = DeltaColumnVersions(lake, compact_every)

    def prepare_commit(self, snapshot: DeltaTable, state: LaneState, write: Write[pa.Table]) -> PreparedCommit:
        """Reads the rows of exactly `snapshot`. The side table is written on return.

        The position in the new state is the position of `state`.
        """
        names = stored_names(write.plan.table.column_names, read_schema(snapshot).names)
        if names:
            folded = replace(write.folded, frame=stored_frame(write.folded.frame, names))
            write = replace(write, plan=stored_plan(write.plan, names), folded=folded)
        reconciled = reconcile_write(DeltaSession(self, snapshot, state, write), write, state)
        operation = make_merge_operation(write.plan, reconciled.rows, reconciled.truncates)
        return PreparedCommit(operation, reconciled.state, reconciled.counts, reconciled.rejects)

    def clear(self, _: Lane, __: object, /) -> Operation:
        """Deletes every row: the table belongs to its lane alone."""
        return delete_all


class DeltaSession:
    """`adapters.apply.stages.TargetSession`: a snapshot of a table, and its side table, which is written at once.

    Rows of the side table count once their record is applied. Column versions count at the version that the state of
    the commit names.
    """

    dialect = DELTA_RS_ALONE

    def __init__(self, mirror: DeltaMirror, snapshot: DeltaTable, state: LaneState, write: Write[pa.Table]) -> None:
        self.schema = read_schema(snapshot)
        self._mirror, self._snapshot, self._state = mirror, snapshot, state
        self._lane, self._plan, self._out_of_band = write.lane, write.plan, write.out_of_band
        if write.plan.has_column_versions:
            self._column_versions = mirror.column_versions.open_table(
                write.lane, write.plan, state.side_table_version, self.schema
            )

    def conform_rows(self, rows: pa.Table, schema: pa.Schema) -> tuple[pa.Table, pa.Table]:
        return conform_to_table(rows, schema)

    def split_storable_rows(self, rows: pa.Table, plan: ApplyPlan, /) -> tuple[pa.Table, pa.Table]:
        return split_unnameable(rows, plan, partition_columns(self._snapshot))

    def read_rows(self, columns: Sequence[str], wanted: Wanted, condition: str = "") -> pa.Table:
        """Rows are streamed: memory use depends on the batch, not on the table."""
        prunable = [name for name in list_prunable_columns(self._snapshot, self._plan) if name in wanted]
        partitions = select_few_values({name: wanted[name].to_pylist() for name in prunable})
        return lookup_rows(self._snapshot, columns, wanted, partitions, condition)

    def read_side_rows(self, rows: pa.Table | None) -> pa.Table:
        if self._plan.has_column_versions:
            return self._mirror.column_versions.lookup(self._column_versions, rows, self._lane)
        return self._mirror.side_tables.lookup(self._lane, self._plan, rows, self._state.position, again=self._out_of_band)

    def store_side_rows(self, rows: pa.Table) -> int | None:
        if self._plan.has_column_versions:
            return self._mirror.column_versions.write(self._column_versions, rows, self._lane)
        self._mirror.side_tables.record(self._lane, self._plan, rows)
        return None

    def delete_side_rows(self, max_sequence: SequenceKey) -> None:
        self._mirror.side_tables.forget(self._lane, self._plan, max_sequence)
