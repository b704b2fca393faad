"""Chunks on their way to a lane whose table's schema changes within them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Generic

import structlog

from replicator.domain.errors import ExitCode
from replicator.domain.position import Position
from replicator.domain.schema_versions import SchemaVersion
from replicator.ports.engine import Engine
from replicator.ports.frames import F

from .catalog import AS_IT_IS, Taken
from .feed import Chunk, Mark
from .lanes import LaneRun
from .problem import Problem
from .schemas import Turn, told_stop

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Passed(Generic[F]):
    """What a lane takes of a chunk: `pieces` in order, each with what the lane takes of its frame. Where it does not go on,
    `problem` says why, and `turn` what it met. `drops`: of its table, to be remembered whether or not rows come after
    them."""

    pieces: Sequence[tuple[Chunk[F], Taken]]
    problem: Problem | None = None
    turn: Turn | None = None
    drops: Sequence[SchemaVersion] = ()


class Gate(Generic[F]):
    """Every change is applied under the schema that it was sent under. Used by the thread of one source only."""

    def __init__(self, engine: Engine[F], now: Callable[[], datetime]) -> None:
        self._engine = engine
        self._now = now

    def passed(self, run: LaneRun, chunk: Chunk[F]) -> Passed[F]:
        """The chunk, cut where the lane's table is reshaped, up to where the lane stops; its schema moves on."""
        pieces: list[tuple[Chunk[F], Taken]] = []
        drops: list[SchemaVersion] = []
        marks = [mark for mark in chunk.marks if mark.table is not None or _is_ahead(run, chunk, mark.start)]
        for at, names in run.schema.emptied_behind(chunk.start):
            first, chunk = self._cut(chunk, Position({**chunk.start, **at}))
            if first.table is not None:
                pieces.append((first, run.schema.taken_without(first.table, names)))
        for number, mark in enumerate(marks):
            turn = self._met(run, mark)
            if turn is None:
                continue
            if turn.decision.stops:
                first, _ = self._cut(chunk, self._first_of(run, marks[number:]))
                problem = Problem(ExitCode.RUNTIME, *told_stop(run.lane, turn))
                return Passed([*pieces, (first, self._taken(run, first))], problem, turn, drops)
            if turn.cuts:
                first, chunk = self._cut(chunk, mark.start)
                pieces.append((first, self._taken(run, first)))
            if turn.version.dropped and run.schema.is_remembered:
                drops.append(turn.version)
            run.schema.take(turn)
            if turn.decision.changes and not turn.known:
                told = {"emptied": list(turn.version.emptied)} if turn.version.emptied else {}
                changes = list(turn.version.changes)
                log.info("schema changed", lane=run.lane.id, schema=turn.version.number, changes=changes, **told)
        return Passed([*pieces, (chunk, self._taken(run, chunk))], drops=drops)

    def _met(self, run: LaneRun, mark: Mark) -> Turn | None:
        if mark.table is None:
            return run.schema.meets_drop(mark.start, self._now())
        return run.schema.meets(mark.table, mark.start, self._now())

    def _first_of(self, run: LaneRun, marks: Sequence[Mark]) -> Position:
        """Where, in each partition, the first records come that the lane may not take."""
        new = (mark.start for mark in marks if self._met(run, mark) is not None)
        return Position.lowest(new)

    def _taken(self, run: LaneRun, chunk: Chunk[F]) -> Taken:
        return AS_IT_IS if chunk.table is None else run.schema.taken(chunk.table)

    def _cut(self, chunk: Chunk[F], at: Position) -> tuple[Chunk[F], Chunk[F]]:
        """What lies below a position, and the rest."""
        ends = {p: min(o, max(at.get(p, o), chunk.start.get(p, o))) for p, o in chunk.end.items()}
        end = Position(ends)
        if chunk.frame is None:
            return replace(chunk, end=end), replace(chunk, start=end)
        below, rest = self._engine.before(chunk.frame, at)
        return replace(chunk, frame=self._or_none(below), end=end, size=0), replace(
            chunk, frame=self._or_none(rest), start=Position({**chunk.start, **end})
        )

    def _or_none(self, frame: F) -> F | None:
        return frame if self._engine.count(frame) else None


def _is_ahead(run: LaneRun, chunk: Chunk[F], at: Position) -> bool:
    """The record there lies in the chunk, and the lane has not got it yet."""
    return all(max(chunk.start[p], run.handed.get(p, o)) <= o < chunk.end[p] for p, o in at.items())
