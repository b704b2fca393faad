"""The table buffer: changes of one table on the way to its lanes.

It holds changes back, and cuts them into segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Generic

from replicator.application.delivery.bounded_queue import RecordFrame, count_bytes
from replicator.application.lane_runs import Clock
from replicator.application.options import RuntimeOptions
from replicator.domain.position import EMPTY_SPAN, Position, Span, TopicPartition
from replicator.domain.schema_evolution import can_cover
from replicator.domain.table import TableSpec
from replicator.ports.engine import Frames
from replicator.ports.frames import F


@dataclass(frozen=True, slots=True)
class SchemaMark:
    """From `start` on, in its partitions, records have the schema `table`, up to the next mark there.

    `table` None: the record at `start`, which is no change, drops the table.
    """

    table: TableSpec | None
    start: Position


@dataclass(frozen=True)
class SchemaSlice(Generic[F]):
    """Changes with one schema, none of them below `mark`. `table`: the schema that its frame can be united as."""

    frame: F
    mark: SchemaMark
    table: TableSpec


@dataclass(frozen=True)
class TableSlice(Generic[F]):
    """Changes that lanes may apply now.

    - `frame`: a changes frame of `table`; None without changes.
    - `start`, `end`: the span that it covers.
    - `raw`: the records behind it.
    - `marks`: schema marks and drops, in order. The first and the last may lie outside. Without a frame only
      drops.
    """

    frame: F | None
    start: Position
    end: Position
    raw: tuple[RecordFrame[F], ...] = ()
    table: TableSpec | None = None
    marks: tuple[SchemaMark, ...] = ()


class TableBuffer(Generic[F]):
    """The stream of one table, for the lanes that follow it together.

    - `read`: the stream was read up to here.
    - `released`: lanes got everything below. Changes between the two are held back.
    - `hold_from`: nothing from here on is released. Transactions are incomplete there, or the lanes have no position
      yet. Only changes that no later one can be united with are released above it.
    - `waited`: the seconds for which the stream has waited for its source; never goes back.

    The delete half of a key change waits for its create half, which is usually in the next batch. Held changes
    are released when the stream is idle, or when too many are held.
    """

    def __init__(self, frames: Frames[F], options: RuntimeOptions, position: Position, waited: Clock = lambda: 0.0) -> None:
        self._frames = frames
        self._options = options
        self._waited = waited
        self.read = self.released = position
        self.hold_from = Position()
        self._table: TableSpec | None = None
        self._marks: tuple[SchemaMark, ...] = ()
        self._drop_marks: tuple[SchemaMark, ...] = ()
        self._empty: tuple[TableSpec, F] | None = None
        self._held: list[F] = []
        self.raw: tuple[RecordFrame[F], ...] = ()
        """The records behind held changes."""
        self._batches_held = 0
        self._added_at = waited()

    def make_empty(self, table: TableSpec | None) -> F | None:
        """A changes frame of `table` without rows.

        None if the last changes had another schema, or there were none yet.
        """
        return self._empty[1] if self._empty and self._empty[0] is table else None

    def add_batch(
        self,
        decoded: Sequence[SchemaSlice[F]],
        table: TableSpec | None,
        span: Span,
        raw: RecordFrame[F] | None = None,
        *,
        drops: Sequence[Position] = (),
    ) -> Sequence[TableSlice[F]]:
        """Add the changes of a batch, in order.

        - `table`: the newest schema, for a batch without changes.
        - `span`: the span of the batch, in the table's topics.
        - `raw`: its records.
        - `drops`: positions of records that drop the table.

        Changes whose frames cannot be united are returned in separate slices: a column has another type, or the
        table another key.
        """
        within = (SchemaMark(None, at) for at in drops if _is_within(at, span.start, span.end))
        self._drop_marks = (*self._drop_marks, *within)
        out: list[TableSlice[F]] = []
        groups: list[list[SchemaSlice[F]]] = []
        for part in decoded:
            if groups and (groups[-1][-1].table is part.table or groups[-1][-1].table == part.table):
                groups[-1].append(part)
            else:
                groups.append([part])
        for group in groups[:-1]:
            ends = reduce(Position.advanced_to, (self._frames.ends(part.frame) for part in group), Position())
            first = Span(span.start.only(ends), Position({p: max(o, span.start[p]) for p, o in ends.items()}))
            out += self.add_changes([p.frame for p in group], group[-1].table, first, raw, marks=[p.mark for p in group])
            out += self._release_frames(self._held, group[-1].table, hold_nothing=True)
            span = Span(span.start.advanced_to(first.end), span.end)
        last = groups[-1] if groups else []
        of_last = last[-1].table if last else table
        return [*out, *self.add_changes([p.frame for p in last], of_last, span, raw, marks=[p.mark for p in last])]

    def add_changes(
        self,
        frames: Sequence[F],
        table: TableSpec | None,
        span: Span,
        raw: RecordFrame[F] | None = None,
        *,
        marks: Sequence[SchemaMark] = (),
    ) -> Sequence[TableSlice[F]]:
        """`add_batch` for changes whose frames can all be united as `table`."""
        released_now: Sequence[TableSlice[F]] = ()
        if self._held and self._table and frames and table and not can_cover(table, self._table):
            released_now = self._release_frames(self._held, self._table, hold_nothing=True)
        self._table = table if frames else self._table or table
        self._marks = (*self._marks, *(SchemaMark(m.table, m.start.only(span.start)) for m in marks))
        before = self.read
        self.read = Position({**span.start, **before}).advanced_to(span.end)
        self.released = Position({**span.start, **self.released})
        self._added_at = self._waited()
        unreleased = [*self._held, *frames]
        # In earlier batches: a half in this one waits for the next one, however large this one is.
        is_too_much = self._batches_held >= self._options.hold_batches or count_bytes(self.raw) > self._options.hold_bytes
        if frames:
            self._batches_held += 1
            if raw is not None:
                self.raw = (*self.raw, raw)
        slices = self._release_frames(unreleased, self._table, waiting=frames if frames and is_too_much else unreleased)
        if self._held and all(self.released[p] >= offset for p, offset in before.items()):
            # Held changes are of this batch now: the waiting time of earlier ones does not count.
            self.raw, self._batches_held = (raw,) if raw is not None else (), 1
        return [*released_now, *slices]

    def release_ready(self) -> Sequence[TableSlice[F]]:
        """Release changes below `hold_from`."""
        return self._release_frames(self._held, self._table, waiting=self._held)

    def release_idle(self) -> Sequence[TableSlice[F]]:
        """`release_all` after the source was waited for `hold_idle` seconds without records: the stream may have ended
        for now."""
        return self.release_all() if self._waited() - self._added_at >= self._options.hold_idle else ()

    def release_all(self) -> Sequence[TableSlice[F]]:
        """Release the held changes below `hold_from`, also halves of key changes."""
        return self._release_frames(self._held, self._table) if self._held else ()

    def absorb_buffer(self, other: TableBuffer[F]) -> None:
        """Add the held changes of `other` below this buffer's `released`; later ones are held here already.

        `other` must have read at least up to there.
        """
        drops = tuple(mark for mark in other._drop_marks if _is_within(mark.start, Position(), self.released))
        held_here = Span.from_position(self.released)
        missing = [self._frames.split(frame, held_here)[1] for frame in other._held]
        missing = [frame for frame in missing if self._frames.count(frame)]
        if missing:
            self._held = [*missing, *self._held]
            self.raw = (*other.raw, *self.raw)
            lower = {p: min(o, self.released.get(p, o)) for p, o in other.released.items()}
            self.released = Position({**self.released, **lower})
        self._marks = (*other._marks, *self._marks)
        self._drop_marks = (*drops, *self._drop_marks)
        self._table = self._table or other._table
        self._empty = self._empty or other._empty

    def _release_frames(
        self, frames: Sequence[F], table: TableSpec | None, *, waiting: Sequence[F] = (), hold_nothing: bool = False
    ) -> Sequence[TableSlice[F]]:
        """Release changes below `hold_from`.

        - `waiting`: those of the frames in which deletes of key changes wait for their create half, and all that
          follows the deletes.
        - `hold_nothing`: also changes above `hold_from`, since no later change can be united with them.
        """
        start = self.released
        barrier = Position({p: max(o, start.get(p, o)) for p, o in self.hold_from.items()} if not hold_nothing else {})
        if not frames or table is None:
            self.released = Position({p: min(o, barrier.get(p, o)) for p, o in self.read.items()})
            return [TableSlice(None, start, self.released, marks=self._take_drop_marks(self.released))]
        changes = self._frames.concat(frames, table)
        limit = barrier
        if waiting:
            unpaired = changes if waiting is frames else self._frames.concat(waiting, table)
            limit = Position.lowest([barrier, self._frames.find_open_key_changes(unpaired)])
        raw = self.raw
        if limit:
            rest, ready = self._frames.split(changes, Span.from_position(limit))
        else:
            rest, ready = None, changes  # Nothing is held back.
        if rest is not None and self._frames.count(rest):
            self._held = [rest]
        else:
            self._held, self.raw, self._batches_held = [], (), 0
        end = Position({p: min(o, limit.get(p, o)) for p, o in self.read.items()})
        self.released = end
        self._empty = (table, self._frames.split(changes, EMPTY_SPAN)[0])
        drops = self._take_drop_marks(end)
        marks = self._take_schema_marks(end, drops)
        if not self._frames.count(ready):
            return [TableSlice(None, start, end, marks=drops)]
        whole = TableSlice(ready, start, end, raw, table, marks)
        return cut_segments(self._frames, ready, table, whole)

    def _take_schema_marks(self, end: Position, drops: tuple[SchemaMark, ...]) -> tuple[SchemaMark, ...]:
        """The schema marks below `end`, with each drop before the schemas whose records all follow it in its partition.

        Removes marks that no later record belongs to.
        """
        below = [m for m in self._marks if any(o < end.get(p, o) for p, o in m.start.items())]
        for drop in drops:
            later = (i for i, m in enumerate(below) if any(m.start.get(p, o) > o for p, o in drop.start.items()))
            below.insert(next(later, len(below)), drop)
        left: list[SchemaMark] = []
        passed: set[TopicPartition] = set()
        for mark in reversed(self._marks):
            if not passed.issuperset(mark.start):
                left.insert(0, mark)
            passed |= {p for p, o in mark.start.items() if o <= end.get(p, -1)}
        self._marks = tuple(left)
        return tuple(below)

    def _take_drop_marks(self, end: Position) -> tuple[SchemaMark, ...]:
        """Remove and return the table drops below `end`."""
        below = tuple(m for m in self._drop_marks if _is_within(m.start, Position(), end))
        self._drop_marks = tuple(m for m in self._drop_marks if m not in below)
        return below


def cut_segments(frames: Frames[F], changes: F, table: TableSpec, whole: TableSlice[F]) -> Sequence[TableSlice[F]]:
    """The slice with these changes, cut into segments."""
    *firsts, last = frames.segments(changes, table)
    slices, start = [], whole.start
    for segment in firsts:
        end = start.advanced_to(frames.ends(segment))
        slices.append(replace(whole, frame=segment, start=start, end=end))
        start = end
    return [*slices, replace(whole, frame=last, start=start)]


def _is_within(at: Position, start: Position, end: Position) -> bool:
    return all(start.get(p, 0) <= o < end.get(p, 0) for p, o in at.items())
