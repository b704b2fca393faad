"""Lanes while the daemon does not run: their status, and the commands that change them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

from replicator.application.control import accept_pending_schema, describe_missing_when_stopped, resync_stopped
from replicator.application.lane_registry import make_refused_id, make_target_name_error, make_target_taken_error
from replicator.application.lane_schema import refuse_changed_rule
from replicator.application.missing_records import refuse_missing
from replicator.application.operations.skip import LanePosition, apply_skip, check_skip
from replicator.application.operations.status import describe_tombstones, list_open_dead_letters
from replicator.application.quarantine.dead_letter_counts import count_for_lane
from replicator.application.schema_history import read_schema_versions
from replicator.application.stream.file_register import FileRegister
from replicator.domain.errors import ConfigProblem, ReplicatorError, Retryable
from replicator.domain.patterns import is_exact
from replicator.domain.policy.plan import LaneState
from replicator.domain.position import Position
from replicator.domain.schema_versions import SchemaVersion, to_summary
from replicator.ports.dead_letters import DeadLetterGroup
from replicator.ports.frames import Lane
from replicator.settings import Loaded

from . import adapters, build
from .daemon import ask_status


def list_lanes(loaded: Loaded) -> list[Lane]:
    """The event logs, and the lanes of every table that was read so far."""
    register = FileRegister(build.get_register_folder(loaded))
    lanes: list[Lane] = []
    for source in sorted({table.source for table in loaded.settings.tables}):
        lanes += build.build_event_logs(loaded, source)
        rules_for = build.build_rules_for(loaded, source)
        seen = register.load(source)
        for table in sorted(seen.topics):
            rules = rules_for(table)
            for lane in rules.lanes if rules else ():
                refused = make_refused_id(lane)
                lanes.append(replace(lane, id=refused) if refused in seen.beginnings else lane)
    return lanes


def find_source_table(loaded: Loaded, name: str) -> str:
    """The full name of a source table: `name` itself, or the SCHEMA.TABLE whose last part it is.

    Searches tables that were read so far or have an exact entry; `name` if none matches. ConfigProblem for several.
    """
    settings, register = loaded.settings, FileRegister(build.get_register_folder(loaded))
    sources = {table.source for table in settings.tables}
    seen = {table for source in sources for table in register.load(source).topics if settings.find_table(table, source)}
    seen |= {table.match for table in settings.tables if is_exact(table.match)}
    found = sorted(table for table in seen if table.rpartition(".")[2] == name)
    if name in seen or not found:
        return name
    if len(found) > 1:
        raise ConfigProblem(f"there are several tables {name!r}", next_step=f"Name one: {', '.join(found)}.")
    return found[0]


def find_lane(loaded: Loaded, lane_id: str) -> Lane:
    """The lane with this id. ConfigProblem with the existing ids."""
    lanes = list_lanes(loaded)
    for lane in lanes:
        if lane.id == lane_id:
            return lane
    names = ", ".join(lane.id for lane in lanes) or "none has been seen yet"
    raise ConfigProblem(f"there is no lane {lane_id!r}", next_step=f"The lanes are: {names}.")


def require_lane(loaded: Loaded, lane_id: str) -> None:
    """ConfigProblem unless the lane exists, in the daemon if one runs."""
    running = ask_status(loaded)
    if running is None or all(lane["id"] != lane_id for lane in running["lanes"]):
        find_lane(loaded, lane_id)


def read_status(loaded: Loaded) -> dict[str, Any]:
    """The status of every lane from its sink, in the form of the daemon's status."""
    known, counts = list_lanes(loaded), count_open_dead_letters(loaded)
    waiting = _group_by_lane(known, counts)
    with ExitStack() as opened:
        asked = _SinkReader(loaded, opened)
        lanes = [{**asked.read_lane(lane), "dead_letters": waiting.get(lane.id)} for lane in known]
    state = {"running": False, "ready": False, "unready": ["the daemon does not run"], "engine_page": None}
    counted = {"dead_letters": list_open_dead_letters(counts)}
    return {"pipeline": loaded.settings.pipeline, **state, "sources": [], "lanes": lanes, **counted}


def count_by_lane(loaded: Loaded, lanes: Sequence[Lane]) -> dict[str, int]:
    """By lane, the open dead letters with changes that it lacks. Empty if their store does not answer."""
    return _group_by_lane(lanes, count_open_dead_letters(loaded))


def _group_by_lane(lanes: Sequence[Lane], counts: Mapping[DeadLetterGroup, int] | None) -> dict[str, int]:
    return {} if counts is None else {x.id: count_for_lane(counts, x.source, x.table, x.id) for x in lanes}


def count_open_dead_letters(loaded: Loaded) -> Mapping[DeadLetterGroup, int] | None:
    """The number of open dead letters; None if their store does not answer."""
    try:
        with closing(adapters.build_dead_letters(loaded)) as store:
            return store.count_open()
    except ReplicatorError:
        return None


class _SinkReader:
    """Reads the state of lanes from sinks. A sink that does not answer is not used again, because each read waits
    for it."""

    def __init__(self, loaded: Loaded, opened: ExitStack) -> None:
        self._loaded, self._opened = loaded, opened
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
                return _to_status(lane, None, _make_other_error(lane, *self._away[lane.sink]))
            sink = self._open_sink(lane.sink)
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
        rules = build.build_rules_for(self._loaded, lane.source)(lane.table) if lane.table else None
        try:
            refuse_changed_rule(lane, state.rule if state else "", schemas, rules.keys if rules else ())
        except ConfigProblem as problem:
            return problem
        return None

    def _open_sink(self, name: str) -> Any:
        if name not in self._sinks:
            self._sinks[name] = adapters.build_sink(self._loaded, name)
            self._opened.callback(self._sinks[name].close)
        return self._sinks[name]


def _make_other_error(lane: Lane, asked: Lane, away: Retryable) -> Retryable:
    """The error of a sink for another lane `asked`, with the name of `lane` in its sentence."""
    return Retryable(re.sub(rf"{re.escape(asked.id)}(?!\w)", lambda _: lane.id, away.sentence), next_step=away.next_step)


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


def resync_lane(loaded: Loaded, lane_id: str, *, accept_missing: bool = False) -> None:
    """Remove a lane's rows and state; it starts from the beginning at the next run. DataLoss if rows would be
    missing then, unless `accept_missing`."""
    lane = find_lane(loaded, lane_id)
    sink, source = adapters.build_engine_sink(loaded, lane.sink), adapters.build_source(loaded, lane.source)
    register = FileRegister(build.get_register_folder(loaded))
    try:
        if not accept_missing:
            rules = loaded.settings.sources[lane.source].transactions
            found = describe_missing_when_stopped(source, register, lane, rules.topic if rules else "")
            refuse_missing(lane, found, has_backfills=adapters.has_backfills(loaded, lane.source))
        resync_stopped(sink, source, register, lane)
    finally:
        sink.close()
        source.close()


def accept_schema(loaded: Loaded, lane_id: str, number: int) -> None:
    """Let a lane continue with the schema `number` at the next start. ConfigProblem as `accept_pending_schema`."""
    lane = find_lane(loaded, lane_id)
    sink = adapters.build_sink(loaded, lane.sink)
    try:
        accept_pending_schema(lane, number, sink)
    finally:
        sink.close()


def skip_lane(loaded: Loaded, lane_id: str, until: Position | None) -> LaneState | None:
    """Move a lane's position without applying anything; returns its new state. ConfigProblem as `check_skip`."""
    lane = find_lane(loaded, lane_id)
    sink, source = adapters.build_engine_sink(loaded, lane.sink), adapters.build_source(loaded, lane.source)
    seen = FileRegister(build.get_register_folder(loaded)).load(lane.source)
    topics = seen.topics.get(lane.table, frozenset())
    try:
        begun = seen.beginnings.get(lane.id, Position())
        at = LanePosition.from_state(lane, sink.state(lane), begun, lambda p: not lane.table or p.topic in topics)
        return apply_skip(sink, lane, check_skip(source, at, until))
    finally:
        sink.close()
        source.close()
