"""Row transforms of a table slice for its lanes. Lanes with the same transforms and position share the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic

from replicator.domain.policy.plan import ApplyPlan, Counts
from replicator.domain.position import Position
from replicator.ports.engine import Engine
from replicator.ports.frames import F

from .table_buffer import TableSlice


@dataclass(frozen=True)
class TransformedSlice(Generic[F]):
    """A table slice as a lane applies it.

    - `slices`: the slices to fold one by one; together they cover the whole slice.
    - `rejects`: the rejected changes; None without any.
    - `counts`: the changes that are in none of `slices`.
    """

    slices: Sequence[TableSlice[F]]
    rejects: F | None
    counts: Counts


class SliceTransformer(Generic[F]):
    """Transforms one slice with changes for its lanes."""

    def __init__(self, engine: Engine[F], slice_: TableSlice[F], frame: F) -> None:
        self._engine = engine
        self._slice = slice_
        self.frame = frame
        self._transformed: dict[object, TransformedSlice[F]] = {}

    def transform_for_lane(self, plan: ApplyPlan, trim: Position) -> TransformedSlice[F]:
        """The slice for a lane with this plan, without the changes below `trim`, which were handed over."""
        key = (plan.row_transforms, tuple(sorted(trim.items())))
        if key not in self._transformed:
            frame, below = self._engine.after(self.frame, trim) if trim else (self.frame, 0)
            counts = Counts(duplicate=below)
            whole = TransformedSlice([replace(self._slice, frame=frame)], None, counts)
            self._transformed[key] = self._transform_rows(frame, plan, counts) if plan.row_transforms else whole
        return self._transformed[key]

    def _transform_rows(self, frame: F, plan: ApplyPlan, counts: Counts) -> TransformedSlice[F]:
        transformed = self._engine.transform_rows(frame, plan)
        rejects = transformed.rejects if transformed.counts.rejected else None
        return TransformedSlice(self._cut_segments(transformed.frame, plan), rejects, transformed.counts + counts)

    def _cut_segments(self, frame: F, plan: ApplyPlan) -> Sequence[TableSlice[F]]:
        """Cut transformed changes into segments: the table buffer has cut them as the source sent them."""
        slice_, at = self._slice, self._slice.start
        *firsts, last = self._engine.segments(frame, plan.table)
        pieces = []
        for segment in firsts:
            end = at.advanced_to(self._engine.ends(segment))
            pieces.append(replace(slice_, frame=segment, start=at, end=end, size=0))
            at = end
        return [*pieces, replace(slice_, frame=last, start=at)]
