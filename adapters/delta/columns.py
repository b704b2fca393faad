"""Stages 2 to 4 for tables with a sequence for each column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
from deltalake import DeltaTable

from replicator.domain.plan import ApplyPlan, Counts, LaneState, cdc_sequence_columns
from replicator.ports.frames import Write

from ..sql.beside import BESIDE
from ..sql.dialect import DUCKDB
from ..sql.duck import session
from ..sql.local_by_column import Known, decide, first_of_each, key_numbers, with_keys
from ..sql.relatable import relatable
from .beside import DeltaBeside, among
from .fit import as_rejects
from .histories import Rows
from .merge import write_stage
from .partitions import few, nameable, partition_columns, prunable
from .related import lookup
from .staged import Staged, clearing, moved_on
from .tables import schema_of


class ByColumn:
    """Stages the writes of lanes with a sequence for each column."""

    def __init__(self, beside: DeltaBeside) -> None:
        self._beside = beside

    def stage(self, snapshot: DeltaTable, state: LaneState, write: Write[pa.Table], rows: Rows) -> Staged:
        """See `lane.Stages.stage`. `rows` have their truncates. What is to be kept beside the target is there on return, at
        the version that the staged state names."""
        plan, facts, schema = write.plan, write.folded.facts, schema_of(snapshot)
        table = self._beside.opened(write.lane, plan, state.beside, schema)
        good, nameless = nameable(rows.fitting, plan, partition_columns(snapshot))
        beside = self._beside.lookup(table, {} if facts.clear_below else among(good, plan.table.keys), write.lane)
        good = with_keys(good, beside.select(list(plan.table.keys)) if facts.clear_below else beside.slice(0, 0))
        numbers = key_numbers(good, plan.table.keys)
        first = keys_of(good, plan, first_of_each(numbers))
        done = decide(plan, good, numbers, known(plan, first, _related(snapshot, plan, first), beside), state.floor)
        kept = keys_of(good, plan, list(done.beside))
        kept = kept.append_column(BESIDE, pa.array(list(done.beside.values()), pa.string()))
        version = self._beside.write(table, kept, write.lane)
        refused = rows.unfit.num_rows + nameless.num_rows
        return Staged(
            write_stage(plan, done.write, clearing(facts, state)),
            replace(moved_on(plan, state, facts, None), beside=version),
            done.counts + Counts(rejected=refused, duplicate=rows.trimmed),
            as_rejects(rows.frame, rows.unfit, nameless),
        )


def keys_of(rows: pa.Table, plan: ApplyPlan, numbers: list[int]) -> pa.Table:
    """The key columns of these rows."""
    return rows.select(list(plan.table.keys)).take(pa.array(numbers, pa.int64()))


def _related(snapshot: DeltaTable, plan: ApplyPlan, keys: pa.Table) -> pa.Table:
    """The target's rows of these keys (a few more may come): keys and sequences."""
    wanted = among(keys, plan.table.keys)
    near = few({name: wanted[name].to_pylist() for name in prunable(snapshot, plan)})
    return lookup(snapshot, [*plan.table.keys, *cdc_sequence_columns(plan.table.sequence)], wanted, near)


def known(plan: ApplyPlan, keys: pa.Table, related: pa.Table, beside: pa.Table) -> list[Known]:
    """What the target and the table beside it say of each of `keys`."""
    sequence = cdc_sequence_columns(plan.table.sequence)
    places = {name: _places(plan, keys, table) for name, table in (("row", related), ("text", beside))}
    rows = list(zip(*(related[n].to_pylist() for n in sequence), strict=True)) if related.num_rows else []
    texts = beside[BESIDE].to_pylist()
    found = []
    for key in range(keys.num_rows):
        row, text = places["row"].get(key), places["text"].get(key)
        there = None if row is None else (() if None in rows[row] else rows[row])
        found.append(Known(there, None if text is None else texts[text]))
    return found


def _places(plan: ApplyPlan, keys: pa.Table, table: pa.Table) -> Mapping[int, int]:
    """Of each row of `keys` the number of the row of `table` with that key, where there is one."""
    q = DUCKDB.quoted
    same = " AND ".join(f"k.{q(name)} = t.{q(name)}" for name in plan.table.keys)
    with session() as connection:
        for name, rows in (("keys", keys), ("there", table.select(list(plan.table.keys)))):
            numbers = pa.array(range(rows.num_rows), pa.int64())
            connection.register(name, relatable(rows).append_column("_row", numbers))
        found = connection.sql(f"SELECT k._row, t._row FROM keys AS k JOIN there AS t ON {same}").fetchall()  # noqa: S608
    return dict(found)
