"""Plans a run: the tables of the sources, their lanes, the plan of each lane, and what its sink will do."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any, Generic

from replicator.application.catalog import Catalog, UnusableTable
from replicator.application.lane_registry import is_target_taken, make_target_name_error, make_target_taken_error
from replicator.application.lane_schema import refuse_other_rule
from replicator.application.quarantine.rejects import count_for_lane
from replicator.application.sink_features import read_schema_versions
from replicator.domain.errors import ConfigProblem, ReplicatorError
from replicator.domain.policy.plan import ApplyPlan, LaneState
from replicator.domain.position import Position
from replicator.domain.schema_evolution import to_summary
from replicator.domain.table import TableSpec
from replicator.domain.transform.columns import UnknownMask
from replicator.ports.components import Components, RulesFor, SinkUse
from replicator.ports.decoder import Decoder
from replicator.ports.engine import Engine
from replicator.ports.frames import Batch, F, Lane
from replicator.ports.sink import Sink
from replicator.ports.source import Source

from .lanes import count_open_dead_letters

PEEK_RECORDS = 200
"""Offsets per partition that are read to find the tables."""


@dataclass(frozen=True)
class PlannedLane:
    """One lane with its plan, or with the problem that prevents one."""

    lane: Lane
    table: TableSpec | None
    plan: ApplyPlan | None
    problem: ReplicatorError | None = None


def list_plans(components: Components) -> Iterator[dict[str, Any]]:
    """Every lane that will run, as plain values.

    - lane, table, policy, watermark, retention (of tombstones), shape (row transforms), keys, columns, problem.
    - stages: SQL by name.
    - dead_letters: open ones with changes that the lane lacks; None if their store does not answer.

    The sinks are those of the pipeline, because they explain what they will run. The few records are decoded in
    this process, whichever engine is configured.
    """
    targets: dict[str, str] = {}
    with ExitStack() as stack:

        def open_sinks(use: SinkUse) -> dict[str, Sink[Any]]:
            names = [name for name, rules in components.sinks.items() if rules.has_lanes]
            return {name: stack.enter_context(closing(components.open_sink(name, use))) for name in names}

        sinks, local = open_sinks("write"), components.use_local()
        engine = local.build_engine()
        # Reading stored state needs no engine.
        stored, counts = _StoredLanes(open_sinks("read")), count_open_dead_letters(components)
        for name in sorted(name for name, rules in components.sources.items() if rules.has_tables):
            rules = components.sources[name]
            with closing(local.open_source(name)) as source:
                planning = LanePlanner(source, components.build_decoder(name), engine, rules.rules_for, rules.event_logs)
                entry = components.register.load(name)
                # A lane whose target belongs to another table's lane is last, so it is refused again.
                for planned in sorted(planning.plan_lanes(), key=lambda p, entry=entry: is_target_taken(p.lane, entry)):  # type: ignore[misc]
                    first = targets.setdefault(planned.lane.id, planned.lane.table)
                    if first != planned.lane.table:
                        planned = replace(planned, plan=None, problem=make_target_taken_error(planned.lane, first))  # noqa: PLW2901
                    if planned.lane.refused:
                        planned = replace(planned, plan=None, problem=make_target_name_error(planned.lane))  # noqa: PLW2901
                    if planned.problem is None:
                        planned = replace(planned, problem=stored.find_problem(planned))  # noqa: PLW2901
                    planned, stages = _explain_plan(planned, sinks[planned.lane.sink])  # noqa: PLW2901
                    lane = planned.lane
                    waiting = None if counts is None else count_for_lane(counts, lane.source, lane.table, lane.id)
                    yield {**_to_json(planned), "stages": stages, "schemas": stored.schemas(lane), "dead_letters": waiting}


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
        self._catalog = Catalog(engine.frames, decoder, rules_for)
        self._problems: dict[str, ReplicatorError] = {}
        self._tables: dict[str, None] = {}

    def plan_lanes(self) -> Sequence[PlannedLane]:
        """Every lane of every table in the first records. Errors of the source pass through."""
        start, end = self._source.start(), self._source.end()
        until = Position({p: min(o + PEEK_RECORDS, end.get(p, o)) for p, o in start.items()})
        self._source.read(start, until, self._learn_batch, threading.Event())
        planned = []
        for lane in self._logs:
            for table, problem in sorted(self._problems.items()):
                # The log would store values unmasked, because the mask's name is wrong.
                rules = self._rules_for(table)
                if isinstance(problem, UnknownMask) and rules is not None and lane.sink in rules.event_logs:
                    planned.append(PlannedLane(replace(lane, table=table), None, None, problem))
                    break
        for table in sorted(self._tables):
            rules = self._rules_for(table)
            for lane in rules.lanes if rules else ():
                union = self._catalog.get_union(lane.table)
                if union is None:
                    planned.append(PlannedLane(lane, None, None, self._problems.get(lane.table)))
                    continue
                try:
                    planned.append(PlannedLane(lane, union, self._catalog.plan_lane(lane, union)))
                except ReplicatorError as error:
                    planned.append(PlannedLane(lane, union, None, error))
        return planned

    def _learn_batch(self, batch: Batch[F]) -> None:
        for slice_ in self._engine.route(batch.frame, self._decoder).slices:
            self._tables[slice_.table] = None
            try:
                self._catalog.learn_schema(slice_)
            except UnusableTable as unusable:
                if isinstance(unusable.cause, ReplicatorError):
                    self._problems[slice_.table] = unusable.cause


class _StoredLanes:
    """The state of lanes in sinks. A sink that fails is not used again, because the plan does not need it."""

    def __init__(self, sinks: Mapping[str, Sink[Any]]) -> None:
        self._sinks = dict(sinks)

    def schemas(self, lane: Lane) -> list[dict[str, Any]] | None:
        """The schemas by number; None if unknown."""
        if lane.sink not in self._sinks:
            return None
        try:
            return [to_summary(version) for version in read_schema_versions(self._sinks[lane.sink], lane)]
        except ReplicatorError:
            del self._sinks[lane.sink]
            return None

    def find_problem(self, planned: PlannedLane) -> ConfigProblem | None:
        """Why the lane will not write its target; None if it may, or if that is unknown. Another pipeline may write it, or
        its rows were written under another rule."""
        sink, lane = self._sinks.get(planned.lane.sink), planned.lane
        try:
            if sink is not None and (refuse := sink.features.refuse_second_writer) is not None:
                refuse(lane)
            if sink is not None and planned.plan is not None:
                refuse_other_rule(lane, (sink.state(lane) or LaneState()).rule, planned.plan.rule)
        except ConfigProblem as problem:
            return problem
        except ReplicatorError:
            del self._sinks[lane.sink]
        return None


def _explain_plan(planned: PlannedLane, sink: Sink[Any]) -> tuple[PlannedLane, dict[str, str]]:
    """The stages that the sink will run; the sink's problem if it cannot run the plan."""
    explain = sink.features.explain
    if planned.plan is None or explain is None:
        return planned, {}
    try:
        return planned, dict(explain(planned.lane, planned.plan))
    except ConfigProblem as problem:
        return replace(planned, problem=planned.problem or problem), {}


def _to_json(planned: PlannedLane) -> dict[str, Any]:
    lane, table = planned.lane, planned.table
    return {
        "lane": lane.id,
        "table": lane.table,
        "policy": lane.policy,
        "watermark": None if lane.watermark is None else str(lane.watermark),
        "retention": None if lane.retention is None else str(lane.retention),
        "shape": list(lane.row_transforms.description),
        "config": lane.config_line,
        "schema_changes": lane.schema_rules.description,
        "keys": list(table.keys) if table else [],
        "columns": {c.name: str(c.type) for c in table.columns} if table else {},
        "problem": str(planned.problem) if planned.problem else None,
    }
