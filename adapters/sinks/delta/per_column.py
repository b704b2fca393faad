"""Stages 2 to 4 for tables with a sequence for each column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
from deltalake import DeltaTable

from replicator.domain.policy.plan import ApplyPlan, Counts, LaneState, cdc_sequence_columns
from replicator.ports.frames import Write

from ...apply.column_versions import BESIDE
from ...apply.per_column_in_process import KeyState, add_key_rows, decide_columns, find_first_rows, number_keys
from ...delta.conform import to_rejects
from ...delta.merge import write_stage
from ...delta.partitions import list_prunable_columns, partition_columns, select_few_values, split_unnameable
from ...delta.tables import read_schema
from ...duckdb.column_types import to_duckdb_types
from ...duckdb.session import open_session
from ...sql.dialect import DUCKDB
from .column_versions_table import DeltaColumnVersions, list_key_values
from .merge_candidates import lookup_rows
from .scd2 import ConformedRows
from .staged_write import StagedWrite, advance_state, find_new_truncate


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


def select_keys(rows: pa.Table, plan: ApplyPlan, numbers: list[int]) -> pa.Table:
    """The key columns of these rows."""
    return rows.select(list(plan.table.keys)).take(pa.array(numbers, pa.int64()))


def _read_candidates(snapshot: DeltaTable, plan: ApplyPlan, keys: pa.Table) -> pa.Table:
    """The target's rows of these keys (and perhaps more): keys and sequences."""
    wanted = list_key_values(keys, plan.table.keys)
    near = select_few_values({name: wanted[name].to_pylist() for name in list_prunable_columns(snapshot, plan)})
    return lookup_rows(snapshot, [*plan.table.keys, *cdc_sequence_columns(plan.table.sequence)], wanted, near)


def read_key_states(plan: ApplyPlan, keys: pa.Table, related: pa.Table, column_versions: pa.Table) -> list[KeyState]:
    """The state of each of `keys`, from the target and the side table."""
    sequence = cdc_sequence_columns(plan.table.sequence)
    places = {name: _match_rows(plan, keys, table) for name, table in (("row", related), ("text", column_versions))}
    rows = list(zip(*(related[n].to_pylist() for n in sequence), strict=True)) if related.num_rows else []
    texts = column_versions[BESIDE].to_pylist()
    found = []
    for key in range(keys.num_rows):
        row, text = places["row"].get(key), places["text"].get(key)
        there = None if row is None else (() if None in rows[row] else rows[row])
        found.append(KeyState(there, None if text is None else texts[text]))
    return found


def _match_rows(plan: ApplyPlan, keys: pa.Table, table: pa.Table) -> Mapping[int, int]:
    """Maps the number of a row of `keys` to the number of the row of `table` with that key, if there is one."""
    q = DUCKDB.quote_name
    same = " AND ".join(f"k.{q(name)} = t.{q(name)}" for name in plan.table.keys)
    with open_session() as connection:
        for name, rows in (("keys", keys), ("there", table.select(list(plan.table.keys)))):
            numbers = pa.array(range(rows.num_rows), pa.int64())
            connection.register(name, to_duckdb_types(rows).append_column("_row", numbers))
        found = connection.sql(f"SELECT k._row, t._row FROM keys AS k JOIN there AS t ON {same}").fetchall()
    return dict(found)
