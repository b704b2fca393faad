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

    def __init__(self, engine: Engine[F], chunk: TableSlice[F], frame: F) -> None:
        self._engine = engine
        self._chunk = chunk
        self.frame = frame
        self._known: dict[object, TransformedSlice[F]] = {}

    def transform_for_lane(self, plan: ApplyPlan, trim: Position) -> TransformedSlice[F]:
        """The slice for a lane with this plan, without the changes below `trim`, which the lane has applied."""
        key = (plan.row_transforms, tuple(sorted(trim.items())))
        if key not in self._known:
            left, below = self._engine.after(self.frame, trim) if trim else (self.frame, 0)
            had = Counts(duplicate=below)
            whole = TransformedSlice([replace(self._chunk, frame=left)], None, had)
            self._known[key] = self._transform_rows(left, plan, had) if plan.row_transforms else whole
        return self._known[key]

    def _transform_rows(self, left: F, plan: ApplyPlan, had: Counts) -> TransformedSlice[F]:
        shaped = self._engine.transform_rows(left, plan)
        rejects = shaped.rejects if shaped.counts.rejected else None
        return TransformedSlice(self._cut_segments(shaped.frame, plan), rejects, shaped.counts + had)

    def _cut_segments(self, frame: F, plan: ApplyPlan) -> Sequence[TableSlice[F]]:
        """Cut transformed changes into segments: the table buffer has cut them as the source sent them."""
        chunk, at = self._chunk, self._chunk.start
        *firsts, last = self._engine.segments(frame, plan.table)
        pieces = []
        for segment in firsts:
            end = at.advanced_to(self._engine.ends(segment))
            pieces.append(replace(chunk, frame=segment, start=at, end=end, size=0))
            at = end
        return [*pieces, replace(chunk, frame=last, start=at)]
