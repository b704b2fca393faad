"""What crosses from the stages of a plan to the commit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from replicator.domain.plan import ApplyPlan, Counts, Cut, Facts, LaneState, highest, united_cuts
from replicator.domain.retention import deletes_after
from replicator.domain.sequence import Sequence
from replicator.domain.watermark import reached_after

from .commits import Operation


@dataclass(frozen=True, slots=True)
class Staged:
    """What a lane is about to commit: `write` (None: only the position), the state, and what became of the rows."""

    write: Operation | None
    state: LaneState
    counts: Counts
    rejects: Any


def moved_on(
    plan: ApplyPlan, state: LaneState, facts: Facts, recorded: Sequence | None, at: datetime | None = None
) -> LaneState:
    """The lane's state after a write that was made `at`, but for its position; `recorded`: the highest sequence that is
    remembered beside the target. What was to be forgotten before it is."""
    return replace(
        state,
        high=highest(state.high, facts.highest),
        floor=highest(state.floor, facts.clear_below),
        ledger_high=highest(state.ledger_high, recorded),
        reached=reached_after(plan, facts, state),
        cuts=united_cuts(state.cuts, facts.cuts),
        deletes=deletes_after(plan, facts, state, at),
        owed=False,
    )


def clearing(facts: Facts, state: LaneState) -> Cut | None:
    """The truncate that the target has not seen."""
    if facts.clear_below is None or not is_above(facts.clear_below, state.floor):
        return None
    return Cut(facts.clear_below, facts.cleared_at)


def truncated(facts: Facts, state: LaneState, truncates: int) -> Counts:
    """What became of the truncates themselves."""
    if facts.cuts:
        new = len(new_cuts(facts, state))
        return Counts(applied=new, duplicate=truncates - new)
    if facts.clear_below is None or is_above(facts.clear_below, state.floor):
        return Counts(applied=truncates)
    return Counts(duplicate=truncates) if facts.clear_below == state.floor else Counts(superseded=truncates)


def new_cuts(facts: Facts, state: LaneState) -> list[Cut]:
    """The truncates of a history that were not known."""
    known = {cut.sequence for cut in state.cuts}
    return [cut for cut in facts.cuts if cut.sequence not in known]


def late_cuts(facts: Facts, state: LaneState) -> list[Sequence]:
    """Those that lie below something that was applied before."""
    return [cut.sequence for cut in new_cuts(facts, state) if state.high is not None and cut.sequence <= state.high]


def is_above(sequence: Sequence | None, floor: Sequence | None) -> bool:
    """True when there is a sequence, and it is above the floor, if there is one."""
    return sequence is not None and (floor is None or sequence > floor)
