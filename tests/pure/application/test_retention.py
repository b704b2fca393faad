"""The purge of tombstones: horizons, the purged sequence, and limits of the state."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from replicator.domain.errors import ConfigProblem
from replicator.domain.policy.late_changes import (
    HORIZON_COUNT,
    advance_purge,
    find_lateness_limit,
    needs_tombstones,
    to_micros,
    update_delete_horizons,
)
from replicator.domain.policy.plan import DeleteHorizon, Facts, LaneState
from replicator.domain.policy.policies import plan_for
from replicator.domain.table import Column, TableSpec
from replicator.domain.transform.rows import RowTransforms

HOUR = timedelta(hours=1)
TABLE = TableSpec("public.items", (Column("id", pa.int64()),), ("id",), 1)
PLAN = plan_for("scd1", TABLE, retention=HORIZON_COUNT * HOUR)
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


def make_state_after_write(state: LaneState, hour: float, deleted: int | None, plan=PLAN) -> LaneState:
    """The state after a write of that hour whose highest delete is that one."""
    at = BEGINNING + hour * HOUR
    facts = Facts(max_delete=None if deleted is None else (deleted,))
    state = advance_purge(plan, state, at)
    return replace(state, delete_horizons=update_delete_horizons(plan, facts, state, at))


def make_horizon(hour: int, high: int) -> DeleteHorizon:
    return DeleteHorizon(to_micros(BEGINNING + hour * HOUR), (high,))


def test_tombstone_is_purged_soon_after_its_retention():
    state = make_state_after_write(LaneState(), 0.5, 7)
    assert state == LaneState(delete_horizons=(make_horizon(1, 7),))
    for hour in (1, 10, 16.9):
        assert make_state_after_write(state, hour, None) == state
    assert make_state_after_write(state, 17, None) == LaneState(purged_up_to=make_horizon(1, 7))


def test_horizon_keeps_the_highest_delete_of_its_time():
    state = make_state_after_write(make_state_after_write(make_state_after_write(LaneState(), 0.1, 7), 0.2, 9), 0.3, 8)
    assert state.delete_horizons == (make_horizon(1, 9),)
    assert make_state_after_write(state, 3, 4).delete_horizons == (make_horizon(1, 9),)
    state = make_state_after_write(make_state_after_write(state, 3, 12), 20, 11)
    assert (state.purged_up_to, state.delete_horizons) == (make_horizon(4, 12), ())


def test_number_of_horizons_is_limited():
    state = LaneState()
    for number in range(200):
        state = make_state_after_write(state, number / 3, number)
        assert len(state.delete_horizons) <= HORIZON_COUNT + 2
    assert state.purged_up_to is not None


def test_clock_that_was_ahead_does_not_stop_the_purge():
    state = make_state_after_write(make_state_after_write(LaneState(), 1_000_000, 7), 0.5, 8)
    assert state.delete_horizons == (make_horizon(1, 8),)


def test_purged_sequence_never_decreases():
    state = LaneState(purged_up_to=make_horizon(1, 7))
    for plan in (PLAN, plan_for("scd1", TABLE, retention=1000 * HOUR), plan_for("scd1", TABLE)):
        assert make_state_after_write(state, 500, 5, plan).purged_up_to == make_horizon(1, 7)
        assert find_lateness_limit(plan, Facts(lowest=(7,)), state) is not None
        assert needs_tombstones(plan, Facts(lowest=(7,)), state)
    assert find_lateness_limit(PLAN, Facts(lowest=(8,)), state) is None
    assert not needs_tombstones(PLAN, Facts(lowest=(8,)), state)


def test_nothing_is_purged_without_a_retention_or_a_time():
    state = make_state_after_write(LaneState(), 0, 7)
    assert advance_purge(PLAN, state, None) == state
    assert update_delete_horizons(PLAN, Facts(max_delete=(9,)), state, None) == state.delete_horizons
    for plan in (
        plan_for("scd1", TABLE),
        plan_for("scd2", TABLE, retention=HOUR),
        plan_for("append", TABLE, retention=HOUR),
    ):
        assert make_state_after_write(LaneState(), 0, 7, plan) == LaneState()
        assert advance_purge(plan, state, BEGINNING + 1000 * HOUR) == state


def test_truncate_raises_the_purged_sequence_with_soft_deletes():
    soft = plan_for("scd1", TABLE, row_transforms=RowTransforms(soft_deletes=True), retention=HORIZON_COUNT * HOUR)
    moment = BEGINNING + HOUR / 2
    for plan, expected in ((PLAN, (make_horizon(1, 7),)), (soft, (replace(make_horizon(1, 9), truncated=(9,)),))):
        facts = Facts(max_delete=(7,), truncated_at=(9,))
        assert update_delete_horizons(plan, facts, LaneState(), moment) == expected
    assert update_delete_horizons(PLAN, Facts(truncated_at=(9,)), LaneState(), moment) == ()
    state = make_state_after_write(LaneState(), 0.5, 20, soft)
    state = replace(
        state, delete_horizons=update_delete_horizons(soft, Facts(truncated_at=(9,)), state, BEGINNING + 3.5 * HOUR)
    )
    assert state.delete_horizons == (make_horizon(1, 20), replace(make_horizon(4, 20), truncated=(9,)))
    state = make_state_after_write(state, 17, None, soft)
    assert state.purged_up_to == make_horizon(1, 20)
    assert make_state_after_write(state, 20, None, soft).purged_up_to == replace(make_horizon(4, 20), truncated=(9,))
    assert update_delete_horizons(soft, Facts(max_delete=(21,)), state, BEGINNING + 20 * HOUR)[-1].truncated == (9,)


def test_row_flagged_by_a_truncate_exists():
    """Its own sequence decides, so the truncate makes none of its changes late."""
    state = LaneState(purged_up_to=make_horizon(1, 7))
    facts = Facts(lowest=(3,), truncated_at=(3,))
    below = find_lateness_limit(PLAN, facts, state)
    assert below is not None
    assert (below.truncated, below.clears) == ((3,), (3,))
    below = find_lateness_limit(plan_for("scd1", TABLE, row_transforms=RowTransforms(soft_deletes=True)), facts, state)
    assert below is not None
    assert (below.truncated, below.clears) == ((3,), None)


@pytest.mark.parametrize("retention", [timedelta(), -HOUR, timedelta(microseconds=15)])
def test_retention_that_cannot_be_divided_is_refused(retention):
    with pytest.raises(ConfigProblem, match="tombstone_retention"):
        plan_for("scd1", TABLE, retention=retention)
