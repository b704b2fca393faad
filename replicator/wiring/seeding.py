"""Replays that go on from a snapshot, put together: which one, and how their target gets what it holds."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from replicator.application import joining
from replicator.application.register import FileRegister
from replicator.application.remembering import remembered
from replicator.application.schemas import plan_at
from replicator.domain.errors import RejectCode
from replicator.domain.position import Position
from replicator.domain.state_snapshots import StateSnapshot
from replicator.ports.dead_letters import DeadLetter
from replicator.ports.frames import Lane
from replicator.ports.state_snapshots import Unfit
from replicator.settings import Loaded
from replicator.settings.sinks import DeadLetterSettings

from . import adapters, completeness, dropping, parts, rebuilding, snapshots
from .plugins import load
from .rebuilding import BEGUN, Replay

Tell = Callable[[str], None]
STEP = "Make one of a part of the records with `--since TIME --into NAME`"


def quiet(_: str) -> None:
    """For who has nobody to tell."""


def prepared(loaded: Loaded, asked: Replay, tell: Tell = quiet) -> Loaded:
    """As `rebuilding.prepared`; a target of which there is nothing yet begins with the newest snapshot that it can begin
    with, and `tell` is told which, or why none of those there are. DataLoss, naming what is missing, where the log lacks
    records that the lane has applied, but for a replay that says since when it wants them."""
    if asked.since is None:
        refuse_incomplete(loaded, asked)
    begun = snapshots.beginning_with(partial(candidate, loaded, asked, tell), partial(_begun, loaded, asked, tell))
    config = begun or rebuilding.prepared(loaded, asked)
    shutil.rmtree(Path(config.settings.state) / BEGUN, ignore_errors=True)  # Of one that was killed, too.
    return config


def _begun(loaded: Loaded, asked: Replay, tell: Tell, begun: StateSnapshot) -> Loaded:
    """`rebuilding.prepared`, and the target has what the snapshot holds; where it cannot keep that, nothing, and `tell` is
    told why. Gone, and there is no target, where the snapshot was removed."""
    config = rebuilding.prepared(loaded, asked, snapshots.topics_of(loaded, asked.lane, begun))
    folder = Path(config.settings.state) / BEGUN
    cast(Any, snapshots.shelf_of(loaded, asked.lane)).copy(begun, folder)
    try:
        _seed(loaded, config, asked, folder)
    except Unfit as unfit:
        return _from_the_beginning(loaded, asked, tell, f"none can be used, as number {begun.number} {unfit}")
    return config


def _from_the_beginning(loaded: Loaded, asked: Replay, tell: Tell, why: str) -> Loaded:
    """`rebuilding.prepared` of a target that was to begin with a snapshot. DataLoss where the log lacks records."""
    dropping.drop(loaded, joining.beside(adapters.lane(loaded, asked.lane), asked.into))
    snapshots.refuse_shortened(loaded, asked.lane, why)
    completeness.refuse_incomplete(loaded, asked.lane, Position(), STEP)
    tell(f"{asked.id}: the whole event log is read; of the snapshots {why}")
    return rebuilding.prepared(loaded, asked)


def candidate(loaded: Loaded, asked: Replay, tell: Tell = quiet) -> StateSnapshot | None:
    """The snapshot that the replay begins with; None where it reads the log from its beginning, or was begun before.
    DataLoss where the log does not have its beginning any more, but for a replay that says since when it wants records: then
    `tell` is told what is gone."""
    there = snapshots.known(loaded, asked.lane)
    rebuilt = joining.beside(adapters.lane(loaded, asked.lane), asked.into)
    with closing(cast(Any, adapters.sink(loaded, rebuilt.sink))) as sink:
        if asked.into in sink.tables() and sink.state(rebuilt) is not None:
            return None
        why = _unfit(asked, rebuilt, sink) or snapshots.OTHERS
    for said in snapshots.damaged(loaded, asked.lane):
        tell(f"{asked.id}: {said}")
    until = None if asked.until is None else datetime.fromisoformat(asked.until)
    found = snapshots.newest(loaded, asked.lane, until) if why == snapshots.OTHERS else None
    if found is not None:
        tell(f"{asked.id}: going on from snapshot {found.number} of {found.taken_at.isoformat()}")
        return found
    if asked.since is None:
        snapshots.refuse_shortened(loaded, asked.lane, why)
    else:
        snapshots.tell_shortened(loaded, asked.lane, tell)
    if there:
        tell(f"{asked.id}: the whole event log is read; of the snapshots {why}")
    return None


def refuse_incomplete(loaded: Loaded, asked: Replay) -> None:
    """DataLoss, naming what is missing, unless the event log, or what the replay begins with, has everything that the lane
    began with."""
    completeness.refuse_incomplete(loaded, asked.lane, _begun_at(loaded, asked), STEP)


def _begun_at(loaded: Loaded, asked: Replay) -> Position:
    """From where on the target that a replay makes has all records of the log."""
    found = candidate(loaded, asked)
    if found is not None:
        return found.begun
    register = FileRegister(rebuilding.folder_of(loaded, asked) / loaded.settings.pipeline / "sources")
    return register.load(asked.lane.source).beginnings.get(asked.id, Position())


def _unfit(asked: Replay, rebuilt: Lane, sink: Any) -> str:
    """Why no snapshot will do; nothing where one may."""
    if asked.since is not None:
        return "none can be used, as only records of a period are asked for"
    if asked.policy not in (None, asked.lane.policy):
        return f"none can be used, as they are of policy {asked.lane.policy}"
    return "" if hasattr(sink, "seed") else f"none can be used, as targets in sink {rebuilt.sink} do not begin with one yet"


def _seed(loaded: Loaded, config: Loaded, asked: Replay, folder: Path) -> None:
    """The rows come last, with the state, so that killed anywhere this is done again or is complete."""
    rebuilt = joining.beside(adapters.lane(loaded, asked.lane), asked.into)
    origin = joining.beside(rebuilt, snapshots.THEN)
    lake = str(folder / "lake")
    with closing(load("replicator.sinks", "delta")({"path": lake})) as there:
        plan = plan_at(rebuilt, remembered(there, origin))
    if plan is None:
        raise Unfit("tells no schema")
    _register(loaded, config, (folder, origin), rebuilt)
    _letters(config, (folder, origin), rebuilt)
    with closing(cast(Any, adapters.sink_that_rewrites(loaded, rebuilt.sink))) as sink:
        sink.seed(rebuilt, plan, origin, lake)


def _register(loaded: Loaded, config: Loaded, begun: tuple[Path, Lane], rebuilt: Lane) -> None:
    """What the replay that made the snapshot has seen of the source, this one has."""
    folder, origin = begun
    pipeline = loaded.settings.pipeline
    kept = folder / "state" / pipeline / "replays" / quote(origin.id, safe="") / pipeline / "sources"
    seen = FileRegister(kept).load(rebuilt.source)
    beginnings = {rebuilt.id: seen.beginnings.get(origin.id, Position())}
    FileRegister(parts.register_folder(config)).save(rebuilt.source, replace(seen, beginnings=beginnings))


def _letters(config: Loaded, begun: tuple[Path, Lane], rebuilt: Lane) -> None:
    """What was rejected below the snapshot is rejected by this lane."""
    folder, origin = begun
    place = DeadLetterSettings.model_construct(path=str(folder / "dead_letters"))
    before = replace(config, settings=config.settings.model_copy(update={"dead_letters": place}))
    with closing(cast(Any, adapters.dead_letters(before))) as kept:
        letters = kept.read()
    _refuse_others(config, rebuilt, letters)
    if letters:
        with closing(cast(Any, adapters.dead_letters(config))) as store:
            store.write([replace(one, lane=rebuilt.id if one.lane == origin.id else one.lane) for one in letters])


def _refuse_others(config: Loaded, rebuilt: Lane, letters: Sequence[DeadLetter]) -> None:
    """Unfit where the snapshot lacks rows since a lake keeps no such values: the target may, where it is of another kind."""
    unkept = [one for one in letters if one.stage == "apply" and one.code == RejectCode.OUT_OF_RANGE]
    if unkept and config.settings.sinks[rebuilt.sink].kind != "delta":
        raise Unfit("lacks rows with values that no lake keeps, and this target may")
