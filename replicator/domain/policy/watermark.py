"""The watermark of a lane: a change is late if its event time is too far behind the greatest event time of its
partition.

The order of a partition is fixed, so its late changes are the same for any division into batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from replicator.domain.errors import Reject, RejectCode
from replicator.domain.position import Position, TopicPartition

from .plan import ApplyPlan, Facts, LaneState

MICROSECOND = timedelta(microseconds=1)


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


def make_late_reject(event_time: str, watermark: str, lane: str) -> Reject:
    """The reject of a late change."""
    return Reject(
        RejectCode.LATE,
        f"its event time {event_time} UTC is below the watermark of its partition, {watermark} UTC. A longer 'watermark' "
        f"accepts such changes from now on. `replicator lanes resync {lane}` also loads the rejected ones",
    )
