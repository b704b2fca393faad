"""Ports of a bulk load: rows are partitioned by key, then written to an empty target in one commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replicator.domain.policy.plan import ApplyPlan

from .frames import FoldedChanges, Lane, LaneOutcome, RejectRows, Write


@dataclass(frozen=True, slots=True)
class BulkLoads:
    """Writes the first rows of a target slice by slice, so that they need not all fit in memory."""

    loads: Callable[[Lane, ApplyPlan], bool]
    """True if `load` can be used: it supports the plan, and the prepared target has no rows and no state."""

    load: Callable[[Write[Any], Iterable[FoldedChanges[Any]], RejectRows[Any], Path], LaneOutcome]
    """`load(write, parts, reject, folder)`: write the rows of all `parts` in one commit, otherwise as `Sink.apply`
    (test_a_target_is_loaded_by_partition).

    Each key is in one part only. The parts contain no key changes and no truncates. `write` has no rows of its own, only
    the span. `parts` may be iterated several times. Files may be created in `folder`, which belongs to the caller. DataLoss
    if the target is not empty (test_only_an_empty_target_is_loaded).
    """
