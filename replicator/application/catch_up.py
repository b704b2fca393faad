"""Lanes that are behind the main stream read for themselves, a little at a time, until they can join it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

import structlog

from replicator.domain.errors import DataLoss, Retryable
from replicator.domain.position import Position, Span
from replicator.ports.frames import Batch, F
from replicator.ports.source import HasSnapshots

from .catalog import Catalog, Unusable
from .crashes import Crashes
from .decoding import Decoding
from .feed import Feed
from .handover import Handed
from .lanes import LaneRun, LaneStatus
from .problem import problem_of
from .roster import Place, Roster
from .shared import Shared
from .writes import Writes, covered, only_topics

log = structlog.get_logger(__name__)


class SinkAway(Exception):
    """The sink of the lane that reads has no room and does not answer, or the lane is full: go on reading later."""


class Enough(Exception):
    """A piece has more records than was to be expected of its offsets: the others have their turn first."""


@dataclass
class Behind(Generic[F]):
    """One lane that is catching up. `read`: how far it has read; its own `feed` holds back what the main one would. `reach`:
    offsets per partition to read at once; more than usual where most of them have no record. `taken`: records of this
    piece; `has_read`: there were some in any. `has_partial_batch`: the lane and its feed have moved on, and their
    writes are not handed over yet."""

    run: LaneRun
    generation: int
    read: Position
    feed: Feed[F]
    reach: int
    taken: int = 0
    has_partial_batch: bool = False
    has_read: bool = False

    def pace(self, piece: Span, usual: int) -> None:
        """Reach further after a piece in which most offsets had no record, and less far after one with many."""
        offsets = sum(end - piece.start[p] for p, end in piece.end.items())
        if self.taken > usual:
            self.reach = max(usual, self.reach * usual // self.taken)
        elif 2 * self.taken < offsets:
            self.reach *= 2

    def lacks(self, end: Position) -> Span:
        """What is left to read up to `end`."""
        read = Position({**self.run.handed, **self.read})  # Partitions may have begun since the lane fell behind.
        missing = {p: o for p, o in end.items() if read.get(p, o) < o}
        return Span(read.only(missing), Position(missing))


@dataclass(frozen=True)
class Toolbox(Generic[F]):
    """The parts of a pipeline that catching up shares with the main stream. `seen(table)`: what takes every decoded record,
    None for nothing."""

    place: Place[F]
    shared: Shared[F]
    roster: Roster[F]
    catalog: Catalog[F]
    decoding: Decoding[F]
    writes: Writes[F]
    crashes: Crashes[F]
    seen: Callable[[str], Callable[[F], None] | None]


class CatchUp(Generic[F]):
    """Used by the thread of its source only. The main position never goes back for a lane.

    `target(run)` says where the main stream stands for a lane; `joined(run, feed, has_read)` takes over a lane that has got
    there, be it without having read anything. `beat` is called while a sink is waited for.
    """

    def __init__(
        self,
        tools: Toolbox[F],
        target: Callable[[LaneRun], Position],
        joined: Callable[[LaneRun, Feed[F], bool], None],
        hand_over: Callable[[Sequence[Handed[F]]], None],
        beat: Callable[[], None],
    ) -> None:
        self._tools = tools
        self._shared = tools.shared
        self._target = target
        self._joined = joined
        self._hand_over = hand_over
        self._beat = beat
        self._behind: dict[str, Behind[F]] = {}

    def turn(self, seconds: float) -> bool:
        """Let lanes that are behind read on, one bounded piece each, until `seconds` are over or nothing can be done. The
        next turn begins with those that have waited longest: a piece of each of a thousand lanes would hold the stream up
        for minutes. True when lanes are left that are still behind."""
        deadline = self._shared.clock() + seconds
        while behind := tuple(self._refresh().values()):
            has_moved = False
            for one in behind:
                self._behind[one.run.lane.id] = self._behind.pop(one.run.lane.id)
                has_moved |= self._step(one)
                if self._shared.clock() >= deadline or self._shared.stop.is_set():
                    return bool(self._refresh())
            if not has_moved:
                break
        return bool(self._refresh())

    def join(self) -> None:
        """Let lanes that are not behind at all join, without reading."""
        self._refresh()

    def _refresh(self) -> Mapping[str, Behind[F]]:
        """The lanes that are behind now; those that have arrived have joined."""
        for run in self._tools.roster.runs():
            if run.status is LaneStatus.CATCHING_UP and not self._is_current(run):
                feed = Feed(self._shared.engine, self._shared.options, run.handed, self._shared.clock)
                reach = self._shared.options.catch_up_offsets
                known = {p: o for p, o in run.handed.items() if p in run.begun}
                self._tools.decoding.know(run.lane.table, Span(run.begun.only(known), Position(known)))
                self._behind[run.lane.id] = Behind(run, run.placed, run.handed, feed, reach)
        for lane_id, behind in tuple(self._behind.items()):
            if behind.run.status is not LaneStatus.CATCHING_UP or not self._is_current(behind.run):
                del self._behind[lane_id]
            elif not self._missing(behind):
                del self._behind[lane_id]
                self._joined(behind.run, behind.feed, behind.has_read)
        return self._behind

    def _is_current(self, run: LaneRun) -> bool:
        behind = self._behind.get(run.lane.id)
        return behind is not None and behind.generation == run.placed

    def _missing(self, behind: Behind[F]) -> Span:
        """What lies between the lane and the main stream."""
        return behind.lacks(self._target(behind.run))

    def _step(self, behind: Behind[F]) -> bool:
        """Read one piece; False when nothing could be done now."""
        if behind.run.is_full or not self._tools.place.workers[behind.run.lane.sink].has_room():
            return False
        missing, behind.taken = self._missing(behind), 0
        until = self._until(missing, behind.reach)
        try:
            self._tools.place.source.read(missing.start, until, lambda b: self._take(behind, b), self._shared.stop)
            behind.pace(Span(missing.start, until), self._shared.options.catch_up_offsets)
            return self._shared.stop.is_set() or self._pass_holes(behind, until)
        except Retryable as error:
            # Tried again at every turn: said once.
            tell = log.debug if behind.run.retrying else log.warning
            tell("cannot catch up now", lane=behind.run.lane.id, sentence=error.sentence)
            with self._shared.lanes.under_lock():
                if behind.has_partial_batch and self._shared.lanes.is_live(behind.run, behind.generation):
                    self._tools.roster.restart(behind.run)  # From what is committed.
            self._shared.lanes.trouble([behind.run], problem_of(error))
            self._shared.silence.extend("Source", self._tools.place.name, error.sentence)
            return False
        except SinkAway:
            return False
        except Enough:
            behind.pace(Span(missing.start, until), self._shared.options.catch_up_offsets)
            return True
        except DataLoss as error:
            self._shared.lanes.suspend(behind.run, problem_of(error))
            return True

    def _until(self, missing: Span, reach: int) -> Position:
        """The end of the next piece: never within a snapshot, which is for those who began there."""
        until = Position({p: min(o, missing.start[p] + reach) for p, o in missing.end.items()})
        source = self._tools.place.source
        if not isinstance(source, HasSnapshots):
            return until
        return Position({p: min(o, missing.end[p]) for p, o in source.after_snapshots(until).items()})

    def _pass_holes(self, behind: Behind[F], until: Position) -> bool:
        """Offsets without a record at the end of the piece; False when the sink has no room for what they let go."""
        left = behind.lacks(until)
        if left and not self._has_room(behind):
            return False
        if left:
            behind.has_partial_batch = True
            chunks = behind.feed.push((), self._tools.catalog.table(behind.run.lane.table), left)
            self._give(behind, [h for c in chunks for h in self._tools.writes.of_chunk(c, [behind.run], {})], until)
        return True

    def _has_room(self, behind: Behind[F]) -> bool:
        """Wait for the sink; False when it is away, or the lane is full."""
        worker = self._tools.place.workers[behind.run.lane.sink]

        def is_given_up() -> bool:
            self._beat()
            return behind.run.retrying is not None

        return worker.wait_for_room(is_given_up, self._shared.stop) and not behind.run.is_full

    def _take(self, behind: Behind[F], batch: Batch[F]) -> None:
        if not batch.span or not self._shared.lanes.is_live(behind.run, behind.generation):
            return
        if not self._has_room(behind):
            raise SinkAway
        self._shared.silence.end()
        for piece in self._tools.crashes.pieces(batch, behind.run.lane.id, self._shared.wait_for_sinks):
            self._pass_on(behind, piece)
        behind.taken += batch.records
        behind.has_read |= bool(batch.records)
        if behind.taken > self._shared.options.catch_up_offsets < behind.reach:
            raise Enough

    def _pass_on(self, behind: Behind[F], batch: Batch[F]) -> None:
        try:
            handed = self._of_log(behind, batch) if behind.run.is_event_log else self._of_changes(behind, batch)
        except Unusable as error:
            self._shared.lanes.suspend(behind.run, problem_of(error.cause), error.cause)
        else:
            self._give(behind, handed, batch.span.end)

    def _of_log(self, behind: Behind[F], batch: Batch[F]) -> list[Handed[F]]:
        sink = behind.run.lane.sink
        routed = self._tools.decoding.route(batch) if self._tools.place.private else None
        behind.has_partial_batch = True
        return self._tools.writes.of_batch(batch, routed, [behind.run], {sink: self._tools.roster.excluded(sink)})

    def _of_changes(self, behind: Behind[F], batch: Batch[F]) -> list[Handed[F]]:
        tools, table = self._tools, behind.run.lane.table
        routed = tools.decoding.route(batch)
        runs, drops = [run for run in routed.runs if run.table == table], routed.drops.get(table, ())
        topics = tools.roster.topics[table]
        parts = tools.decoding.changes(table, runs, batch, topics=topics, drops=drops, seen=tools.seen(table))
        behind.has_partial_batch = True
        span = covered(batch.span, topics)
        records = tools.writes.keeping.of(batch)
        chunks = behind.feed.take(parts, tools.catalog.table(table), span, records, records.size, drops=drops)
        known = only_topics(batch.identity, batch.span.end)
        return [h for c in chunks for h in tools.writes.of_chunk(c, [behind.run], known)]

    def _give(self, behind: Behind[F], handed: Sequence[Handed[F]], end: Position) -> None:
        """At once, since a second time there may be no room."""
        behind.read = behind.read.advanced_to(end)
        self._hand_over(handed)
        behind.has_partial_batch = False
