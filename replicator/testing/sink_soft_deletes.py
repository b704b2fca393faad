"""The promises of a sink for soft-deleted rows with a retention; part of `sink_contract.SinkContract`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from replicator.domain.change import OFFSET
from replicator.domain.policy.policies import plan_for
from replicator.domain.transform.rows import RowTransforms

from .contract import require
from .delivery import DeliveryRun, assert_equals_model
from .histories import History, make_random_history
from .row_transform_cases import CASES, KEYED_TYPES
from .sink_base import SinkBase
from .sink_retention import RETENTION, gaps, make_time, make_times
from .sink_row_transforms import PARTIAL_TABLE, LaneStream
from .source import FIRST_OFFSET

SOFT_CASES = [name for name, case in CASES.items() if case.row_transforms.soft_deletes]
LIVING, MARKED = False, True

AGEING_STEPS: list[tuple[int, list[dict[str, Any]], dict[int, bool]]] = [
    (
        0,
        [{"id": key, "a": key, "log": 10 + key} for key in (1, 2, 3, 4)] + [{"op": "d", "id": 1, "log": 20}],
        {1: MARKED, 2: LIVING, 3: LIVING, 4: LIVING},
    ),
    (
        1,
        [{"op": "t", "log": 30}, {"id": 5, "a": 5, "log": 31}, {"id": 9, "a": 9, "log": 32}],
        {1: MARKED, 2: MARKED, 3: MARKED, 4: MARKED, 5: LIVING, 9: LIVING},
    ),
    (
        2,
        [{"id": 3, "a": 30, "log": 40}, {"op": "d", "id": 5, "log": 42}],
        {1: MARKED, 2: MARKED, 3: LIVING, 4: MARKED, 5: MARKED, 9: LIVING},
    ),
    (16, [{"id": 6, "a": 6, "log": 50}], {1: MARKED, 2: MARKED, 3: LIVING, 4: MARKED, 5: MARKED, 6: LIVING, 9: LIVING}),
    # Rows that the truncate marked have changes older than the purged delete.
    (17, [{"id": 6, "a": 7, "log": 51}], {2: MARKED, 3: LIVING, 4: MARKED, 5: MARKED, 6: LIVING, 9: LIVING}),
    # A living row stays, even if it is older than the purge; a late change of it is compared by sequence.
    (18, [{"id": 5, "a": 8, "log": 41}, {"op": "d", "id": 9, "log": 39}], {3: LIVING, 5: MARKED, 6: LIVING, 9: MARKED}),
    (19, [{"id": 6, "a": 9, "log": 52}], {3: LIVING, 6: LIVING}),
    (
        20,
        [{"id": 5, "log": 41}, {"id": 2, "log": 42}, {"id": 9, "log": 43}],
        {3: LIVING, 6: LIVING, 9: LIVING},
    ),
]
"""For each batch: the hour, the changes, and then the rows."""

LATE = [15, 16]
"""The changes of the last hour whose row may have been deleted since."""


def soft_histories() -> st.SearchStrategy[tuple[str, History]]:
    """The name of a case with soft deletes, and a history of many batches for it, in any order if the case allows it."""

    def build(name: str, seed: int, length: int) -> tuple[str, History]:
        history = make_random_history(seed, length, keys=KEYED_TYPES, first=CASES[name].first_types)
        # Both halves of a key change are in one batch, as in lanes: otherwise the create may become late.
        shape = replace(history.shape, shuffle=None)
        ordered = replace(shape, partitions=1) if CASES[name].in_order else replace(shape, scramble=seed % 1000)
        return name, replace(history, shape=ordered)

    return st.builds(build, st.sampled_from(SOFT_CASES), st.integers(0, 2**32), st.integers(30, 70))


class SinkSoftDeletes(SinkBase):
    """Soft-deleted rows that are removed when their deletes are purged."""

    def test_histories_in_which_deleted_rows_age_out_equal_the_model(self) -> None:
        """Random histories with soft deletes, with time between their batches."""
        require(self.features().retention, "the sink remembers deletes for ever")

        @self.for_all(drawn=soft_histories(), hours=gaps())
        def check(drawn: tuple[str, History], hours: list[int]) -> None:
            case, history = CASES[drawn[0]], drawn[1]
            with self.target() as target:
                delivering = DeliveryRun(
                    self.new_engine(),
                    target,
                    history,
                    "scd1",
                    lambda policy, table: plan_for(policy, table, None, case.row_transforms, retention=RETENTION),
                    case.wanted,
                    to_frame=self.to_frame,
                    to_arrow=self.to_arrow,
                    times=make_times(hours),
                )
                delivering.run()
                assert_equals_model(delivering)

    def test_deleted_rows_age_out(self) -> None:
        """A deleted row is removed when its delete is purged, and not before; a truncated row when the truncate is
        as old.

        Living rows stay, however old. An older change of a removed row is late.
        """
        require(self.features().retention, "the sink remembers deletes for ever")
        with self.target() as target:
            lines = LaneStream(self, target, PARTIAL_TABLE, RowTransforms(soft_deletes=True), RETENTION)
            for hour, changes, there in AGEING_STEPS:
                lines.at = make_time(hour)
                lines.send(changes)
                assert lines.by_id("_cdc_deleted") == there, f"hour {hour}"
            lines.sink.close()
            late = sorted(row[OFFSET] - FIRST_OFFSET for row in lines.rejects)
            assert late == LATE, late

    def test_what_a_lower_truncate_marked_ages_out(self) -> None:
        """Also if an earlier delete with a higher sequence is already purged."""
        require(self.features().retention, "the sink remembers deletes for ever")
        story: list[tuple[int, dict[str, Any], dict[int, bool]]] = [
            (0, {"id": 1, "log": 10}, {1: LIVING}),
            (0, {"op": "d", "id": 2, "log": 50}, {1: LIVING}),
            (5, {"op": "t", "log": 30}, {1: MARKED}),
            (20, {"id": 3, "log": 60}, {1: MARKED, 3: LIVING}),
            (22, {"id": 3, "log": 61}, {3: LIVING}),
        ]
        with self.target() as target:
            lines = LaneStream(self, target, PARTIAL_TABLE, RowTransforms(soft_deletes=True), RETENTION)
            for hour, change, there in story:
                lines.at = make_time(hour)
                lines.send([change])
                assert lines.by_id("_cdc_deleted") == there, f"hour {hour}"
            lines.sink.close()

    def test_deleted_rows_stay_without_a_retention(self) -> None:
        """However much time passes."""
        with self.target() as target:
            lines = LaneStream(self, target, PARTIAL_TABLE, RowTransforms(soft_deletes=True))
            for hour, changes, _ in AGEING_STEPS[:4]:
                lines.at = make_time(1000 * hour)
                lines.send(changes)
            assert lines.by_id("_cdc_deleted") == AGEING_STEPS[3][2]
            lines.sink.close()
