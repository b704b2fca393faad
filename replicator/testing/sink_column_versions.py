"""The promises of a sink for lanes with column versions, whose partial rows may arrive in any order."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from replicator.domain.policy.plan import ApplyPlan
from replicator.domain.policy.policies import plan_for
from replicator.domain.table import Column, TableSpec
from replicator.domain.transform.rows import RowTransforms

from .delivery import DeliveryRun, assert_equals_model
from .histories import History, any_histories
from .model_row_transforms import ModelRowTransforms
from .row_transform_cases import KEYED_TYPES
from .sink_base import SinkBase
from .sink_row_transforms import LaneStream

ITEMS = TableSpec("public.items", tuple(Column(n, pa.int64()) for n in ("run", "id", "a", "b", "c")), ("run", "id"), 2)

PARTIAL_CHANGES: tuple[dict[str, Any], ...] = (
    {"op": "c", "log": 1, "a": 1, "b": 1, "c": 1},
    {"op": "u", "log": 2, "a": 2, "unsent": ("b", "c")},
    {"op": "d", "log": 3},
    {"op": "u", "log": 4, "b": 4, "unsent": ("a", "c")},
    {"op": "u", "log": 5, "a": 5, "unsent": ("b", "c")},
    {"op": "u", "log": 6, "b": None, "unsent": ("a", "c")},
)


def partial_histories() -> st.SearchStrategy[History]:
    """Histories with some columns in each record, in order or in any order."""

    def scramble(history: History, seed: int | None) -> History:
        shape = history.shape if seed is None else replace(history.shape, scramble=seed, shuffle=None)
        return replace(history, shape=replace(shape, parts=True))

    return st.builds(scramble, any_histories(KEYED_TYPES), st.none() | st.integers(0, 999) | st.integers(0, 999))


def plan_column_versions(policy: str, table: TableSpec) -> ApplyPlan:
    """`plan_for` with column versions."""
    return plan_for(policy, table, None, RowTransforms(has_column_versions=True))


class SinkColumnVersions(SinkBase):
    """Column versions. `cuts`: the batch sizes, for sinks that are too slow for all of them."""

    cuts: tuple[int, ...] = ()

    def test_parts_in_any_order_equal_the_model(self) -> None:
        """Random histories end like the model, with any batches, repetitions and faults, and every change is
        accounted for."""

        @self.for_all(history=partial_histories())
        def check(history: History) -> None:
            with self.target() as target:
                lane, frames = (
                    (self.new_engine(), target, history, "scd1", plan_column_versions),
                    (self.to_frame, self.to_arrow),
                )
                delivering = DeliveryRun(
                    *lane, ModelRowTransforms(has_column_versions=True), to_frame=frames[0], to_arrow=frames[1]
                )
                delivering.run()
                assert_equals_model(delivering)

    def test_every_order_and_cut_ends_alike(self) -> None:
        """Partial changes of a row, with a delete, in every possible order: one key for each order."""
        orders = list(permutations(PARTIAL_CHANGES))
        expected = (5, None, None, ["c"], "u", 6)
        for size in self.cuts or (1, 2, 3, len(PARTIAL_CHANGES)):
            with self.target() as target:
                lines = LaneStream(self, target, ITEMS, RowTransforms(has_column_versions=True))
                for start in range(0, len(PARTIAL_CHANGES), size):
                    lines.send(
                        {"run": run, "id": 1, **row} for run, rows in enumerate(orders) for row in rows[start : start + size]
                    )
                found = lines.rows()
                lines.sink.close()
            assert len(found) == len(orders), size
            columns = ("a", "b", "c", "_cdc_unsent", "_cdc_op", "_cdc_seq_1")
            told = {tuple(map(repr, (row[name] for name in columns))) for row in found}
            assert told == {tuple(map(repr, expected))}, size

    def test_a_truncate_comes_late(self) -> None:
        """A row that survives a late truncate loses the values sent before it, also if the row has no other change."""
        for size in self.cuts or (1, 2, 5):
            with self.target() as target:
                lines = LaneStream(self, target, ITEMS, RowTransforms(has_column_versions=True))
                told: list[dict[str, Any]] = [
                    {"op": "c", "log": 1, "run": 1, "id": 1, "a": 1, "b": 1, "c": 1},
                    {"op": "u", "log": 9, "run": 1, "id": 1, "a": 9, "unsent": ("b", "c")},
                    {"op": "c", "log": 2, "run": 1, "id": 2, "a": 2, "b": 2, "c": 2},
                    {"op": "c", "log": 3, "run": 1, "id": 3, "a": 3, "b": 3, "c": 3},
                    {"op": "u", "log": 8, "run": 1, "id": 3, "b": 8, "unsent": ("a", "c")},
                    {"op": "t", "log": 5},
                    {"op": "u", "log": 4, "run": 1, "id": 1, "b": 4, "unsent": ("a", "c")},
                    {"op": "u", "log": 6, "run": 1, "id": 1, "c": 6, "unsent": ("a", "b")},
                ]
                for start in range(0, len(told), size):
                    lines.send(told[start : start + size])
                names = ("id", "a", "b", "c", "_cdc_unsent", "_cdc_seq_1")
                found = sorted([row[n] for n in names] for row in lines.rows())
                lines.sink.close()
            assert found == [[1, 9, None, 6, ["b"], 9], [3, None, 8, None, ["a", "c"], 8]], size
