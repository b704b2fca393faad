"""What takes snapshots beside a running pipeline, put together, and what is told of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from replicator.application.lanes import Lanes
from replicator.application.problem import Problem
from replicator.application.snapshotting import Kept, Snapshotting
from replicator.domain.errors import ReplicatorError
from replicator.domain.position import Position
from replicator.domain.state_snapshots import Schedule, StateSnapshot, newest_usable
from replicator.settings import LaneSettings, Loaded
from replicator.settings.fields import timespan
from replicator.settings.sinks import SnapshotSettings

from . import parts, shortening, snapshots
from .digests import rules_of
from .histories import log_of

NONE: Mapping[str, Problem] = {}
ANSWER_SECONDS = 600.0
"""How long an event log may take to be shortened, and its lane waits."""


def snapshotting(loaded: Loaded, lanes: Lanes, workers: parts.Workers) -> Snapshotting:
    """What takes those that the config asks for."""

    def ask(log: str, question: Callable[[Any], Any]) -> Any:
        if workers[log].join(0):  # With the pipeline's end its sinks are nobody's.
            return shortening.opening(loaded)(log, question)
        return workers[log].ask(question).result(ANSWER_SECONDS)

    def told(problems: Mapping[str, Problem]) -> list[dict[str, Any]]:
        return report(loaded, {run.lane.id: run.lane.table for run in lanes.all()}, problems)

    wanted = any(snapshots.schedule_of(loaded, log) is not None for log in loaded.settings.sinks)
    find, positions = partial(_kept, loaded, lanes), partial(_positions, lanes)
    return Snapshotting(find, positions, partial(_shorten, loaded, ask), told, wanted=wanted)


def report(loaded: Loaded, lanes: Mapping[str, str], problems: Mapping[str, Problem] = NONE) -> list[dict[str, Any]]:
    """The last snapshot of each of these lanes (id and source table) that has some, or is to have some: its lane, what
    `StateSnapshot.to_json` says, whether a replay under today's rules can begin with it, with the topics as they are, and
    why the last attempt at one failed."""
    found, identities = [], dict[tuple[str, str], Mapping[str, str] | None]()
    for lane, settings in _settings(loaded, lanes):
        shelf = snapshots.shelf_of(loaded, settings)
        judged = [] if shelf is None else [(one, shelf.damage(one)) for one in shelf.every()]
        there, damaged = [one for one, wrong in judged if not wrong], [wrong for _, wrong in judged if wrong]
        asked = _schedule(loaded, settings) is not None
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
    last: StateSnapshot,
    identities: dict[tuple[str, str], Mapping[str, str] | None],
) -> bool:
    """Whether it is of today's rules and topics. `identities`: those of each log's topics, which are looked up once; of a
    log that cannot be read they are not known, and nothing begins with a snapshot."""
    if last.rules != rules_of(loaded, lane):
        return False
    place = log_of(loaded, lane.table)
    if place not in identities:
        try:
            identities[place] = dict(snapshots.identity_of(loaded, lane))
        except ReplicatorError:
            identities[place] = None
    identity = identities[place]
    return identity is not None and last.is_of(identity)


def _kept(loaded: Loaded, lanes: Lanes) -> list[Kept]:
    named = {run.lane.id: run.lane.table for run in lanes.all() if run.lane.table}
    kept = []
    for lane, settings in _settings(loaded, named):
        said = _schedule(loaded, settings)
        if said is not None:
            every = None if said.every is None else timespan(said.every).total_seconds()
            schedule = Schedule(every, said.after_records, said.keep)
            kept.append(Kept(lane, schedule, partial(snapshots.take, loaded, settings), partial(_last, loaded, settings)))
    return kept


def _last(loaded: Loaded, lane: LaneSettings) -> Any:
    return newest_usable(snapshots.known(loaded, lane), rules_of(loaded, lane))


def _schedule(loaded: Loaded, lane: LaneSettings) -> SnapshotSettings | None:
    if snapshots.shelf_of(loaded, lane) is None:
        return None
    return snapshots.schedule_of(loaded, log_of(loaded, lane.table)[1])


def _settings(loaded: Loaded, lanes: Mapping[str, str]) -> Iterator[tuple[str, LaneSettings]]:
    for lane, table in lanes.items():
        for settings in loaded.settings.lanes_for(table) if table else ():
            if f"{settings.sink}.{settings.into}" == lane and settings.is_mirror and not settings.refused:
                yield lane, settings


def _positions(lanes: Lanes) -> dict[str, Position]:
    with lanes.under_lock():
        return {run.lane.id: run.applied for run in lanes.all()}


def _shorten(loaded: Loaded, ask: shortening.Ask) -> None:
    if shortening.with_retention(loaded):
        shortening.shorten(loaded, ask)
