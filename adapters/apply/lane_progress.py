"""The state of a lane after a write, and the truncates that a write brings. Functions of facts: they read no rows."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from replicator.domain.policy.late_changes import advance_event_times, update_delete_horizons
from replicator.domain.policy.plan import ApplyPlan, Counts, Facts, LaneState, Truncate, find_highest, merge_truncates
from replicator.domain.sequence import Sequence
from replicator.ports.frames import Write


def advance_state(
    plan: ApplyPlan, state: LaneState, facts: Facts, recorded: Sequence | None, at: datetime | None = None
) -> LaneState:
    """The lane's state after a write at time `at`, without its position.

    `recorded`: the highest sequence that was stored in the side table. A pending purge is done.
    """
    return replace(
        state,
        max_sequence=find_highest(state.max_sequence, facts.highest),
        truncated_at=find_highest(state.truncated_at, facts.truncated_at),
        max_side_table_sequence=find_highest(state.max_side_table_sequence, recorded),
        max_event_time=advance_event_times(plan, facts, state),
        truncates=merge_truncates(state.truncates, facts.truncates),
        delete_horizons=update_delete_horizons(plan, facts, state, at),
        purge_pending=False,
    )


def advance_position(state: LaneState, write: Write[Any]) -> LaneState:
    """`state` with the position after the write, and the write's topics and rule."""
    identity = tuple(sorted({**dict(state.identity), **write.identity}.items()))
    position = state.position.advanced_to(write.span.end)
    return replace(state, position=position, identity=identity, rule=write.plan.rule)


def find_new_truncates(plan: ApplyPlan, facts: Facts, state: LaneState) -> list[Truncate]:
    """The truncates that the target has not applied, by sequence. At most one, except for a plan with `history`."""
    if plan.history is not None:
        known = {truncate.sequence for truncate in state.truncates}
        return [truncate for truncate in facts.truncates if truncate.sequence not in known]
    if facts.truncated_at is None or not is_above(facts.truncated_at, state.truncated_at):
        return []
    return [Truncate(facts.truncated_at, facts.truncate_time)]


def find_late_truncates(plan: ApplyPlan, facts: Facts, state: LaneState) -> list[Sequence]:
    """The new truncates at or below the highest applied sequence."""
    return [
        truncate.sequence
        for truncate in find_new_truncates(plan, facts, state)
        if state.max_sequence is not None and truncate.sequence <= state.max_sequence
    ]


def count_truncates(plan: ApplyPlan, facts: Facts, state: LaneState, truncates: int) -> Counts:
    """The counts of the truncates of a write."""
    new = find_new_truncates(plan, facts, state)
    if plan.history is not None:
        return Counts(applied=len(new), duplicate=truncates - len(new))
    if new or facts.truncated_at is None:
        return Counts(applied=truncates)
    return Counts(duplicate=truncates) if facts.truncated_at == state.truncated_at else Counts(superseded=truncates)


def is_above(sequence: Sequence | None, floor: Sequence | None) -> bool:
    """True when there is a sequence, and it is above the floor, if there is one."""
    return sequence is not None and (floor is None or sequence > floor)
