"""The result of the stages of a plan, for the commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from replicator.domain.policy.plan import Counts, LaneState

from ...delta.commits import Operation


@dataclass(frozen=True, slots=True)
class StagedWrite:
    """A write to commit: `write` (None: only the position), the new state, and the counts and rejects of its
    rows."""

    write: Operation | None
    state: LaneState
    counts: Counts
    rejects: Any
