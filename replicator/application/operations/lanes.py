"""Lanes while the daemon does not run: their status, their schemas, and the commands that change them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

from replicator.application.lane_registry import (
    find_target_problem,
    list_lanes,
    make_refused_id,
    make_target_name_error,
    make_target_taken_error,
    refuse_missing,
)
from replicator.application.lane_schema import refuse_changed_rule
from replicator.application.operations.control import (
    LanePosition,
    accept_pending_schema,
    apply_skip,
    check_skip,
    describe_missing_when_stopped,
    resync_stopped,
)
from replicator.application.quarantine.rejects import count_for_lane
from replicator.application.sink_features import read_schema_versions
from replicator.domain.errors import ConfigProblem, ReplicatorError, Retryable
from replicator.domain.policy.plan import LaneState
from replicator.domain.position import Position
from replicator.domain.schema_evolution import SchemaVersion, to_json, to_summary
from replicator.domain.table import get_unqualified_name
from replicator.ports.components import Components
from replicator.ports.frames import Lane
from replicator.ports.stores import DeadLetterGroup

from .status import describe_tombstones, list_open_dead_letters


def find_source_table(components: Components, name: str) -> str:
    """The full name of a source table: `name` itself, or the SCHEMA.TABLE whose last part it is.

    Searches tables that were read so far or have an exact entry; `name` if none matches. ConfigProblem for several.
    """
    tables = {table for source in components.sources.values() for table in source.tables}
    for source, rules in components.sources.items():
        tables |= {table for table in components.register.load(source).topics if rules.rules_for(table) is not None}
    matching = sorted(table for table in tables if get_unqualified_name(table) == name)
    if name in tables or not matching:
        return name
    if len(matching) > 1:
        raise ConfigProblem(f"there are several tables {name!r}", next_step=f"Name one: {', '.join(matching)}.")
    return matching[0]


def find_lane(components: Components, lane_id: str) -> Lane:
    """The lane with this id. ConfigProblem with the existing ids."""
    lanes = list_lanes(components)
    for lane in lanes:
        if lane.id == lane_id:
            return lane
    names = ", ".join(lane.id for lane in lanes) or "none yet"
    raise ConfigProblem(f"there is no lane {lane_id!r}", next_step=f"The lanes are: {names}.")


def _find_writable_lane(components: Components, lane_id: str) -> Lane:
    """The lane with this id. ConfigProblem if there is none, or if it has no target of its own."""
    lane = find_lane(components, lane_id)
    if problem := find_target_problem(lane, components.register.load(lane.source)):
        raise problem
    return lane


def require_lane(components: Components, lane_id: str) -> None:
    """ConfigProblem unless the lane exists, in the daemon if one runs."""
    running = components.ask_daemon()
    if running is None or all(lane["id"] != lane_id for lane in running["lanes"]):
        find_lane(components, lane_id)


def read_status(components: Components) -> dict[str, Any]:
    """The status of every lane from its sink, in the form of the daemon's status."""
    all_lanes, counts = list_lanes(components), count_open_dead_letters(components)
    waiting = _group_by_lane(all_lanes, counts)
    with ExitStack() as stack:
        reader = _SinkReader(components, stack)
        lanes = [{**reader.read_lane(lane), "dead_letters": waiting.get(lane.id)} for lane in all_lanes]
    state = {"running": False, "ready": False, "unready": ["the daemon does not run"], "engine_page": None}
    counted = {"dead_letters": list_open_dead_letters(counts)}
    return {"pipeline": components.pipeline, **state, "sources": [], "lanes": lanes, **counted}


def count_by_lane(components: Components, lanes: Sequence[Lane]) -> dict[str, int]:
    """By lane, the open dead letters with changes that it lacks. Empty if their store does not answer."""
    return _group_by_lane(lanes, count_open_dead_letters(components))


def _group_by_lane(lanes: Sequence[Lane], counts: Mapping[DeadLetterGroup, int] | None) -> dict[str, int]:
    return {} if counts is None else {x.id: count_for_lane(counts, x.source, x.table, x.id) for x in lanes}


def count_open_dead_letters(components: Components) -> Mapping[DeadLetterGroup, int] | None:
    """The number of open dead letters; None if their store does not answer."""
    try:
        with closing(components.open_dead_letters()) as store:
            return store.count_open()
    except ReplicatorError:
        return None


class _SinkReader:
    """Reads the state of lanes from sinks. A sink that does not answer is not used again, because each read waits
    for it."""

    def __init__(self, components: Components, stack: ExitStack) -> None:
        self._components, self._opened = components, stack
        self._sinks: dict[str, Any] = {}
        self._away: dict[str, tuple[Lane, Retryable]] = {}

    def read_lane(self, lane: Lane) -> dict[str, Any]:
        """The status of the lane from its sink, or the problem."""
        try:
            if lane.refused:
                raise make_target_name_error(lane)
            if lane.id == make_refused_id(lane):
                raise make_target_taken_error(lane)
            if lane.sink in self._away:
                other, error = self._away[lane.sink]
                sentence = re.sub(rf"{re.escape(other.id)}(?!\w)", lambda _: lane.id, error.sentence)
                return _to_status(lane, None, Retryable(sentence, next_step=error.next_step))
            if lane.sink not in self._sinks:
                self._sinks[lane.sink] = self._components.open_sink(lane.sink)
                self._opened.callback(self._sinks[lane.sink].close)
            sink = self._sinks[lane.sink]
            state, schemas = sink.state(lane), read_schema_versions(sink, lane) if lane.table else ()
            return {
                **_to_status(lane, state, self._describe_change(lane, state, schemas)),
                "schemas": [to_summary(v) for v in schemas],
            }
        except Retryable as away:
            self._away[lane.sink] = lane, away
            return _to_status(lane, None, away)
        except ReplicatorError as problem:
            return _to_status(lane, None, problem)

    def _describe_change(
        self, lane: Lane, state: LaneState | None, schemas: Sequence[SchemaVersion]
    ) -> ConfigProblem | None:
        """Why the lane will be suspended at its start; None if no reason is known."""
        rules = self._components.sources[lane.source].rules_for(lane.table) if lane.table else None
        try:
            refuse_changed_rule(lane, state.rule if state else "", schemas, rules.keys if rules else ())
        except ConfigProblem as problem:
            return problem
        return None


def _to_status(lane: Lane, state: LaneState | None, problem: ReplicatorError | None) -> dict[str, Any]:
    return {
        "id": lane.id,
        "table": lane.table,
        "sink": lane.sink,
        "policy": lane.policy,
        "status": "stopped",
        "position": state.position.to_json() if state else {},
        "lag_records": None,
        "lag_seconds": None,
        "counts": None,
        "error": problem.sentence if problem else None,
        "next_step": problem.next_step if problem else None,
        "exit_code": int(problem.exit_code) if problem else None,
        "applied_at": None,
        "tombstones": describe_tombstones(lane, state.purged_up_to if state else None),
        "schemas": [],
        "handed": {},
        "call": None,
    }


def resync_lane(components: Components, lane_id: str, *, accept_missing: bool = False) -> None:
    """Remove a lane's rows and state; it starts from the beginning at the next run. DataLoss if rows would be
    missing then, unless `accept_missing`."""
    lane = _find_writable_lane(components, lane_id)
    rules = components.sources[lane.source]
    with closing(components.open_sink(lane.sink, "write")) as sink, closing(components.open_source(lane.source)) as source:
        if not accept_missing:
            topic = rules.transactions.topic if rules.transactions else ""
            missing = describe_missing_when_stopped(source, components.register, lane, topic)
            refuse_missing(lane, missing, has_backfills=rules.has_backfills)
        resync_stopped(sink, source, components.register, lane)


def accept_schema(components: Components, lane_id: str, number: int) -> None:
    """Let a lane continue with the schema `number` at the next start. ConfigProblem as `accept_pending_schema`."""
    lane = _find_writable_lane(components, lane_id)
    with closing(components.open_sink(lane.sink)) as sink:
        accept_pending_schema(lane, number, sink)


def skip_lane(components: Components, lane_id: str, until: Position | None) -> LaneState | None:
    """Move a lane's position without applying anything; returns its new state. ConfigProblem as `check_skip`."""
    lane = _find_writable_lane(components, lane_id)
    entry = components.register.load(lane.source)
    topics = entry.topics.get(lane.table, frozenset())
    with closing(components.open_sink(lane.sink, "write")) as sink, closing(components.open_source(lane.source)) as source:
        begun = entry.beginnings.get(lane.id, Position())
        at = LanePosition.from_state(lane, sink.state(lane), begun, lambda p: not lane.table or p.topic in topics)
        return apply_skip(sink, lane, check_skip(source, at, until))


def read_schema_history(components: Components, table: str) -> list[dict[str, Any]]:
    """The schemas of each lane with this table, target or id, from its sink. ConfigProblem if there is none."""
    lanes = [lane for lane in list_lanes(components) if lane.table]
    names = {lane.id: {lane.id, lane.table, get_unqualified_name(lane.table), lane.into} for lane in lanes}
    matching = [lane for lane in lanes if table in names[lane.id]]
    if not matching:
        tables = ", ".join(sorted({lane.table for lane in lanes})) or "none yet"
        raise ConfigProblem(f"no lane has a table {table!r}", next_step=f"The tables are: {tables}.")
    with ExitStack() as stack:
        names_of_sinks = dict.fromkeys(lane.sink for lane in matching)
        sinks = {name: stack.enter_context(closing(components.open_sink(name))) for name in names_of_sinks}
        return [
            {
                "lane": lane.id,
                "table": lane.table,
                "schemas": [to_json(v) for v in read_schema_versions(sinks[lane.sink], lane)],
            }
            for lane in matching
        ]
