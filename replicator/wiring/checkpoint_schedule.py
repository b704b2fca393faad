"""Builds the scheduler of checkpoints for a running pipeline, and its reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from replicator.application.lane_runs import LaneRuns
from replicator.application.operations.checkpoint_scheduler import CheckpointScheduler, ScheduledCheckpoint
from replicator.application.problem import Problem
from replicator.domain.checkpoints import Checkpoint, CheckpointSchedule, find_newest_usable
from replicator.domain.errors import ReplicatorError
from replicator.domain.position import Position
from replicator.settings import LaneSettings, Loaded
from replicator.settings.fields import to_timedelta
from replicator.settings.sinks import SnapshotSettings

from . import build, checkpoints, log_retention
from .event_logs import find_log
from .rule_digests import digest_rules

NO_PROBLEMS: Mapping[str, Problem] = {}
ANSWER_SECONDS = 600.0
"""Maximum seconds for the truncation of an event log. Its lane waits meanwhile."""


def build_checkpoint_scheduler(loaded: Loaded, lanes: LaneRuns, workers: build.Workers) -> CheckpointScheduler:
    """The scheduler of the configured checkpoints."""

    def ask(log: str, question: Callable[[Any], Any]) -> Any:
        if workers[log].join(0):  # The pipeline has ended, so the sink is free.
            return log_retention.make_asker(loaded)(log, question)
        return workers[log].ask(question).result(ANSWER_SECONDS)

    def describe_checkpoints(problems: Mapping[str, Problem]) -> list[dict[str, Any]]:
        return report_checkpoints(loaded, {run.lane.id: run.lane.table for run in lanes.list_runs()}, problems)

    wanted = any(checkpoints.get_schedule(loaded, log) is not None for log in loaded.settings.sinks)
    find, positions = partial(_list_scheduled, loaded, lanes), partial(_list_positions, lanes)
    return CheckpointScheduler(find, positions, partial(_truncate_logs, loaded, ask), describe_checkpoints, wanted=wanted)


def report_checkpoints(
    loaded: Loaded, lanes: Mapping[str, str], problems: Mapping[str, Problem] = NO_PROBLEMS
) -> list[dict[str, Any]]:
    """The last checkpoint of each of these lanes (id to source table) that has or should have checkpoints.

    Each dict has the lane and the fields of `Checkpoint.to_json`. `usable`: under the current rules and topics.
    `kept`: the number of checkpoints. `error`: of the last attempt.
    """
    found, identities = [], dict[tuple[str, str], Mapping[str, str] | None]()
    for lane, settings in _list_lane_settings(loaded, lanes):
        shelf = checkpoints.find_store(loaded, settings)
        judged = [] if shelf is None else [(one, shelf.describe_damage(one)) for one in shelf.list_all()]
        there, damaged = [one for one, wrong in judged if not wrong], [wrong for _, wrong in judged if wrong]
        asked = _get_schedule(loaded, settings) is not None
        if there or asked or damaged:
            last = there[-1] if there else None
            problem = problems.get(lane)
            error = problem.sentence if problem else next(iter(damaged), None)
            said = last.to_json() if last else {"lane": lane, "number": None}
            usable = last is not None and _is_usable(loaded, settings, last, identities)
            found.append({**said, "usable": usable, "kept": len(there), "error": error})
    if "" in problems:
        found.append({"lane": "", "number": None, "usable": False, "kept": 0, "error": problems[""].sentence})
    return found


def _is_usable(
    loaded: Loaded,
    lane: LaneSettings,
    last: Checkpoint,
    identities: dict[tuple[str, str], Mapping[str, str] | None],
) -> bool:
    """True if the checkpoint has the current rules and topics.

    `identities` caches the topic identities of each log. If a log cannot be read, they are unknown, and no
    checkpoint is usable.
    """
    if last.rules != digest_rules(loaded, lane):
        return False
    place = find_log(loaded, lane.table)
    if place not in identities:
        try:
            identities[place] = dict(checkpoints.get_topic_identity(loaded, lane))
        except ReplicatorError:
            identities[place] = None
    identity = identities[place]
    return identity is not None and last.has_same_topics(identity)


def _list_scheduled(loaded: Loaded, lanes: LaneRuns) -> list[ScheduledCheckpoint]:
    named = {run.lane.id: run.lane.table for run in lanes.list_runs() if run.lane.table}
    kept = []
    for lane, settings in _list_lane_settings(loaded, named):
        said = _get_schedule(loaded, settings)
        if said is not None:
            every = None if said.every is None else to_timedelta(said.every).total_seconds()
            schedule = CheckpointSchedule(every, said.after_records, said.keep)
            kept.append(
                ScheduledCheckpoint(
                    lane,
                    schedule,
                    partial(checkpoints.take_checkpoint, loaded, settings),
                    partial(_find_last, loaded, settings),
                )
            )
    return kept


def _find_last(loaded: Loaded, lane: LaneSettings) -> Any:
    return find_newest_usable(checkpoints.list_checkpoints(loaded, lane), digest_rules(loaded, lane))


def _get_schedule(loaded: Loaded, lane: LaneSettings) -> SnapshotSettings | None:
    if checkpoints.find_store(loaded, lane) is None:
        return None
    return checkpoints.get_schedule(loaded, find_log(loaded, lane.table)[1])


def _list_lane_settings(loaded: Loaded, lanes: Mapping[str, str]) -> Iterator[tuple[str, LaneSettings]]:
    for lane, table in lanes.items():
        for settings in loaded.settings.resolve_lanes(table) if table else ():
            if f"{settings.sink}.{settings.into}" == lane and settings.is_mirror and not settings.refused:
                yield lane, settings


def _list_positions(lanes: LaneRuns) -> dict[str, Position]:
    with lanes.get_lock():
        return {run.lane.id: run.applied for run in lanes.list_runs()}


def _truncate_logs(loaded: Loaded, ask: log_retention.AskSink) -> None:
    if log_retention.list_logs_with_retention(loaded):
        log_retention.truncate_logs(loaded, ask)
