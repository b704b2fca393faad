"""Plans a run: the tables of a source, their lanes, and the plan of each lane."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic

from replicator.application.catalog import Catalog, UnusableTable
from replicator.domain.errors import ReplicatorError
from replicator.domain.policy.plan import ApplyPlan
from replicator.domain.position import Position
from replicator.domain.table import TableSpec
from replicator.domain.transform.columns import UnknownMask
from replicator.ports.components import RulesFor
from replicator.ports.decoder import Decoder
from replicator.ports.engine import Engine
from replicator.ports.frames import Batch, F, Lane
from replicator.ports.source import Source

PEEK_RECORDS = 200
"""Offsets per partition that are read to find the tables."""


@dataclass(frozen=True)
class PlannedLane:
    """One lane with its plan, or with the problem that prevents one."""

    lane: Lane
    table: TableSpec | None
    plan: ApplyPlan | None
    problem: ReplicatorError | None = None


class LanePlanner(Generic[F]):
    """Reads the first records of each partition. Applies nothing, moves no position."""

    def __init__(
        self, source: Source[F], decoder: Decoder, engine: Engine[F], rules_for: RulesFor, logs: Sequence[Lane] = ()
    ) -> None:
        """`logs`: the event-log lanes of the source. They have no plan, but may have a problem."""
        self._logs = logs
        self._source = source
        self._decoder = decoder
        self._engine = engine
        self._rules_for = rules_for
        self._catalog = Catalog(engine, decoder, rules_for)
        self._problems: dict[str, ReplicatorError] = {}
        self._tables: dict[str, None] = {}

    def plan_lanes(self) -> Sequence[PlannedLane]:
        """Every lane of every table in the first records. Errors of the source pass through."""
        start, end = self._source.start(), self._source.end()
        until = Position({p: min(o + PEEK_RECORDS, end.get(p, o)) for p, o in start.items()})
        self._source.read(start, until, self._learn_batch, threading.Event())
        return [
            *self._list_stopped_logs(),
            *(planned for table in sorted(self._tables) for planned in self._plan_table(table)),
        ]

    def _list_stopped_logs(self) -> Iterator[PlannedLane]:
        """Event logs that would store values unmasked, because the mask's name is wrong."""
        for lane in self._logs:
            for table, problem in sorted(self._problems.items()):
                rules = self._rules_for(table)
                if isinstance(problem, UnknownMask) and rules is not None and lane.sink in rules.event_logs:
                    yield PlannedLane(replace(lane, table=table), None, None, problem)
                    break

    def _learn_batch(self, batch: Batch[F]) -> None:
        for run in self._engine.route(batch.frame, self._decoder).runs:
            self._tables[run.table] = None
            try:
                self._catalog.find_schema(run)
            except UnusableTable as unusable:
                if isinstance(unusable.cause, ReplicatorError):
                    self._problems[run.table] = unusable.cause

    def _plan_table(self, name: str) -> Sequence[PlannedLane]:
        rules = self._rules_for(name)
        return [self._plan_lane(lane) for lane in rules.lanes] if rules else []

    def _plan_lane(self, lane: Lane) -> PlannedLane:
        table = self._catalog.get_union(lane.table)
        if table is None:
            return PlannedLane(lane, None, None, self._problems.get(lane.table))
        try:
            return PlannedLane(lane, table, self._catalog.plan_lane(lane, table))
        except ReplicatorError as problem:
            return PlannedLane(lane, table, None, problem)
