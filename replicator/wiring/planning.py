"""`plan`, put together: sources to look at, sinks to explain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from replicator.application.dead_letter_counts import count_for_lane
from replicator.application.planning import Planned, Planning
from replicator.application.register import FileRegister
from replicator.application.remembering import remembered
from replicator.application.roster import refused_id, target_taken, target_unnamed
from replicator.application.schemas import refuse_other_rule
from replicator.domain.errors import ConfigProblem, ReplicatorError
from replicator.domain.plan import LaneState
from replicator.domain.schema_versions import told
from replicator.ports.frames import Lane
from replicator.ports.sink import RefusesSecondWriter
from replicator.settings import Loaded

from . import adapters, parts
from .offline import count_open_letters


def plans(loaded: Loaded) -> Iterator[dict[str, Any]]:
    """Every lane that will run, as plain values: lane, table, policy, watermark, retention (of deletes), shape (what becomes
    of changes before), keys, columns, stages (SQL by name), problem, dead_letters (how many open ones keep something from
    it; None where their store does not say).

    The sinks are the pipeline's, as they explain what they will run; the few records that are looked at pass through this
    process, whichever engine carries them later.
    """
    targets: dict[str, str] = {}
    sinks = adapters.sinks(loaded)
    looking = adapters.locally(loaded)
    engine = adapters.engine(looking)
    readers = {name: adapters.sink(loaded, name) for name in sinks}  # No engine is started for what is stored.
    asked, counts = _Stored(readers), count_open_letters(loaded)
    try:
        for name in sorted({table.source for table in loaded.settings.tables}):
            source = adapters.source(looking, name)
            try:
                rules, logs = parts.rules_for(loaded, name), parts.event_logs(loaded, name)
                planning = Planning(source, adapters.decoder(loaded, name), engine, rules, logs)
                begun = FileRegister(parts.register_folder(loaded)).load(name).beginnings
                # A lane that had to leave its target to another table's does so again.
                for planned in sorted(planning.lanes(), key=lambda p, begun=begun: refused_id(p.lane) in begun):  # type: ignore[misc]
                    first = targets.setdefault(planned.lane.id, planned.lane.table)
                    if first != planned.lane.table:
                        planned = replace(planned, plan=None, problem=target_taken(planned.lane, first))  # noqa: PLW2901
                    if planned.lane.refused:
                        planned = replace(planned, plan=None, problem=target_unnamed(planned.lane))  # noqa: PLW2901
                    if planned.problem is None:
                        problem = asked.second_writer(planned.lane) or asked.changed_rule(planned)
                        planned = replace(planned, problem=problem)  # noqa: PLW2901
                    planned, stages = _explained(planned, sinks[planned.lane.sink])  # noqa: PLW2901
                    lane = planned.lane
                    waiting = None if counts is None else count_for_lane(counts, lane.source, lane.table, lane.id)
                    yield {**_plain(planned), "stages": stages, "schemas": asked.schemas(lane), "dead_letters": waiting}
            finally:
                source.close()
    finally:
        for sink in (*sinks.values(), *readers.values()):
            sink.close()


def event_logs(loaded: Loaded) -> list[Lane]:
    """The lanes that keep records of every table, whatever tables there are."""
    return [lane for name in sorted({t.source for t in loaded.settings.tables}) for lane in parts.event_logs(loaded, name)]


class _Stored:
    """What sinks store of lanes. A sink that fails is not asked again: what will run is known without."""

    def __init__(self, sinks: Mapping[str, Any]) -> None:
        self._sinks = dict(sinks)

    def schemas(self, lane: Lane) -> list[dict[str, Any]] | None:
        """By number; None where it is not known."""
        if lane.sink not in self._sinks:
            return None
        try:
            return [told(version) for version in remembered(self._sinks[lane.sink], lane)]
        except ReplicatorError:
            del self._sinks[lane.sink]
            return None

    def second_writer(self, lane: Lane) -> ConfigProblem | None:
        """Why the lane will not get its target; None where that is not known, or not so."""
        sink = self._sinks.get(lane.sink)
        try:
            if isinstance(sink, RefusesSecondWriter):
                sink.refuse_second_writer(lane)
        except ConfigProblem as problem:
            return problem
        except ReplicatorError:
            del self._sinks[lane.sink]
        return None

    def changed_rule(self, planned: Planned) -> ConfigProblem | None:
        """Why the lane will not write to its target: its rows were written under another rule."""
        sink, lane = self._sinks.get(planned.lane.sink), planned.lane
        try:
            if sink is not None and planned.plan is not None:
                refuse_other_rule(lane, (sink.state(lane) or LaneState()).rule, planned.plan.rule)
        except ConfigProblem as problem:
            return problem
        except ReplicatorError:
            del self._sinks[lane.sink]
        return None


def _explained(planned: Planned, sink: Any) -> tuple[Planned, dict[str, str]]:
    """What the sink will run of the plan, unless that does not suit it."""
    if planned.plan is None or not hasattr(sink, "explain"):
        return planned, {}
    try:
        return planned, dict(sink.explain(planned.lane, planned.plan))
    except ConfigProblem as problem:
        return replace(planned, problem=planned.problem or problem), {}


def _plain(planned: Planned) -> dict[str, Any]:
    lane, table = planned.lane, planned.table
    return {
        "lane": lane.id,
        "table": lane.table,
        "policy": lane.policy,
        "watermark": None if lane.watermark is None else str(lane.watermark),
        "retention": None if lane.retention is None else str(lane.retention),
        "shape": list(lane.shape.words),
        "config": lane.config_line,
        "schema_changes": lane.schema_rules.words,
        "keys": list(table.keys) if table else [],
        "columns": {c.name: str(c.type) for c in table.columns} if table else {},
        "problem": str(planned.problem) if planned.problem else None,
    }
