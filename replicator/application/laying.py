"""Rows that are laid down by their keys until all have come, and then make the rows of a new target in one commit.

A target that is merged into batch after batch is rewritten as often, and all of it meets each batch in memory. Where nobody
watches for what is new, and the target is empty, the rows are parted by their keys instead, on the disk: a part holds
whatever there is of its keys, so it is folded by itself, once.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, cast
from urllib.parse import quote

import pyarrow as pa

from replicator.domain.errors import EnvironmentProblem, Fatal
from replicator.domain.plan import Counts, Facts, LaneState, united_facts
from replicator.domain.position import Position
from replicator.ports.engine import Engine
from replicator.ports.frames import F, Folded, Lane, LaneApplied, RejectRows
from replicator.ports.laying import Loads, PartsByKey
from replicator.ports.sink import Sink

from .handover import Handed, can_join
from .laid import PARTS, Laid, Piece
from .problem import ensure
from .records import Frames, Records

AT_ONCE = 16 << 20
"""Bytes of rows that are folded at once, of whole parts."""
ALONE = 1 << 20
"""Bytes of a part that is folded by itself."""
GATHERED = 64 << 20
"""Bytes that gather before they are laid down: more would save nothing."""


def laying(folder: Path | None, sink: Sink[Any], engine: Engine[Any]) -> Laying[Any] | None:
    """What lays down in `folder` the rows for a sink; None where there is no folder, or sink or engine cannot do with
    parts."""
    if folder is None or not isinstance(sink, Loads) or not isinstance(engine, PartsByKey):
        return None
    return Laying(folder, sink, engine)


class Laying(Generic[F]):
    """Rows on their way to one sink, by its worker's thread only. What is laid down outlives the program, which goes on
    after it: where a lane stands is for `standing` to say. OSErrors are raised as EnvironmentProblem."""

    def __init__(self, folder: Path, sink: Any, engine: Any) -> None:
        self._folder = folder
        self._sink = sink
        self._engine = engine
        self._laid: dict[str, Laid] = {}
        self.ended = False
        """Whether something could not be laid down: what comes now is merged."""
        self._last: dict[str, Handed[F]] = {}

    def standing(self, lane: Lane) -> LaneState | None:
        """Where the lane stands, with what is laid down for it: for the first time, of what the program left."""
        state: LaneState | None = self._sink.state(lane)
        laid = self._of(lane)
        if state is not None:
            _trying(laid.remove)  # It was loaded, and the program ended there.
        if state is not None or not laid.pieces:
            return state
        return LaneState(laid.span.end, identity=tuple(sorted(laid.identity.items())), rule=laid.rule)

    def has(self, lane: Lane) -> bool:
        """Whether something is laid down for the lane."""
        return lane.id in self._last

    def waiting(self) -> tuple[Handed[F], ...]:
        """Per lane with something laid down a write without rows that stands for it."""
        return tuple(self._last.values())

    def is_whole(self, item: Handed[F]) -> bool:
        """Whether the write is one of `waiting`."""
        return self._last.get(item.run.lane.id) is item

    def is_before(self, item: Handed[F]) -> bool:
        """Whether something is laid down for the lane under another plan than that of the write, for which the target has
        not been prepared yet."""
        last = self._last.get(item.run.lane.id)
        return last is not None and last.write.plan != item.write.plan

    def lay(self, item: Handed[F]) -> Position | None:
        """Lay down a write of a prepared lane; where the lane stands then. None for one that cannot be: it has an effect on
        others, or the target has rows already. Fatal where it goes on from what was laid down under another plan."""
        write, laid = item.write, self._of(item.run.lane)
        at = laid.span.end
        if laid.pieces and not write.beside and not write.span.after(at):
            return at
        if laid.pieces and not self.has(item.run.lane):
            self._go_on(item, laid)
        if not self._takes(item, laid):
            self.ended = True
            return None
        keys, facts = write.plan.table.keys, write.folded.facts
        number = laid.pieces[-1].number + 1 if laid.pieces else 0
        flags = (facts.unsent, facts.deletes)
        piece = Piece(number, write.span, write.folded.rows, write.folded.counts, (), (), *flags)
        laid.rule = write.plan.rule
        laid.identity.update(write.identity)
        parts = self._engine.apart(write.folded.frame, keys, PARTS)
        _trying(lambda: laid.add(piece, parts, item.raw))
        self._last[item.run.lane.id] = self._standing_for(item, laid)
        return laid.span.end

    def load(self, lane: Lane, reject: RejectRows[F]) -> LaneApplied:
        """Make the rows of the lane's target of what is laid down, in one commit; what became of all changes that went into
        it. Errors as of `Sink.apply`; what was laid down is still there then."""
        item, laid = self._last[lane.id], self._of(lane)
        state: LaneState | None = self._sink.state(lane)
        if state is not None:  # An attempt that failed had done its work.
            applied = LaneApplied(state.position, laid.counts + Counts(applied=laid.rows), state.forgotten)
            return self._done(lane, applied)
        parts, folder = _Parts(laid, item, self._engine), laid.folder / "load"
        shutil.rmtree(folder, ignore_errors=True)
        _trying(lambda: folder.mkdir(parents=True))
        applied = self._sink.load(item.write, parts, reject, folder)
        total = parts.counts.total + applied.counts.total
        ensure(total == laid.rows, f"Of {laid.rows} rows of lane {lane.id} that were laid down {total} are accounted for.")
        return self._done(lane, replace(applied, counts=laid.counts + parts.counts + applied.counts))

    def _done(self, lane: Lane, applied: LaneApplied) -> LaneApplied:
        del self._last[lane.id]
        _trying(self._of(lane).remove)
        return applied

    def records(self, lane: Lane) -> Frames[F]:
        """The records that made what is laid down."""
        return Frames(tuple(cast("Iterator[Records[F]]", self._of(lane).records())))

    def _of(self, lane: Lane) -> Laid:
        if lane.id not in self._laid:
            folder = self._folder / quote(lane.id, safe="")
            self._laid[lane.id] = _trying(lambda: Laid.read(folder, self._engine.parting))
        return self._laid[lane.id]

    def _takes(self, item: Handed[F], laid: Laid) -> bool:
        write, facts = item.write, item.write.folded.facts
        alone = write.beside or write.complete is not None or item.bundle
        if alone or facts.moves or facts.clear_below is not None or facts.cuts:
            return False
        if laid.pieces:
            return can_join(self._last[item.run.lane.id], item)
        return bool(self._sink.loads(item.run.lane, write.plan))

    def _go_on(self, item: Handed[F], laid: Laid) -> None:
        """With what the program left before, whatever becomes of the first write behind it."""
        if (laid.rule, laid.schema()) != (item.write.plan.rule, _frame(item).schema):
            raise _unmet(item.run.lane.id, "was made under another configuration")
        self._last[item.run.lane.id] = self._standing_for(item, laid)

    def unmet(self) -> Mapping[str, Fatal]:
        """By lane, what is wrong where the program left something behind which no write came, so that nobody knows its
        plan."""
        left = [lane for lane, laid in self._laid.items() if laid.pieces and lane not in self._last]
        return {lane: _unmet(lane, "is gone on with by no record that can be applied") for lane in left}

    def _standing_for(self, item: Handed[F], laid: Laid) -> Handed[F]:
        """All that is laid down as one write without its rows."""
        facts = Facts(unsent=any(p.unsent for p in laid.pieces), deletes=any(p.deletes for p in laid.pieces))
        nothing = Folded(_frame(item).slice(0, 0), facts, Counts(), 0, 0)
        write = replace(item.write, folded=cast("Folded[F]", nothing), span=laid.span, identity=dict(laid.identity))
        return replace(item, write=write, raw=(), size=0)


class _Parts(Generic[F]):
    """The parts of what is laid down, folded. `counts`: what the folds counted, once all have been gone through."""

    def __init__(self, laid: Laid, item: Handed[F], engine: Any) -> None:
        self._laid = laid
        self._engine = engine
        self._plan = item.write.plan
        self.counts = Counts()

    def __iter__(self) -> Iterator[Folded[F]]:
        self.counts = Counts()
        for parts in self._some():
            folded = self._folded(parts)
            self.counts += folded.counts
            yield folded

    def _folded(self, parts: Sequence[pa.Table]) -> Folded[F]:
        """Parts share no key. Each alone is in the order of the log where one partition is read, which spares folds most of
        their work; small ones are not worth that."""
        if len(parts) > 1 and sum(part.nbytes for part in parts) < ALONE * len(parts):
            parts = [pa.concat_tables(parts)]
        folded: list[Folded[F]] = [self._engine.fold(part, self._plan) for part in parts]
        frame = self._engine.concat([one.frame for one in folded])
        counts = sum((one.counts for one in folded), Counts())
        rows, size = sum(one.rows for one in folded), sum(one.size for one in folded)
        return Folded(frame, united_facts(one.facts for one in folded), counts, rows, size)

    def _some(self) -> Iterator[list[pa.Table]]:
        """Whole parts, as many as are not too large together."""
        found: list[pa.Table] = []
        for number in range(PARTS):
            batches = self._laid.part(number)
            found += [pa.Table.from_batches(batches)] if batches else []
            if sum(part.nbytes for part in found) >= AT_ONCE:
                yield found
                found = []
        if found:
            yield found


def _unmet(lane: str, why: str) -> Fatal:
    step = f"Begin anew: `replicator drop {lane}`, then repeat the command."
    return Fatal(f"what is laid down for lane {lane} {why}", next_step=step)


def _frame(item: Handed[Any]) -> pa.Table:
    return item.write.folded.frame


def _trying(act: Any) -> Any:
    try:
        return act()
    except OSError as error:
        raise EnvironmentProblem(
            f"what is laid down for a new target cannot be written or read ({error.strerror or error})",
            next_step="Make room where `state` of the config is, and repeat: it goes on.",
        ) from error
