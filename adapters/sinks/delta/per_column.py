"""Stages 2 to 4 for tables with a sequence for each column."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from deltalake import DeltaTable

from replicator.domain.policy.plan import ApplyPlan, Counts, LaneState, cdc_sequence_columns
from replicator.ports.frames import Write

from ...apply.column_versions import BESIDE
from ...apply.conform import to_rejects
from ...apply.lane_progress import advance_state, find_new_truncate
from ...apply.per_column_in_process import (
    add_key_rows,
    decide_columns,
    find_first_rows,
    number_keys,
    read_key_states,
    select_keys,
)
from ...delta.merge import write_stage
from ...delta.partitions import list_prunable_columns, partition_columns, select_few_values, split_unnameable
from ...delta.tables import read_schema
from .column_versions_table import DeltaColumnVersions, list_key_values
from .merge_candidates import lookup_rows
from .scd2 import ConformedRows
from .staged_write import StagedWrite


class DeltaPerColumn:
    """Stages the writes of lanes with a sequence for each column."""

    def __init__(self, column_versions: DeltaColumnVersions) -> None:
        self._column_versions = column_versions

    def stage(self, snapshot: DeltaTable, state: LaneState, write: Write[pa.Table], rows: ConformedRows) -> StagedWrite:
        """See `sinks.delta.lane.WriteStages.stage`. `rows` include truncates.

        The side table is written on return, at the version that the staged state names.
        """
        plan, facts, schema = write.plan, write.folded.facts, read_schema(snapshot)
        table = self._column_versions.open_table(write.lane, plan, state.side_table_version, schema)
        good, nameless = split_unnameable(rows.conforming, plan, partition_columns(snapshot))
        column_versions = self._column_versions.lookup(
            table, {} if facts.truncated_at else list_key_values(good, plan.table.keys), write.lane
        )
        good = add_key_rows(
            good, column_versions.select(list(plan.table.keys)) if facts.truncated_at else column_versions.slice(0, 0)
        )
        numbers = number_keys(good, plan.table.keys)
        first = select_keys(good, plan, find_first_rows(numbers))
        done = decide_columns(
            plan,
            good,
            numbers,
            read_key_states(plan, first, _read_candidates(snapshot, plan, first), column_versions),
            state.truncated_at,
        )
        kept = select_keys(good, plan, list(done.column_versions))
        kept = kept.append_column(BESIDE, pa.array(list(done.column_versions.values()), pa.string()))
        version = self._column_versions.write(table, kept, write.lane)
        refused = rows.misfits.num_rows + nameless.num_rows
        return StagedWrite(
            write_stage(plan, done.write, find_new_truncate(facts, state)),
            replace(advance_state(plan, state, facts, None), side_table_version=version),
            done.counts + Counts(rejected=refused, duplicate=rows.trimmed),
            to_rejects(rows.frame, rows.misfits, nameless),
        )


def _read_candidates(snapshot: DeltaTable, plan: ApplyPlan, keys: pa.Table) -> pa.Table:
    """The target's rows of these keys (and perhaps more): keys and sequences."""
    wanted = list_key_values(keys, plan.table.keys)
    near = select_few_values({name: wanted[name].to_pylist() for name in list_prunable_columns(snapshot, plan)})
    return lookup_rows(snapshot, [*plan.table.keys, *cdc_sequence_columns(plan.table.sequence)], wanted, near)
