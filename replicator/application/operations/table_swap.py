"""`replay` of a lane's own target: rebuilds it as a second table, then swaps the two."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from replicator.application.lane_registry import find_target_problem
from replicator.application.state_folder import InstanceLock
from replicator.domain.errors import ConfigProblem, DataLoss, Fatal
from replicator.domain.policy.plan import LaneState
from replicator.domain.position import Position
from replicator.ports.components import Components, RebuildRequest
from replicator.ports.frames import Lane
from replicator.ports.runtime import ShowLine

from . import cutover
from .checkpoint_restore import prepare_restored_rebuild, refuse_incomplete_rebuild, show_nothing
from .cutover import SwapRequest, swap_to_text
from .drop import drop_lane
from .rebuild import REQUEST_FILE, get_rebuild_folder

REBUILD_SUFFIX, DRY_RUN_SUFFIX = "__replay", "__dry_run"
"""Suffixes of the names of temporary targets."""
LONGEST_NAME = 63
"""Maximum bytes of a name that every sink can store."""
MAX_CATCH_UPS = 3
"""How often a rebuild that is behind the lane is continued."""

BuildTarget = Callable[[Components], dict[str, Any]]
"""Runs the pipeline until it has caught up, and returns its counts. Raises if it did not catch up."""


@dataclass(frozen=True)
class SwapPositions:
    """A lane and its rebuild, with their stored states."""

    lane: Lane
    rebuilt: Lane
    live_state: LaneState | None
    rebuilt_state: LaneState | None


def make_request(parts: Components, lane: Lane, ending: str, **asked: Any) -> RebuildRequest:
    """A rebuild into a temporary target, whose rejected records are stored separately."""
    into = f"{lane.into}{ending}"
    if len(into.encode()) > LONGEST_NAME:
        into = f"{hashlib.sha256(lane.into.encode()).hexdigest()[:16]}{ending}"
    return RebuildRequest(lane, into, apart=parts.digest(lane, with_target=True), **asked)


def swap_target(parts: Components, lane: Lane, make: BuildTarget, tell: ShowLine = show_nothing) -> dict[str, Any]:
    """Rebuild the target of the lane and swap it in. Returns the result of `make`, and the lane's position.

    After a kill the target is the old or the new one, and another call resumes. DataLoss, without any change, if
    the log or the source lacks records that the lane needs. Fenced if another instance writes the lane.
    """
    asked = make_request(parts, lane, REBUILD_SUFFIX)
    _refuse_lane_without_target(parts, lane)
    refuse_incomplete_rebuild(parts, asked)
    _remove_leftovers(parts, asked)
    rebuild = prepare_restored_rebuild(parts, asked, tell)
    said = catch_up_with_lane(parts, rebuild, asked, make)
    _copy_dead_letters(parts, rebuild, asked)
    state = _swap_tables(parts, asked)
    remove_rebuild(parts, asked)
    return {**said, "lane": lane.id, "position": state.position.to_json() if state else None}


def catch_up_with_lane(parts: Components, rebuild: Components, request: RebuildRequest, make: BuildTarget) -> dict[str, Any]:
    """Run the rebuild until it has reached the lane, as far as the log goes."""
    said = make(rebuild)
    for _ in range(MAX_CATCH_UPS):
        found = read_positions(parts, request)
        if not cutover.find_gap(found.live_state, found.rebuilt_state):
            break
        more = make(rebuild)
        said = {**said, **{name: said[name] + more[name] for name in ("records", "applied", "rejected")}}
    return said


def read_positions(parts: Components, request: RebuildRequest) -> SwapPositions:
    """The lane and its rebuild as they are now."""
    lane, rebuilt = request.lane, cutover.make_rebuild_lane(request.lane, request.into)
    with closing(parts.open_sink(lane.sink)) as sink:
        return SwapPositions(lane, rebuilt, sink.state(lane), sink.state(rebuilt))


def remove_rebuild(parts: Components, request: RebuildRequest) -> None:
    """Remove the rebuilt target and its state."""
    drop_lane(parts, cutover.make_rebuild_lane(request.lane, request.into))


def _remove_leftovers(parts: Components, request: RebuildRequest) -> None:
    """Remove an earlier rebuild under other rules, or a half-removed one."""
    file = get_rebuild_folder(parts, request.id) / REQUEST_FILE
    same = file.exists() and json.loads(file.read_text(encoding="utf-8")).get("apart") == request.apart
    rebuilt = cutover.make_rebuild_lane(request.lane, request.into)
    with closing(parts.open_sink(rebuilt.sink)) as sink:
        try:
            sink.state(rebuilt)
        except DataLoss:
            same = False
    if file.exists() and not same:
        drop_lane(parts, rebuilt)


def _refuse_lane_without_target(parts: Components, lane: Lane) -> None:
    """ConfigProblem for a lane whose target belongs to another table, Fatal for a lane that has no target yet."""
    if problem := find_target_problem(lane, parts.register.load(lane.source)):
        raise problem
    with closing(parts.open_sink(lane.sink)) as sink:
        if sink.state(lane) is None:
            raise Fatal(
                f"lane {lane.id} has applied nothing yet, so there is nothing to rebuild",
                next_step="Start the daemon, or name another table with `--into`.",
            )


def _copy_dead_letters(parts: Components, rebuild: Components, request: RebuildRequest) -> None:
    """Store the rebuild's rejects as those of the lane, before its position covers them."""
    with closing(rebuild.open_dead_letters()) as apart:
        letters = apart.read()
    if not letters:
        return
    lane = request.lane.id
    with closing(parts.open_dead_letters()) as store:
        store.write([replace(one, lane=lane if one.lane == request.id else one.lane) for one in letters])


def _swap_tables(parts: Components, request: RebuildRequest) -> LaneState | None:
    """In the running daemon if it writes the lane, otherwise in this process, while no daemon can start."""
    found = read_positions(parts, request)
    running = parts.ask_daemon()
    if running is not None:
        if found.lane.id not in {one["id"] for one in running["lanes"]}:
            raise ConfigProblem(
                f"the daemon runs without lane {found.lane.id}",
                next_step="Stop the daemon, repeat the command, and start the daemon again.",
            )
        words = swap_to_text(SwapRequest(request.lane.table, request.into, parts.digest(request.lane, with_target=True)))
        parts.command_daemon("swap", found.lane.id, words)
        return read_positions(parts, request).live_state
    with InstanceLock(parts.folder, parts.pipeline):
        return _swap_here(parts, found)


def _swap_here(parts: Components, found: SwapPositions) -> LaneState:
    lane = found.lane
    if cutover.find_gap(found.live_state, found.rebuilt_state):
        with closing(parts.use_local().open_source(lane.source)) as source:
            cutover.refuse_lost_records(source, lane, found.live_state, found.rebuilt_state)
    seen = parts.register.load(lane.source)
    rules = parts.sources[lane.source].transactions
    judge = cutover.Cutover(lane, seen.beginnings.get(lane.id, Position()), rules)
    with closing(parts.open_sink(lane.sink, "rewrite")) as sink:
        return cutover.swap_tables(sink, lane, found.rebuilt, judge)
