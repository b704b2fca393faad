"""The changes of one table on their way to its lanes: what must wait is held back, what must not be joined is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

from replicator.domain.position import Position, Span
from replicator.domain.table import TableSpec
from replicator.ports.engine import Engine
from replicator.ports.frames import F

from .options import Options


@dataclass(frozen=True)
class Chunk(Generic[F]):
    """Changes that lanes may take now. `frame` is None when there are none. `start`, `end`: what it stands for, per
    partition. `raw`: the frames its records came in; `size`: their bytes."""

    frame: F | None
    start: Position
    end: Position
    raw: tuple[F, ...] = ()
    size: int = 0


class Feed(Generic[F]):
    """One table's stream for the lanes that follow it together.

    `read`: the stream was read up to here. `released`: lanes got everything below; between the two, changes are held back:
    the delete half of a key change waits for its create half, which most often is in the next batch. They are let go when
    the stream is idle, or when too much is held. Nothing from `barrier` on is released: below it are whole transactions.
    """

    def __init__(self, engine: Engine[F], options: Options, position: Position) -> None:
        self._engine = engine
        self._options = options
        self.read = self.released = position
        self.barrier = Position()
        self._empty: tuple[TableSpec, F] | None = None
        self._held: list[F] = []
        self._raw: tuple[F, ...] = ()
        self._size = 0
        self._pushes = 0
        self._idle = 0

    @property
    def holds(self) -> bool:
        """True while something is held back."""
        return bool(self._held)

    def empty(self, table: TableSpec | None) -> F | None:
        """A changes frame of `table` without rows; None when its last changes had another schema, or none came yet."""
        return self._empty[1] if self._empty and self._empty[0] is table else None

    def push(
        self, parts: Sequence[F], table: TableSpec | None, span: Span, raw: F | None = None, size: int = 0
    ) -> Sequence[Chunk[F]]:
        """Add a batch's changes (frames by schema, in order) and `span`, what the batch covers of the table's topics; `raw`
        are its records, of `size` bytes."""
        known = self.read
        self.read = self._started(known, span).advanced_to(span.end)
        self.released = self._started(self.released, span)
        self._idle = 0
        if parts:
            self._pushes += 1
        if raw is not None and (parts or self._held):
            self._raw = (*self._raw, raw)
            self._size += size
        chunks = self._release([*self._held, *parts], table, flush=self._is_too_much())
        if self._held and all(self.released[p] >= offset for p, offset in known.items()):
            # What is held now came with this batch; how long others waited before it does not count against it.
            self._raw, self._size, self._pushes = (raw,) if raw is not None else (), size, 1
        return chunks

    def release(self, table: TableSpec | None) -> Sequence[Chunk[F]]:
        """What the barrier holds no longer."""
        return self._release(self._held, table, flush=False)

    def idle(self, table: TableSpec | None) -> Sequence[Chunk[F]]:
        """An empty batch came: the stream may have ended for now."""
        self._idle += 1
        return self.flush(table) if self._idle >= self._options.hold_idle else ()

    def flush(self, table: TableSpec | None) -> Sequence[Chunk[F]]:
        """Let go of what is held."""
        return self._release(self._held, table, flush=True) if self._held else ()

    def absorb(self, other: Feed[F]) -> None:
        """Take over what `other`, which has read at least up to where this feed had released, still holds back below that:
        the rest is held here already."""
        lacking = [self._engine.before(frame, self.released)[0] for frame in other._held]
        lacking = [frame for frame in lacking if self._engine.count(frame)]
        if lacking:
            self._held = [*lacking, *self._held]
            self._raw = (*other._raw, *self._raw)
            self._size += other._size
            lower = {p: min(o, self.released.get(p, o)) for p, o in other.released.items()}
            self.released = Position({**self.released, **lower})
        self._empty = self._empty or other._empty

    def _started(self, position: Position, span: Span) -> Position:
        return Position({**span.start, **position})

    def _is_too_much(self) -> bool:
        return self._pushes > self._options.hold_batches or self._size > self._options.hold_bytes

    def _release(self, frames: Sequence[F], table: TableSpec | None, *, flush: bool) -> Sequence[Chunk[F]]:
        start = self.released
        outer = Position({p: max(o, start.get(p, o)) for p, o in self.barrier.items()})
        if not frames or table is None:
            self.released = Position({p: min(o, outer.get(p, o)) for p, o in self.read.items()})
            return [Chunk(None, start, self.released)]
        changes = self._engine.unite(frames, table)
        barrier = outer if flush else Position.lowest([outer, self._engine.unsettled(changes)])
        raw, size = self._raw, self._size
        ready, rest = self._engine.before(changes, barrier) if barrier else (changes, changes)
        if barrier and self._engine.count(rest):
            self._held = [rest]
        else:
            self._held, self._raw, self._size, self._pushes = [], (), 0, 0
        end = Position({p: min(o, barrier.get(p, o)) for p, o in self.read.items()})
        self.released = end
        self._empty = (table, self._engine.after(changes, self._engine.ends(changes))[0])
        return self._cut(ready, table, Chunk(None, start, end, raw, size))

    def _cut(self, ready: F, table: TableSpec, whole: Chunk[F]) -> Sequence[Chunk[F]]:
        if not self._engine.count(ready):
            return [Chunk(None, whole.start, whole.end)]
        pieces = self._engine.segments(ready, table)
        chunks, start = [], whole.start
        for piece in pieces[:-1]:
            end = start.advanced_to(self._engine.ends(piece))
            chunks.append(Chunk(piece, start, end, whole.raw, 0))
            start = end
        return [*chunks, Chunk(pieces[-1], start, whole.end, whole.raw, whole.size)]
