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

from .errors import ConfigProblem, Reject, RejectCode
from .plan import ApplyPlan, Deleted, Facts, LaneState, highest
from .sequence import Sequence

PARTS = 16
"""Into so many parts a retention is divided: so much later, at most, a delete is forgotten."""

MICROSECOND = timedelta(microseconds=1)
SHORTEST = PARTS * MICROSECOND
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Forgetting:
    """What tells late changes of a batch: those at or below `floor` whose key is absent. A remembered delete at or below
    `truncated` says nothing of its key: a truncate came after it. `clears`: the batch truncates the rows below it."""

    floor: Sequence
    truncated: Sequence | None = None
    clears: Sequence | None = None


def checked(policy: str, retention: timedelta | None) -> timedelta | None:
    """The retention; ConfigProblem for one that is too short to be divided."""
    if retention is not None and retention < SHORTEST:
        raise ConfigProblem(
            f"policy {policy} cannot remember deletes for {retention}",
            next_step="Set 'tombstone_retention' to a longer time, such as 7 days.",
        )
    return retention


def forgetting(plan: ApplyPlan, state: LaneState, at: datetime | None) -> LaneState:
    """The state under which a write at that moment is judged: `forgotten` is what the retention allows by then. The same
    state where that is not more than before, and where no time is told."""
    if plan.retention is None or at is None or not plan.repair.ledger:
        return state
    oldest = micros(at) - plan.retention // MICROSECOND
    past = [deleted for deleted in state.deletes if deleted.until <= oldest]
    if not past or (state.forgotten and _known(past[-1]) == _known(state.forgotten)):
        return state
    return replace(state, forgotten=past[-1], deletes=state.deletes[len(past) :])


def deletes_after(plan: ApplyPlan, facts: Facts, state: LaneState, at: datetime | None) -> tuple[Deleted, ...]:
    """`LaneState.deletes` after a write on top of `state`; nothing where deletes are kept for ever. No more than a
    retention has parts, and two."""
    if plan.retention is None or not plan.repair.ledger:
        return ()
    truncated = facts.clear_below if plan.soft_deletes else None
    newest = highest(facts.deleted, truncated)
    if at is None or newest is None:
        return state.deletes
    if known := state.deletes[-1] if state.deletes else state.forgotten:
        newest, truncated = highest(newest, known.high) or newest, highest(truncated, known.truncated)
        if (newest, truncated) == _known(known):
            return state.deletes
    part = plan.retention // MICROSECOND // PARTS
    end = (micros(at) // part + 1) * part
    # Of a clock that was ahead, and of longer parts: what had come by then has come by now.
    return (*(deleted for deleted in state.deletes if deleted.until < end), Deleted(end, newest, truncated))


def recalls(plan: ApplyPlan, facts: Facts, state: LaneState) -> bool:
    """True when a remembered delete, or that it is remembered no more, can matter to some change of the batch."""
    known = highest(state.ledger_high, _floor(state))
    return plan.repair.ledger and facts.lowest is not None and known is not None and facts.lowest <= known


def can_be_late(plan: ApplyPlan, facts: Facts, state: LaneState) -> Forgetting | None:
    """What tells late changes of the batch; None when none can be."""
    if not plan.repair.ledger or state.forgotten is None or facts.lowest is None or facts.lowest > state.forgotten.high:
        return None
    clears = facts.clear_below if plan.truncates else None
    if clears is not None and state.floor is not None and clears <= state.floor:
        clears = None
    # Rows that a truncate marks are there.
    return Forgetting(state.forgotten.high, highest(state.floor, clears), None if plan.soft_deletes else clears)


def _known(deleted: Deleted) -> tuple[Sequence, Sequence | None]:
    return deleted.high, deleted.truncated


def _floor(state: LaneState) -> Sequence | None:
    return None if state.forgotten is None else state.forgotten.high


def late(lane: str) -> Reject:
    """The reason of a change whose key may have been deleted since."""
    return Reject(
        RejectCode.LATE,
        "its key is not in the target, and deletes as old as this change are no longer remembered, so it may have been "
        f"deleted since; a longer 'tombstone_retention' remembers more from now on, and `replicator lanes resync {lane}` "
        "loads the lane anew",
    )


def told(forgotten: Deleted | None) -> dict[str, Any]:
    """For people and for JSON: `up_to`, the floor (bytes in hexadecimal digits), and `before`, the moment by which all that
    is forgotten had come; empty for None."""
    if forgotten is None:
        return {}
    floor = [element.hex() if isinstance(element, bytes) else element for element in forgotten.high]
    return {"up_to": floor, "before": moment(forgotten.until).isoformat()}


def to_json(state: LaneState, written: Callable[[Sequence], object]) -> dict[str, object]:
    """What a state says of forgotten deletes, for `from_json`; nothing where there is nothing. `written` makes JSON of a
    sequence."""

    def entry(deleted: Deleted) -> list[object]:
        truncated = [] if deleted.truncated is None else [written(deleted.truncated)]
        return [deleted.until, written(deleted.high), *truncated]

    out: dict[str, object] = {}
    if state.forgotten is not None:
        out["forgotten"] = entry(state.forgotten)
    if state.deletes:
        out["deletes"] = [entry(deleted) for deleted in state.deletes]
    return out | ({"owed": True} if state.owed else {})


def from_json(data: Mapping[str, Any], state: LaneState, read: Callable[[Any], Sequence | None]) -> LaneState:
    """`state` with what `to_json` wrote; `read` is the other way of `written`. TypeError or ValueError for anything else."""

    def deleted(entry: Any) -> Deleted:
        until, high, *more = entry
        sequence, truncated = read(high), read(*more) if more else None
        if not isinstance(until, int) or sequence is None or (more and truncated is None):
            raise TypeError("a moment and a sequence, or two")
        return Deleted(until, sequence, truncated)

    before = data.get("forgotten")
    return replace(
        state,
        forgotten=None if before is None else deleted(before),
        deletes=tuple(map(deleted, data.get("deletes", ()))),
        owed=bool(data.get("owed", False)),
    )


def micros(at: datetime) -> int:
    """A moment in microseconds since 1970."""
    return (at - EPOCH) // MICROSECOND


def moment(until: int) -> datetime:
    """The moment of so many microseconds since 1970."""
    return EPOCH + until * MICROSECOND
