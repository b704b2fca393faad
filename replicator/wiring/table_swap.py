"""`replay` of a lane's own target: rebuilds it as a second table, then swaps the two."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

from replicator.application.instance_lock import InstanceLock
from replicator.application.operations import cutover
from replicator.application.operations.drop import drop_lane
from replicator.application.stream.file_register import FileRegister
from replicator.domain.errors import ConfigProblem, DataLoss, Fatal
from replicator.domain.policy.plan import LaneState
from replicator.domain.position import Position
from replicator.ports.frames import Lane
from replicator.ports.register import RegisterEntry
from replicator.settings import LaneSettings, Loaded

from . import adapters, build
from .checkpoint_restore import Report, ignore_report, prepare_rebuild, refuse_incomplete
from .components import ConfiguredComponents
from .daemon import ask_control, ask_status
from .rebuild import REQUEST_FILE, RebuildRequest, get_folder
from .rule_digests import SwapRequest, digest_lane, swap_to_text

REBUILD_SUFFIX, DRY_RUN_SUFFIX = "__replay", "__dry_run"
"""Suffixes of the names of temporary targets."""
LONGEST_NAME = 63
"""Maximum bytes of a name that every sink can store."""
MAX_CATCH_UPS = 3
"""How often a rebuild that is behind the lane is continued."""

BuildTarget = Callable[[Loaded], dict[str, Any]]
"""Runs the pipeline of a configuration until it has caught up, and returns its counts. Raises if it did not catch up."""


@dataclass(frozen=True)
class SwapPositions:
    """A lane and its rebuild, with their stored states."""

    lane: Lane
    rebuilt: Lane
    live_state: LaneState | None
    rebuilt_state: LaneState | None


def make_request(loaded: Loaded, lane: LaneSettings, ending: str, **asked: Any) -> RebuildRequest:
    """A rebuild into a temporary target, whose rejected records are stored separately."""
    into = f"{lane.into}{ending}"
    if len(into.encode()) > LONGEST_NAME:
        into = f"{hashlib.sha256(lane.into.encode()).hexdigest()[:16]}{ending}"
    return RebuildRequest(lane, into, apart=digest_lane(loaded, lane), **asked)


def swap_target(loaded: Loaded, lane: LaneSettings, make: BuildTarget, tell: Report = ignore_report) -> dict[str, Any]:
    """Rebuild the target of the lane and swap it in. Returns the result of `make`, and the lane's position.

    After a kill the target is the old or the new one, and another call resumes. DataLoss, without any change, if
    the log or the source lacks records that the lane needs. Fenced if another instance writes the lane.
    """
    asked = make_request(loaded, lane, REBUILD_SUFFIX)
    _refuse_new_lane(loaded, lane)
    refuse_incomplete(loaded, asked)
    _remove_leftovers(loaded, asked)
    config = prepare_rebuild(loaded, asked, tell)
    said = catch_up_with_lane(loaded, config, asked, make)
    _copy_dead_letters(loaded, config, asked)
    state = _swap_tables(loaded, asked)
    remove_rebuild(loaded, asked)
    return {**said, "lane": f"{lane.sink}.{lane.into}", "position": state.position.to_json() if state else None}


def catch_up_with_lane(loaded: Loaded, config: Loaded, request: RebuildRequest, make: BuildTarget) -> dict[str, Any]:
    """Run the rebuild until it has reached the lane, as far as the log goes."""
    said = make(config)
    for _ in range(MAX_CATCH_UPS):
        found = read_positions(loaded, request)
        if not cutover.find_gap(found.live_state, found.rebuilt_state):
            break
        more = make(config)
        said = {**said, **{name: said[name] + more[name] for name in ("records", "applied", "rejected")}}
    return said


def read_positions(loaded: Loaded, request: RebuildRequest) -> SwapPositions:
    """The lane and its rebuild as they are now."""
    lane = adapters.build_lane(loaded, request.lane)
    rebuilt = cutover.make_rebuild_lane(lane, request.into)
    with closing(cast(Any, adapters.build_sink(loaded, lane.sink))) as sink:
        return SwapPositions(lane, rebuilt, sink.state(lane), sink.state(rebuilt))


def remove_rebuild(loaded: Loaded, request: RebuildRequest) -> None:
    """Remove the rebuilt target and its state."""
    drop_lane(
        ConfiguredComponents(loaded), cutover.make_rebuild_lane(adapters.build_lane(loaded, request.lane), request.into)
    )


def _remove_leftovers(loaded: Loaded, request: RebuildRequest) -> None:
    """Remove an earlier rebuild under other rules, or a half-removed one."""
    file = get_folder(loaded, request) / REQUEST_FILE
    same = file.exists() and json.loads(file.read_text(encoding="utf-8")).get("apart") == request.apart
    rebuilt = cutover.make_rebuild_lane(adapters.build_lane(loaded, request.lane), request.into)
    with closing(cast(Any, adapters.build_sink(loaded, rebuilt.sink))) as sink:
        try:
            sink.state(rebuilt)
        except DataLoss:
            same = False
    if file.exists() and not same:
        drop_lane(ConfiguredComponents(loaded), rebuilt)


def _refuse_new_lane(loaded: Loaded, lane: LaneSettings) -> None:
    """Fatal for a lane that has no target yet."""
    mine = adapters.build_lane(loaded, lane)
    with closing(cast(Any, adapters.build_sink(loaded, lane.sink))) as sink:
        if sink.state(mine) is None:
            raise Fatal(
                f"lane {mine.id} has applied nothing yet, so that there is nothing to make anew",
                next_step="Start the program; or name another table with `--into`.",
            )


def _copy_dead_letters(loaded: Loaded, config: Loaded, request: RebuildRequest) -> None:
    """Store the rebuild's rejects as those of the lane, before its position covers them."""
    with closing(cast(Any, adapters.build_dead_letters(config))) as apart:
        letters = apart.read()
    if not letters:
        return
    lane = f"{request.lane.sink}.{request.lane.into}"
    with closing(cast(Any, adapters.build_dead_letters(loaded))) as store:
        store.write([replace(one, lane=lane if one.lane == request.id else one.lane) for one in letters])


def _swap_tables(loaded: Loaded, request: RebuildRequest) -> LaneState | None:
    """In the running daemon if it writes the lane, otherwise in this process, while no daemon can start."""
    found = read_positions(loaded, request)
    running = ask_status(loaded)
    if running is not None:
        if found.lane.id not in {one["id"] for one in running["lanes"]}:
            raise ConfigProblem(
                f"the daemon runs without lane {found.lane.id}", next_step="Stop it, repeat the command, and start it again."
            )
        words = swap_to_text(SwapRequest(request.lane.table, request.into, digest_lane(loaded, request.lane)))
        ask_control(loaded, "swap", found.lane.id, words)
        return read_positions(loaded, request).live_state
    with _hold_instance(loaded):
        return _swap_here(loaded, found)


def _swap_here(loaded: Loaded, found: SwapPositions) -> LaneState:
    lane = found.lane
    if cutover.find_gap(found.live_state, found.rebuilt_state):
        with closing(cast(Any, adapters.build_source(adapters.use_local_engine(loaded), lane.source))) as source:
            cutover.refuse_lost_records(source, lane, found.live_state, found.rebuilt_state)
    seen: RegisterEntry = FileRegister(build.get_register_folder(loaded)).load(lane.source)
    judge = cutover.Cutover(
        lane, seen.beginnings.get(lane.id, Position()), build.build_transaction_rules(loaded, lane.source)
    )
    with closing(cast(Any, ConfiguredComponents(loaded).open_sink(lane.sink, "rewrite"))) as sink:
        return cutover.swap_tables(sink, lane, found.rebuilt, judge)


@contextmanager
def _hold_instance(loaded: Loaded) -> Iterator[None]:
    lock = InstanceLock(adapters.get_state_folder(loaded), loaded.settings.pipeline)
    lock.acquire()
    try:
        yield
    finally:
        lock.release()
