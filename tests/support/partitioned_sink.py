"""Targets with partitioned tables, for contract suites."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow.types as t

from replicator.domain.policy.plan import ApplyPlan
from replicator.ports.frames import Lane
from replicator.ports.sink import StoredLane
from replicator.testing.histories import History
from replicator.testing.source import Act, Statement, StreamShape

Choice = Callable[[ApplyPlan], Sequence[str]]


def choose_key_column(plan: ApplyPlan) -> list[str]:
    """The first key column that can be a partition column, else the first such column."""
    return _select_partitionable(plan, (*plan.table.keys, *plan.table.column_names))[:1]


def choose_value_column(plan: ApplyPlan) -> list[str]:
    """The first column outside the key that can be a partition column: rows move between partitions."""
    return _select_partitionable(plan, [n for n in plan.table.column_names if n not in plan.table.keys])[:1]


def _select_partitionable(plan: ApplyPlan, names: Sequence[str]) -> list[str]:
    """Leaves out texts: histories contain empty ones, which are rejected."""
    types = {c.name: c.type for c in plan.table.columns}
    return [n for n in names if t.is_integer(types[n]) or t.is_boolean(types[n]) or t.is_date(types[n])]


def list_cluster_columns(plan: ApplyPlan) -> list[str]:
    """The last two columns that can be cluster columns."""
    types = {c.name: c.type for c in plan.table.columns}
    return [n for n in types if t.is_integer(types[n]) or t.is_string(types[n]) or t.is_date(types[n])][-2:]


def partition_sink(
    sink: Any, choice: Choice, chosen: dict[str, tuple[str, ...]], option: str = "partition_by", **options: Any
) -> Any:
    """The sink with lanes that get a partition column at their first plan, or another `option` of columns, and
    `options`. `chosen` stores the choice for later instances."""
    prepare, apply, restore = sink.prepare, sink.apply, sink.restore_state

    def prepare_with_options(lane: Lane, plan: ApplyPlan) -> None:
        by = chosen.setdefault(lane.id, tuple(choice(plan)))
        prepare(replace(lane, options={**options, option: by}), plan)

    def apply_with_options(writes: Any, reject: Any) -> Any:
        return apply(writes, lambda lane, rows: reject(replace(lane, options={}), rows))

    def restore_with_options(lane: Lane, plan: ApplyPlan, stored: StoredLane) -> None:
        by = chosen.setdefault(lane.id, tuple(choice(plan)))
        restore(replace(lane, options={**options, option: by}), plan, stored)

    sink.prepare, sink.apply, sink.restore_state = prepare_with_options, apply_with_options, restore_with_options
    return sink


def make_moving_history(seed: int, length: int = 40) -> History:
    """Changes of keys and values that move rows between partitions in every way. Half of it is read in five batches,
    with a fault, a kill before a commit and one after."""
    acts: tuple[Act, ...] = ("write", "write", "move", "swap", "chain", "delete", "truncate")
    each = range(length)
    statements = tuple(Statement(acts[(seed + i * 5) % 7], i % 5, (i * 3 + seed) % 5, salt=i * 7 + seed) for i in each)
    shape = StreamShape(key="composite", values=("day", "text", "small"), snapshot=3)
    return History(shape, statements, ((9, 0, ""), (6, 4, "after"), (11, 0, ""), (9, 2, "before")))
