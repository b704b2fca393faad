"""Builds the scheduler of checkpoints for a running pipeline, and its reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from replicator.application.delivery.worker import Worker
from replicator.application.lane_runs import LaneRuns
from replicator.application.problem import Problem
from replicator.domain.checkpoints import Checkpoint, CheckpointSchedule, find_newest_usable
from replicator.domain.errors import ReplicatorError
from replicator.domain.position import Position
from replicator.ports.components import Components
from replicator.ports.frames import Lane

from . import checkpoint, log_retention
from .checkpoint_scheduler import CheckpointScheduler, ScheduledCheckpoint
from .rebuild import can_rebuild

NO_PROBLEMS: Mapping[str, Problem] = {}
ANSWER_SECONDS = 600.0
"""Maximum seconds for the truncation of an event log. Its lane waits meanwhile."""


def build_checkpoint_scheduler(
    parts: Components, lanes: LaneRuns, workers: Mapping[str, Worker[Any]]
) -> CheckpointScheduler:
    """The scheduler of the configured checkpoints."""

    def ask(log: str, question: Callable[[Any], Any]) -> Any:
        if workers[log].join(0):  # The pipeline has ended, so the sink is free.
            return log_retention.make_asker(parts)(log, question)
        return workers[log].ask(question).result(ANSWER_SECONDS)

    def describe_checkpoints(problems: Mapping[str, Problem]) -> list[dict[str, Any]]:
        return report_checkpoints(parts, {run.lane.id: run.lane.table for run in lanes.list_runs()}, problems)

    wanted = any(rules.checkpoints is not None for rules in parts.sinks.values())
    find, positions = partial(_list_scheduled, parts, lanes), partial(_list_positions, lanes)
    return CheckpointScheduler(find, positions, partial(_truncate_logs, parts, ask), describe_checkpoints, wanted=wanted)


def report_checkpoints(
    parts: Components, lanes: Mapping[str, str], problems: Mapping[str, Problem] = NO_PROBLEMS
) -> list[dict[str, Any]]:
    """The last checkpoint of each of these lanes (id to source table) that has or should have checkpoints.

    Each dict has the lane and the fields of `Checkpoint.to_json`. `usable`: under the current rules and topics.
    `kept`: the number of checkpoints. `error`: of the last attempt.
    """
    found, identities = [], dict[str, Mapping[str, str] | None]()
    for lane in _list_mirror_lanes(parts, lanes):
        shelf = checkpoint.find_store(parts, lane)
        judged = [] if shelf is None else [(one, shelf.describe_damage(one)) for one in shelf.list_all()]
        there, damaged = [one for one, wrong in judged if not wrong], [wrong for _, wrong in judged if wrong]
        asked = _get_schedule(parts, lane) is not None
        if there or asked or damaged:
            last = there[-1] if there else None
            problem = problems.get(lane.id)
            error = problem.sentence if problem else next(iter(damaged), None)
            said = last.to_json() if last else {"lane": lane.id, "number": None}
            usable = last is not None and _is_usable(parts, lane, last, identities)
            found.append({**said, "usable": usable, "kept": len(there), "error": error})
    if "" in problems:
        found.append({"lane": "", "number": None, "usable": False, "kept": 0, "error": problems[""].sentence})
    return found


def _is_usable(parts: Components, lane: Lane, last: Checkpoint, identities: dict[str, Mapping[str, str] | None]) -> bool:
    """True if the checkpoint has the current rules and topics.

    `identities` caches the topic identities of each log. If a log cannot be read, they are unknown, and no
    checkpoint is usable.
    """
    if last.rules != parts.digest(lane):
        return False
    place = parts.find_log(lane.table).id
    if place not in identities:
        try:
            identities[place] = dict(checkpoint.get_topic_identity(parts, lane))
        except ReplicatorError:
            identities[place] = None
    identity = identities[place]
    return identity is not None and last.has_same_topics(identity)


def _list_scheduled(parts: Components, lanes: LaneRuns) -> list[ScheduledCheckpoint]:
    named = {run.lane.id: run.lane.table for run in lanes.list_runs() if run.lane.table}
    kept = []
    for lane in _list_mirror_lanes(parts, named):
        schedule = _get_schedule(parts, lane)
        if schedule is not None:
            take, find = partial(checkpoint.take_checkpoint, parts, lane), partial(_find_last, parts, lane)
            kept.append(ScheduledCheckpoint(lane.id, schedule, take, find))
    return kept


def _find_last(parts: Components, lane: Lane) -> Any:
    return find_newest_usable(checkpoint.list_checkpoints(parts, lane), parts.digest(lane))


def _get_schedule(parts: Components, lane: Lane) -> CheckpointSchedule | None:
    if checkpoint.find_store(parts, lane) is None:
        return None
    return parts.sinks[parts.find_log(lane.table).sink].checkpoints


def _list_mirror_lanes(parts: Components, lanes: Mapping[str, str]) -> Iterator[Lane]:
    for name, table in lanes.items():
        for lane in parts.resolve_lanes(table) if table else ():
            if lane.id == name and can_rebuild(parts, lane) and not lane.refused:
                yield lane


def _list_positions(lanes: LaneRuns) -> dict[str, Position]:
    with lanes.get_lock():
        return {run.lane.id: run.applied for run in lanes.list_runs()}


def _truncate_logs(parts: Components, ask: log_retention.AskSink) -> None:
    if log_retention.list_logs_with_retention(parts):
        log_retention.truncate_logs(parts, ask)
