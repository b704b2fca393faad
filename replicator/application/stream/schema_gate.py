"""The schema gate: splits a table slice where the schema changes, so that each change is applied under its own
schema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Generic

import structlog

from replicator.application.catalog import ALL_COLUMNS, TargetColumns
from replicator.application.lane_runs import LaneRun
from replicator.application.lane_schema import SchemaTransition, describe_stop
from replicator.application.problem import Problem
from replicator.domain.errors import ExitCode
from replicator.domain.position import Position
from replicator.domain.schema_versions import SchemaVersion
from replicator.ports.engine import Engine
from replicator.ports.frames import F

from .table_buffer import SchemaMark, TableSlice

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class GateResult(Generic[F]):
    """A table slice after the gate.

    - `slices`: in order, each with the columns that the lane applies.
    - `problem`, `transition`: set if the lane stops, and why.
    - `drop_versions`: drops of the table, to be stored even if no rows follow.
    """

    slices: Sequence[tuple[TableSlice[F], TargetColumns]]
    problem: Problem | None = None
    transition: SchemaTransition | None = None
    drop_versions: Sequence[SchemaVersion] = ()


class SchemaGate(Generic[F]):
    """Applies each change under the schema under which it was sent. Only the thread of one source uses it."""

    def __init__(self, engine: Engine[F], now: Callable[[], datetime]) -> None:
        self._engine = engine
        self._now = now

    def pass_slice(self, run: LaneRun, slice_: TableSlice[F]) -> GateResult[F]:
        """The slice, split at schema changes, up to the position where the lane stops. Moves the lane's schema."""
        pieces: list[tuple[TableSlice[F], TargetColumns]] = []
        drop_versions: list[SchemaVersion] = []
        marks = [mark for mark in slice_.marks if mark.table is not None or _is_ahead(run, slice_, mark.start)]
        for at, names in run.schema.find_emptied_columns(slice_.start):
            first, slice_ = self._cut_slice(slice_, Position({**slice_.start, **at}))
            if first.table is not None:
                pieces.append((first, run.schema.select_columns_without(first.table, names)))
        for number, mark in enumerate(marks):
            transition = self._find_transition(run, mark)
            if transition is None:
                continue
            if transition.decision.stops:
                first, _ = self._cut_slice(slice_, self._find_first_position(run, marks[number:]))
                problem = Problem(ExitCode.RUNTIME, *describe_stop(run.lane, transition))
                return GateResult([*pieces, (first, self._select_columns(run, first))], problem, transition, drop_versions)
            if transition.has_cut:
                first, slice_ = self._cut_slice(slice_, mark.start)
                pieces.append((first, self._select_columns(run, first)))
            if transition.version.dropped and run.schema.has_stored_versions:
                drop_versions.append(transition.version)
            run.schema.apply_transition(transition)
            if transition.decision.changes and not transition.is_known:
                emptied = {"emptied": list(transition.version.emptied)} if transition.version.emptied else {}
                changes = list(transition.version.changes)
                log.info("schema changed", lane=run.lane.id, schema=transition.version.number, changes=changes, **emptied)
        return GateResult([*pieces, (slice_, self._select_columns(run, slice_))], drop_versions=drop_versions)

    def _find_transition(self, run: LaneRun, mark: SchemaMark) -> SchemaTransition | None:
        if mark.table is None:
            return run.schema.find_drop_transition(mark.start, self._now())
        return run.schema.find_transition(mark.table, mark.start, self._now())

    def _find_first_position(self, run: LaneRun, marks: Sequence[SchemaMark]) -> Position:
        """Per partition, the first offset that the lane must not apply."""
        new = (mark.start for mark in marks if self._find_transition(run, mark) is not None)
        return Position.lowest(new)

    def _select_columns(self, run: LaneRun, slice_: TableSlice[F]) -> TargetColumns:
        return ALL_COLUMNS if slice_.table is None else run.schema.select_columns(slice_.table)

    def _cut_slice(self, slice_: TableSlice[F], at: Position) -> tuple[TableSlice[F], TableSlice[F]]:
        """The slice below a position, and the rest."""
        ends = {p: min(o, max(at.get(p, o), slice_.start.get(p, o))) for p, o in slice_.end.items()}
        end = Position(ends)
        if slice_.frame is None:
            return replace(slice_, end=end), replace(slice_, start=end)
        below, rest = self._engine.before(slice_.frame, at)
        return replace(slice_, frame=self._drop_empty(below), end=end, size=0), replace(
            slice_, frame=self._drop_empty(rest), start=Position({**slice_.start, **end})
        )

    def _drop_empty(self, frame: F) -> F | None:
        return frame if self._engine.count(frame) else None


def _is_ahead(run: LaneRun, slice_: TableSlice[F], at: Position) -> bool:
    """True if the record at `at` lies in the slice, and the lane has not read it yet."""
    return all(max(slice_.start[p], run.handed_over.get(p, o)) <= o < slice_.end[p] for p, o in at.items())
