"""`plan`: reads the sources, and lets the sinks explain their plans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from replicator.application.lane_registry import make_refused_id, make_target_name_error, make_target_taken_error
from replicator.application.lane_schema import refuse_other_rule
from replicator.application.operations.lanes import count_open_dead_letters
from replicator.application.operations.plan import LanePlanner, PlannedLane
from replicator.application.quarantine.dead_letter_counts import count_for_lane
from replicator.application.schema_history import read_schema_versions
from replicator.application.stream.file_register import FileRegister
from replicator.domain.errors import ConfigProblem, ReplicatorError
from replicator.domain.policy.plan import LaneState
from replicator.domain.schema_versions import to_summary
from replicator.ports.frames import Lane
from replicator.ports.sink import RefusesSecondWriter
from replicator.settings import Loaded

from . import adapters, build
from .components import ConfiguredComponents


def list_plans(loaded: Loaded) -> Iterator[dict[str, Any]]:
    """Every lane that will run, as plain values.

    - lane, table, policy, watermark, retention (of tombstones), shape (row transforms), keys, columns, problem.
    - stages: SQL by name.
    - dead_letters: open ones with changes that the lane lacks; None if their store does not answer.

    The sinks are those of the pipeline, because they explain what they will run. The few records are decoded in
    this process, whichever engine is configured.
    """
    targets: dict[str, str] = {}
    sinks = adapters.build_sinks(loaded)
    looking = adapters.use_local_engine(loaded)
    engine = adapters.build_engine(looking)
    readers = {name: adapters.build_sink(loaded, name) for name in sinks}  # Reading stored state needs no engine.
    asked, counts = _StoredLanes(readers), count_open_dead_letters(ConfiguredComponents(loaded))
    try:
        for name in sorted({table.source for table in loaded.settings.tables}):
            source = adapters.build_source(looking, name)
            try:
                rules, logs = build.build_rules_for(loaded, name), build.build_event_logs(loaded, name)
                planning = LanePlanner(source, adapters.build_decoder(loaded, name), engine, rules, logs)
                begun = FileRegister(build.get_register_folder(loaded)).load(name).beginnings
                # A lane whose target belongs to another table's lane is last, so it is refused again.
                for planned in sorted(planning.plan_lanes(), key=lambda p, begun=begun: make_refused_id(p.lane) in begun):  # type: ignore[misc]
                    first = targets.setdefault(planned.lane.id, planned.lane.table)
                    if first != planned.lane.table:
                        planned = replace(planned, plan=None, problem=make_target_taken_error(planned.lane, first))  # noqa: PLW2901
                    if planned.lane.refused:
                        planned = replace(planned, plan=None, problem=make_target_name_error(planned.lane))  # noqa: PLW2901
                    if planned.problem is None:
                        problem = asked.second_writer(planned.lane) or asked.changed_rule(planned)
                        planned = replace(planned, problem=problem)  # noqa: PLW2901
                    planned, stages = _explain_plan(planned, sinks[planned.lane.sink])  # noqa: PLW2901
                    lane = planned.lane
                    waiting = None if counts is None else count_for_lane(counts, lane.source, lane.table, lane.id)
                    yield {**_to_json(planned), "stages": stages, "schemas": asked.schemas(lane), "dead_letters": waiting}
            finally:
                source.close()
    finally:
        for sink in (*sinks.values(), *readers.values()):
            sink.close()


def list_event_logs(loaded: Loaded) -> list[Lane]:
    """The event-log lanes, which store records of all tables."""
    return [
        lane for name in sorted({t.source for t in loaded.settings.tables}) for lane in build.build_event_logs(loaded, name)
    ]


class _StoredLanes:
    """The state of lanes in sinks. A sink that fails is not used again, because the plan does not need it."""

    def __init__(self, sinks: Mapping[str, Any]) -> None:
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

    def second_writer(self, lane: Lane) -> ConfigProblem | None:
        """Why the lane must not write its target; None if it may, or if that is unknown."""
        sink = self._sinks.get(lane.sink)
        try:
            if isinstance(sink, RefusesSecondWriter):
                sink.refuse_second_writer(lane)
        except ConfigProblem as problem:
            return problem
        except ReplicatorError:
            del self._sinks[lane.sink]
        return None

    def changed_rule(self, planned: PlannedLane) -> ConfigProblem | None:
        """Why the lane will not write its target: its rows were written under another rule."""
        sink, lane = self._sinks.get(planned.lane.sink), planned.lane
        try:
            if sink is not None and planned.plan is not None:
                refuse_other_rule(lane, (sink.state(lane) or LaneState()).rule, planned.plan.rule)
        except ConfigProblem as problem:
            return problem
        except ReplicatorError:
            del self._sinks[lane.sink]
        return None


def _explain_plan(planned: PlannedLane, sink: Any) -> tuple[PlannedLane, dict[str, str]]:
    """The stages that the sink will run; the sink's problem if it cannot run the plan."""
    if planned.plan is None or not hasattr(sink, "explain"):
        return planned, {}
    try:
        return planned, dict(sink.explain(planned.lane, planned.plan))
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
