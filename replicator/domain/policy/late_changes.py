"""Late changes: below the watermark of a lane, or older than the tombstones that it keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from replicator.domain.errors import ConfigProblem, Reject, RejectCode
from replicator.domain.plain_values import EPOCH
from replicator.domain.position import Position, TopicPartition
from replicator.domain.sequence import Sequence

from .plan import ApplyPlan, DeleteHorizon, Facts, LaneState, find_highest

# Retention of tombstones, and the changes that are late because tombstones are gone.
#
# Tombstones are deleted up to a sequence, `purged_up_to`: the highest sequence of the deletes that were older than the
# retention. A change at or below it is late if its key is neither in the target nor in a tombstone. Its row may have
# been deleted since. `purged_up_to` depends only on the sequences of deletes and their times, in sixteenths of the
# retention. It never decreases.
#
# With soft deletes, the rows go with their tombstones. When `purged_up_to` rises, rows are removed that were marked by a
# delete at or below it, or by a truncate of the same age. There a truncate raises `purged_up_to` as a delete does. That
# makes no more changes late, since changes at or below a truncate are superseded.

HORIZON_COUNT = 16
"""The number of parts of a retention. A tombstone is deleted at most one part after the end of its retention."""

MICROSECOND = timedelta(microseconds=1)
SHORTEST = HORIZON_COUNT * MICROSECOND


@dataclass(frozen=True, slots=True)
class LatenessLimit:
    """The limit for late changes of a batch: changes at or below `max_purged` without a row or tombstone of their key.
    A tombstone at or below `truncated` does not count: a truncate came after it. `clears`: the batch truncates the rows
    below it."""

    max_purged: Sequence
    truncated: Sequence | None = None
    clears: Sequence | None = None


def check_retention(policy: str, retention: timedelta | None) -> timedelta | None:
    """The retention; ConfigProblem if it is too short to be divided."""
    if retention is not None and retention < SHORTEST:
        raise ConfigProblem(
            f"a tombstone_retention of {retention} is too short for policy {policy}",
            next_step="Set 'tombstone_retention' to a longer time, such as 7 days.",
        )
    return retention


def advance_purge(plan: ApplyPlan, state: LaneState, at: datetime | None) -> LaneState:
    """The state for reconciling a write at the time `at`: `purged_up_to` has the value that the retention allows by
    then. `state` itself if that does not increase it, or without a time."""
    if plan.retention is None or at is None or not plan.reconcile.uses_tombstones:
        return state
    oldest = to_micros(at) - plan.retention // MICROSECOND
    past = [deleted for deleted in state.delete_horizons if deleted.until <= oldest]
    if not past or (state.purged_up_to and _to_sequences(past[-1]) == _to_sequences(state.purged_up_to)):
        return state
    return replace(state, purged_up_to=past[-1], delete_horizons=state.delete_horizons[len(past) :])


def update_delete_horizons(
    plan: ApplyPlan, facts: Facts, state: LaneState, at: datetime | None
) -> tuple[DeleteHorizon, ...]:
    """`LaneState.delete_horizons` after a write on top of `state`; empty if tombstones are kept forever. At most two
    more entries than a retention has parts."""
    if plan.retention is None or not plan.reconcile.uses_tombstones:
        return ()
    truncated = facts.truncated_at if plan.soft_deletes else None
    newest = find_highest(facts.max_delete, truncated)
    if at is None or newest is None:
        return state.delete_horizons
    if horizon := state.delete_horizons[-1] if state.delete_horizons else state.purged_up_to:
        newest, truncated = find_highest(newest, horizon.max_sequence) or newest, find_highest(truncated, horizon.truncated)
        if (newest, truncated) == _to_sequences(horizon):
            return state.delete_horizons
    part = plan.retention // MICROSECOND // HORIZON_COUNT
    end = (to_micros(at) // part + 1) * part
    # Later horizons are from a clock that was ahead, or from longer parts: the new one includes their deletes.
    return (*(deleted for deleted in state.delete_horizons if deleted.until < end), DeleteHorizon(end, newest, truncated))


def needs_tombstones(plan: ApplyPlan, facts: Facts, state: LaneState) -> bool:
    """True if a tombstone, or a purged one, can affect some change of the batch."""
    purged_sequence = None if state.purged_up_to is None else state.purged_up_to.max_sequence
    highest = find_highest(state.max_side_table_sequence, purged_sequence)
    return plan.reconcile.uses_tombstones and facts.lowest is not None and highest is not None and facts.lowest <= highest


def find_lateness_limit(plan: ApplyPlan, facts: Facts, state: LaneState) -> LatenessLimit | None:
    """The limit for late changes of the batch; None if no change can be late."""
    if (
        not plan.reconcile.uses_tombstones
        or state.purged_up_to is None
        or facts.lowest is None
        or facts.lowest > state.purged_up_to.max_sequence
    ):
        return None
    clears = facts.truncated_at if plan.truncates else None
    if clears is not None and state.truncated_at is not None and clears <= state.truncated_at:
        clears = None
    # Rows that a truncate only marks still exist.
    return LatenessLimit(
        state.purged_up_to.max_sequence, find_highest(state.truncated_at, clears), None if plan.soft_deletes else clears
    )


def _to_sequences(deleted: DeleteHorizon) -> tuple[Sequence, Sequence | None]:
    return deleted.max_sequence, deleted.truncated


def make_late_reject(lane: str) -> Reject:
    """The reject of a change whose key may have been deleted since."""
    return Reject(
        RejectCode.LATE,
        "its key is not in the target, and the tombstones of that time are already removed, so the row may have been "
        "deleted since. A longer 'tombstone_retention' keeps tombstones longer from now on. "
        f"`replicator lanes resync {lane}` loads the lane again",
    )


def to_purge_summary(horizon: DeleteHorizon | None) -> dict[str, Any]:
    """A summary for people and for JSON, empty for None. `up_to` is `purged_up_to` (bytes in hexadecimal digits), `before`
    the end of the time of all purged deletes."""
    if horizon is None:
        return {}
    up_to = [element.hex() if isinstance(element, bytes) else element for element in horizon.max_sequence]
    return {"up_to": up_to, "before": from_micros(horizon.until).isoformat()}


def to_micros(at: datetime) -> int:
    """A time in microseconds since 1970."""
    return (at - EPOCH) // MICROSECOND


def from_micros(until: int) -> datetime:
    """The time of a number of microseconds since 1970."""
    return EPOCH + until * MICROSECOND


# The watermark of a lane: a change is late if its event time is too far behind the greatest event time of its
# partition.
#
# The order of a partition is fixed, so its late changes are the same for any division into batches.


def get_grace(plan: ApplyPlan) -> int:
    """The grace of a plan with a watermark, in microseconds."""
    return (plan.watermark or timedelta()) // MICROSECOND


def can_be_late(plan: ApplyPlan, facts: Facts, state: LaneState) -> bool:
    """True if some change of the batch may be late, so that each must be checked."""
    if plan.watermark is None or facts.oldest is None:
        return False
    return facts.oldest < max((*facts.max_event_times.values(), *state.max_event_time.values())) - get_grace(plan)


def advance_event_times(plan: ApplyPlan, facts: Facts, state: LaneState) -> Mapping[TopicPartition, int]:
    """`LaneState.max_event_time` after a write. Empty without a watermark: one that is added later starts without
    history."""
    return {} if plan.watermark is None else Position(state.max_event_time).advanced_to(facts.max_event_times).offsets


def make_watermark_reject(event_time: str, watermark: str, lane: str) -> Reject:
    """The reject of a late change."""
    return Reject(
        RejectCode.LATE,
        f"its event time {event_time} UTC is below the watermark of its partition, {watermark} UTC. A longer 'watermark' "
        f"accepts such changes from now on. `replicator lanes resync {lane}` also loads the rejected ones",
    )
