"""The ports to rows that are laid down by keys first, and written to an empty target in one commit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import pyarrow as pa

from replicator.domain.policy.plan import ApplyPlan

from .frames import F, FoldedChanges, Lane, LaneOutcome, RejectRows, Write


@runtime_checkable
class BulkLoads(Protocol[F]):
    """A sink that takes the first rows of a target in parts, so that memory need not hold them all."""

    def loads(self, lane: Lane, plan: ApplyPlan) -> bool:
        """Whether `load` can be used: the plan is one whose rows it takes, and the prepared target has neither rows nor a
        state."""

    def load(self, write: Write[F], parts: Iterable[FoldedChanges[F]], reject: RejectRows[F], folder: Path) -> LaneOutcome:
        """As `Sink.apply` of a write with the rows of all `parts`, in one commit (test_a_target_is_loaded_by_partition).
        No key is in two parts; nothing in them moves a row, and there is no truncate. `write` has no rows itself, and says
        the span. `parts` may be gone through several times. Files may be made in `folder`, which is the caller's. DataLoss
        where the target is not empty (test_only_an_empty_target_is_loaded)."""


T = TypeVar("T", bound=pa.Table)


@runtime_checkable
class PartitionsByKey(Protocol[T]):
    """An engine whose frames are Arrow tables, and that can part them."""

    partitioner: str
    """How it parts rows: another word may mean other parts."""

    def partition_rows(self, rows: T, keys: Sequence[str], number: int) -> Sequence[T]:
        """`rows` in so many parts, those of a key in one of them and in their order. Which one depends on the key alone
        (test_every_key_is_in_one_partition)."""
