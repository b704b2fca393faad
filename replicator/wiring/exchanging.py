"""`replay` of a lane's own target: made anew beside it, and then in its place."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

from replicator.application import joining
from replicator.application.instance import InstanceLock
from replicator.application.register import FileRegister
from replicator.domain.errors import ConfigProblem, DataLoss, Fatal
from replicator.domain.plan import LaneState
from replicator.domain.position import Position
from replicator.ports.frames import Lane
from replicator.ports.register import Seen
from replicator.settings import LaneSettings, Loaded

from . import adapters, dropping, parts
from .daemon import ask_control, ask_status
from .digests import Swap, digest_of, swap_words
from .rebuilding import ASKED, Replay, folder_of
from .seeding import Tell, prepared, quiet, refuse_incomplete

ANEW, COMPARED = "__replay", "__dry_run"
"""What the names of targets end in that are there only until they are used."""
LONGEST_NAME = 63
"""Bytes of a name that every sink keeps."""
CATCH_UPS = 3
"""How often a target that is not as far as the lane is gone on with."""

Make = Callable[[Loaded], dict[str, Any]]
"""Runs the pipeline of a configuration until it has caught up; what became of it. Raises where it did not end so."""


@dataclass(frozen=True)
class Standing:
    """A lane and the one that makes its target anew, and where they stand."""

    lane: Lane
    rebuilt: Lane
    live: LaneState | None
    anew: LaneState | None


def beside(loaded: Loaded, lane: LaneSettings, ending: str, **asked: Any) -> Replay:
    """The replay into a target of the program's own, whose rejected records are kept apart."""
    into = f"{lane.into}{ending}"
    if len(into.encode()) > LONGEST_NAME:
        into = f"{hashlib.sha256(lane.into.encode()).hexdigest()[:16]}{ending}"
    return Replay(lane, into, apart=digest_of(loaded, lane), **asked)


def exchange(loaded: Loaded, lane: LaneSettings, make: Make, tell: Tell = quiet) -> dict[str, Any]:
    """Make the target of the lane anew, and put it in its place; what `make` said, and where the lane goes on.

    Killed anywhere, the target is the old or the new one, and repeated it goes on with what it had. DataLoss, and nothing is
    changed, where the log or the source lacks what the lane needs; Fenced where another instance writes the lane."""
    asked = beside(loaded, lane, ANEW)
    _refuse_unbegun(loaded, lane)
    refuse_incomplete(loaded, asked)
    _remove_remains(loaded, asked)
    config = prepared(loaded, asked, tell)
    said = up_to_the_lane(loaded, config, asked, make)
    _hand_letters_on(loaded, config, asked)
    state = _swap(loaded, asked)
    remove(loaded, asked)
    return {**said, "lane": f"{lane.sink}.{lane.into}", "position": state.position.to_json() if state else None}


def up_to_the_lane(loaded: Loaded, config: Loaded, asked: Replay, make: Make) -> dict[str, Any]:
    """Make it until it is as far as the lane, as far as the log is."""
    said = make(config)
    for _ in range(CATCH_UPS):
        found = standing(loaded, asked)
        if not joining.behind(found.live, found.anew):
            break
        more = make(config)
        said = {**said, **{name: said[name] + more[name] for name in ("records", "applied", "rejected")}}
    return said


def standing(loaded: Loaded, asked: Replay) -> Standing:
    """Where the two are now."""
    lane = adapters.lane(loaded, asked.lane)
    rebuilt = joining.beside(lane, asked.into)
    with closing(cast(Any, adapters.sink(loaded, lane.sink))) as sink:
        return Standing(lane, rebuilt, sink.state(lane), sink.state(rebuilt))


def remove(loaded: Loaded, asked: Replay) -> None:
    """Take away what was made, and what is remembered of it."""
    dropping.drop(loaded, joining.beside(adapters.lane(loaded, asked.lane), asked.into))


def _remove_remains(loaded: Loaded, asked: Replay) -> None:
    """What was made under other rules, or was removed half way, is no use."""
    file = folder_of(loaded, asked) / ASKED
    same = file.exists() and json.loads(file.read_text(encoding="utf-8")).get("apart") == asked.apart
    rebuilt = joining.beside(adapters.lane(loaded, asked.lane), asked.into)
    with closing(cast(Any, adapters.sink(loaded, rebuilt.sink))) as sink:
        try:
            sink.state(rebuilt)
        except DataLoss:
            same = False
    if file.exists() and not same:
        dropping.drop(loaded, rebuilt)


def _refuse_unbegun(loaded: Loaded, lane: LaneSettings) -> None:
    """Fatal for a lane that has no target yet."""
    mine = adapters.lane(loaded, lane)
    with closing(cast(Any, adapters.sink(loaded, lane.sink))) as sink:
        if sink.state(mine) is None:
            raise Fatal(
                f"lane {mine.id} has applied nothing yet, so that there is nothing to make anew",
                next_step="Start the program; or name another table with `--into`.",
            )


def _hand_letters_on(loaded: Loaded, config: Loaded, asked: Replay) -> None:
    """What was rejected is rejected by the lane, before its position says that it is done."""
    with closing(cast(Any, adapters.dead_letters(config))) as apart:
        letters = apart.read()
    if not letters:
        return
    lane = f"{asked.lane.sink}.{asked.lane.into}"
    with closing(cast(Any, adapters.dead_letters(loaded))) as store:
        store.write([replace(one, lane=lane if one.lane == asked.id else one.lane) for one in letters])


def _swap(loaded: Loaded, asked: Replay) -> LaneState | None:
    """By the running program, where it writes the lane; by this one, while no other starts."""
    found = standing(loaded, asked)
    running = ask_status(loaded)
    if running is not None:
        if found.lane.id not in {one["id"] for one in running["lanes"]}:
            raise ConfigProblem(
                f"the daemon runs without lane {found.lane.id}", next_step="Stop it, repeat the command, and start it again."
            )
        words = swap_words(Swap(asked.lane.table, asked.into, digest_of(loaded, asked.lane)))
        ask_control(loaded, "swap", found.lane.id, words)
        return standing(loaded, asked).live
    with _alone(loaded):
        return _swap_here(loaded, found)


def _swap_here(loaded: Loaded, found: Standing) -> LaneState:
    lane = found.lane
    if joining.behind(found.live, found.anew):
        with closing(cast(Any, adapters.source(adapters.locally(loaded), lane.source))) as source:
            joining.refuse_lost(source, lane, found.live, found.anew)
    seen: Seen = FileRegister(parts.register_folder(loaded)).load(lane.source)
    judge = joining.Joined(lane, seen.beginnings.get(lane.id, Position()), parts.transactions(loaded, lane.source))
    with closing(cast(Any, adapters.sink_that_rewrites(loaded, lane.sink))) as sink:
        return joining.swapped(sink, lane, found.rebuilt, judge)


@contextmanager
def _alone(loaded: Loaded) -> Iterator[None]:
    lock = InstanceLock(adapters.state_folder(loaded), loaded.settings.pipeline)
    lock.hold()
    try:
        yield
    finally:
        lock.release()
