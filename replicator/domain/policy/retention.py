"""How long deletes are remembered, and what is late because they are not any more.

Deletes are forgotten up to a sequence, the floor: the highest one among the deletes that had come a retention ago. A change
at or below it whose key is neither in the target nor remembered may be of a row that was deleted since, so it is late. The
floor depends on the sequences of deletes and on when they came, in sixteenths of the retention, and on nothing else. It
never falls.

Where deletes leave rows, these go with what is remembered: when the floor rises, the rows that were marked by a delete at or
below it, or by a truncate that is as old. There a truncate raises the floor as a delete does. That makes nothing more late,
for what is at or below a truncate is superseded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from replicator.domain.errors import ConfigProblem, Reject, RejectCode
from replicator.domain.sequence import Sequence

from .plan import ApplyPlan, DeleteHorizon, Facts, LaneState, find_highest

HORIZON_COUNT = 16
"""Into so many parts a retention is divided: so much later, at most, a delete is forgotten."""

MICROSECOND = timedelta(microseconds=1)
SHORTEST = HORIZON_COUNT * MICROSECOND
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class LatenessLimit:
    """What tells late changes of a batch: those at or below `max_purged` whose key is absent. A remembered delete at or
    below `truncated` says nothing of its key: a truncate came after it. `clears`: the batch truncates the rows below it."""

    max_purged: Sequence
    truncated: Sequence | None = None
    clears: Sequence | None = None


def check_retention(policy: str, retention: timedelta | None) -> timedelta | None:
    """The retention; ConfigProblem for one that is too short to be divided."""
    if retention is not None and retention < SHORTEST:
        raise ConfigProblem(
            f"policy {policy} cannot remember deletes for {retention}",
            next_step="Set 'tombstone_retention' to a longer time, such as 7 days.",
        )
    return retention


def advance_purge(plan: ApplyPlan, state: LaneState, at: datetime | None) -> LaneState:
    """The state under which a write at that moment is judged: `forgotten` is what the retention allows by then. The same
    state where that is not more than before, and where no time is told."""
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
    """`LaneState.delete_horizons` after a write on top of `state`; nothing where deletes are kept for ever. No more than a
    retention has parts, and two."""
    if plan.retention is None or not plan.reconcile.uses_tombstones:
        return ()
    truncated = facts.truncated_at if plan.soft_deletes else None
    newest = find_highest(facts.max_delete, truncated)
    if at is None or newest is None:
        return state.delete_horizons
    if known := state.delete_horizons[-1] if state.delete_horizons else state.purged_up_to:
        newest, truncated = find_highest(newest, known.max_sequence) or newest, find_highest(truncated, known.truncated)
        if (newest, truncated) == _to_sequences(known):
            return state.delete_horizons
    part = plan.retention // MICROSECOND // HORIZON_COUNT
    end = (to_micros(at) // part + 1) * part
    # Of a clock that was ahead, and of longer parts: what had come by then has come by now.
    return (*(deleted for deleted in state.delete_horizons if deleted.until < end), DeleteHorizon(end, newest, truncated))


def needs_tombstones(plan: ApplyPlan, facts: Facts, state: LaneState) -> bool:
    """True when a remembered delete, or that it is remembered no more, can matter to some change of the batch."""
    known = find_highest(state.max_tombstone, _get_purged_sequence(state))
    return plan.reconcile.uses_tombstones and facts.lowest is not None and known is not None and facts.lowest <= known


def find_lateness_limit(plan: ApplyPlan, facts: Facts, state: LaneState) -> LatenessLimit | None:
    """What tells late changes of the batch; None when none can be."""
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
    # Rows that a truncate marks are there.
    return LatenessLimit(
        state.purged_up_to.max_sequence, find_highest(state.truncated_at, clears), None if plan.soft_deletes else clears
    )


def _to_sequences(deleted: DeleteHorizon) -> tuple[Sequence, Sequence | None]:
    return deleted.max_sequence, deleted.truncated


def _get_purged_sequence(state: LaneState) -> Sequence | None:
    return None if state.purged_up_to is None else state.purged_up_to.max_sequence


def make_late_reject(lane: str) -> Reject:
    """The reason of a change whose key may have been deleted since."""
    return Reject(
        RejectCode.LATE,
        "its key is not in the target, and deletes as old as this change are no longer remembered, so it may have been "
        f"deleted since; a longer 'tombstone_retention' remembers more from now on, and `replicator lanes resync {lane}` "
        "loads the lane anew",
    )


def to_summary(horizon: DeleteHorizon | None) -> dict[str, Any]:
    """For people and for JSON: `up_to`, the floor (bytes in hexadecimal digits), and `before`, the moment by which all that
    is forgotten had come; empty for None."""
    if horizon is None:
        return {}
    floor = [element.hex() if isinstance(element, bytes) else element for element in horizon.max_sequence]
    return {"up_to": floor, "before": from_micros(horizon.until).isoformat()}


def to_json(state: LaneState, encode: Callable[[Sequence], object]) -> dict[str, object]:
    """What a state says of forgotten deletes, for `from_json`; nothing where there is nothing. `encode` makes JSON of a
    sequence."""

    def entry(deleted: DeleteHorizon) -> list[object]:
        truncated = [] if deleted.truncated is None else [encode(deleted.truncated)]
        return [deleted.until, encode(deleted.max_sequence), *truncated]

    out: dict[str, object] = {}
    if state.purged_up_to is not None:
        out["forgotten"] = entry(state.purged_up_to)
    if state.delete_horizons:
        out["deletes"] = [entry(deleted) for deleted in state.delete_horizons]
    return out | ({"owed": True} if state.purge_pending else {})


def from_json(data: Mapping[str, Any], state: LaneState, decode: Callable[[Any], Sequence | None]) -> LaneState:
    """`state` with what `to_json` wrote; `decode` is the other way of `written`. TypeError or ValueError for anything
    else."""

    def read_horizon(entry: Any) -> DeleteHorizon:
        until, high, *more = entry
        sequence, truncated = decode(high), decode(*more) if more else None
        if not isinstance(until, int) or sequence is None or (more and truncated is None):
            raise TypeError("a moment and a sequence, or two")
        return DeleteHorizon(until, sequence, truncated)

    before = data.get("forgotten")
    return replace(
        state,
        purged_up_to=None if before is None else read_horizon(before),
        delete_horizons=tuple(map(read_horizon, data.get("deletes", ()))),
        purge_pending=bool(data.get("owed", False)),
    )


def to_micros(at: datetime) -> int:
    """A moment in microseconds since 1970."""
    return (at - EPOCH) // MICROSECOND


def from_micros(until: int) -> datetime:
    """The moment of so many microseconds since 1970."""
    return EPOCH + until * MICROSECOND
