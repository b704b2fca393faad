"""What crosses from the stages of a plan to the commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from replicator.domain.plan import Counts, LaneState

from .commits import Operation


@dataclass(frozen=True, slots=True)
class Staged:
    """What a lane is about to commit: `write` (None: only the position), the state, and what became of the rows."""

    write: Operation | None
    state: LaneState
    counts: Counts
    rejects: Any
