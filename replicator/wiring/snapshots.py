"""Snapshots of lanes' states, put together: a replay of the event log that is kept, and gone on with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import quote

from replicator.application import joining
from replicator.application.register import FileRegister
from replicator.application.rules import event_log_lane
from replicator.application.shelf import Gone, Shelf
from replicator.domain.borders import Border
from replicator.domain.errors import ConfigProblem, DataLoss, EnvironmentProblem, Fatal
from replicator.domain.plan import LaneState
from replicator.domain.position import Position
from replicator.domain.state_snapshots import StateSnapshot, newest_usable
from replicator.ports.frames import Lane
from replicator.settings import LaneSettings, Loaded
from replicator.settings.sinks import DeadLetterSettings, DeltaSettings, EventLogSettings, SnapshotSettings
from replicator.settings.tables import FOR_EVER

from . import adapters, parts
from .container import Container
from .digests import rules_of
from .histories import BACKFILLS, LAKE, folder_of_log, log_of, opened_log, transport_of_log
from .rebuilding import Replay, prepared
from .running import run_once

HOME = Path("_replicator") / "snapshots"
THEN = "then"
"""The target's name, in a lake of its own."""
OTHERS = "none was taken under the rules of today, ends by the time that is asked for, and reaches up to what the log has"
PLAIN: Mapping[str, Any] = {
    "partition_by": (),
    "cluster_by": (),
    "change_data_feed": False,
    "deletion_vectors": False,
    "tombstone_retention": FOR_EVER,
}
"""What the entry of a lane says in a lake of its own: how rows lie in its target decides nothing of them, and deletes are
remembered."""
TRIES = 3
"""How often it is looked which snapshots there are, while old ones are being removed."""

Tell = Callable[[str], None]
Used = TypeVar("Used")


def shelf_of(loaded: Loaded, lane: LaneSettings) -> Shelf | None:
    """Where the snapshots of a lane are; None where its table has no event log in a folder of this machine."""
    try:
        _, log = log_of(loaded, lane.table)
    except ConfigProblem:
        return None
    folder = folder_of_log(loaded, log)
    if folder is None:
        return None
    home = Path(folder) / HOME / quote(loaded.settings.pipeline, safe="")
    return Shelf(home / quote(f"{lane.sink}.{lane.into}", safe=""))


def schedule_of(loaded: Loaded, log: str) -> SnapshotSettings | None:
    """What the config says of snapshots beside an event log."""
    said = loaded.settings.sinks[log]
    return said.snapshots if isinstance(said, EventLogSettings) else None


def known(loaded: Loaded, lane: LaneSettings) -> list[StateSnapshot]:
    """Every snapshot of a lane, the oldest first, but for those of topics that were made anew since."""
    shelf = shelf_of(loaded, lane)
    there = [] if shelf is None else shelf.known()
    identity = dict(identity_of(loaded, lane)) if there else {}
    return [one for one in there if one.is_of(identity)]


def damaged(loaded: Loaded, lane: LaneSettings) -> list[str]:
    """What is wrong with those snapshots of a lane that are not whole."""
    shelf = shelf_of(loaded, lane)
    return [] if shelf is None else shelf.damaged()


def identity_of(loaded: Loaded, lane: LaneSettings) -> tuple[tuple[str, str], ...]:
    """The broker's ids of topics, as the lane of the event log has them."""
    source, log = log_of(loaded, lane.table)
    with closing(cast(Any, adapters.sink(loaded, log))) as kept:
        state: LaneState | None = kept.state(event_log_lane(loaded.settings.pipeline, source, log))
    return state.identity if state is not None else ()


def take(loaded: Loaded, lane: LaneSettings, tell: Tell = lambda _: None) -> StateSnapshot:
    """Take a snapshot of what the records that the event log has by now make under the lane's rules; the last one where
    nothing has come since. It goes on from the last one of the same rules. Reads the log, and touches no lane.

    Killed anywhere, the snapshots that there were stay. Fenced while another program takes one, ConfigProblem without an
    event log, Fatal where it has nothing of the table; else the errors of a replay."""
    _, log = log_of(loaded, lane.table)
    shelf = shelf_of(loaded, lane)
    if shelf is None:
        place = "an object store" if transport_of_log(loaded, log) == LAKE else "a database"
        raise ConfigProblem(
            f"the event log {log} is in {place}, beside which no snapshots are kept yet",
            next_step="Without one replays read the whole log.",
        )
    with shelf.alone():
        shelf.tidy()
        rules = rules_of(loaded, lane)
        last = newest(loaded, lane)
        if last is None:
            refuse_shortened(loaded, lane)
        for why in shelf.damaged():
            tell(f"{lane.sink}.{lane.into}: {why}")
        tell(_beginning(lane, last, shelf.known()))
        draft = shelf.draft(last)
        config = configured(loaded, lane, draft, last)
        run_once(Container(loaded=config))
        made = _described(loaded, config, lane, last)
        made = replace(made, number=shelf.next_number(), rules=rules, bytes=_size(draft))
        if last is not None and made.position == last.position:
            shelf.tidy()
            return last
        shelf.publish(draft, made)
        said = schedule_of(loaded, log)
        for old in shelf.known()[: -(said.keep if said else 1)]:
            shelf.remove(old)
        return made


def configured(
    loaded: Loaded,
    lane: LaneSettings,
    folder: Path,
    begun: StateSnapshot | None,
    until: datetime | Border | None = None,
) -> Loaded:
    """The configuration that applies the event log below `folder`, in this process, from what the snapshot `begun`, which
    was put there, holds: records up to the time or border `until`. The lake is the same whatever the lane's target is.
    Deletes are remembered for ever: how long ago they came is not told by the time at which they are applied anew."""
    lake = DeltaSettings.model_construct(kind="delta", path=str(folder / "lake"))
    more = {
        "engine": adapters.LOCAL,
        "state": folder / "state",
        "erasures": str(adapters.erasures(loaded).path.parent),
        "sinks": {**loaded.settings.sinks, lane.sink: lake},
        "dead_letters": DeadLetterSettings.model_construct(path=str(folder / "dead_letters")),
        "max_rejects": None,
    }
    beside = replace(loaded, settings=loaded.settings.model_copy(update=more))
    border = until.end.to_json() if isinstance(until, Border) else None
    asked = Replay(lane, THEN, until=until.isoformat() if isinstance(until, datetime) else None, below=border)
    topics = topics_of(loaded, lane, begun)
    return prepared(beside, asked, topics, anew=begun is not None, **PLAIN)


def seeded(loaded: Loaded, lane: LaneSettings, folder: Path, until: datetime | Border | None) -> StateSnapshot | None:
    """Let `folder` hold the newest snapshot that a replay of the lane up to then can begin with, and nothing else; None for
    none."""

    def copied(found: StateSnapshot) -> StateSnapshot:
        cast(Shelf, shelf_of(loaded, lane)).copy(found, folder)
        return found

    return beginning_with(lambda: newest(loaded, lane, until), copied)


def newest(loaded: Loaded, lane: LaneSettings, until: datetime | Border | None = None) -> StateSnapshot | None:
    """The latest snapshot with which a replay of the lane up to then can begin, and be whole: behind it the log has all."""
    there = known(loaded, lane)
    gone = removed(loaded, lane) if there else Position()
    reaching = [one for one in there if _reaches(one.position, gone, until)]
    return newest_usable(reaching, rules_of(loaded, lane), until)


def _reaches(position: Position, gone: Position, until: datetime | Border | None) -> bool:
    """Whether of the records that the log lacks none is needed behind the position."""
    wanted = until.end if isinstance(until, Border) else None
    return all(
        position.get(place, 0) >= (first if wanted is None else min(first, wanted.get(place, 0)))
        for place, first in gone.items()
    )


def beginning_with(find: Callable[[], StateSnapshot | None], use: Callable[[StateSnapshot], Used]) -> Used | None:
    """What `use` makes of the snapshot that `find` finds; None for none. Where it was removed meanwhile (Gone), both are
    called again. EnvironmentProblem where that goes on."""
    for _ in range(TRIES):
        found = find()
        if found is None:
            return None
        try:
            return use(found)
        except Gone:
            continue
    raise EnvironmentProblem(
        "snapshots are removed faster than they can be copied",
        next_step="Repeat the command; or have more of them kept (`snapshots: {keep: ...}` of the event log).",
    )


def refuse_shortened(loaded: Loaded, lane: LaneSettings, why: str = OTHERS) -> None:
    """DataLoss, naming what is missing, where the event log lacks first records of the lane's table, so that who begins with
    no snapshot (for the reason `why`) would have a wrong table."""
    missing = removed(loaded, lane)
    if missing:
        because = why if known(loaded, lane) else f"none was taken of lane {lane.sink}.{lane.into}"
        raise DataLoss(
            f"{_gone(loaded, lane, missing)}; and of the snapshots that hold what they made {because}",
            next_step="Go back to the rules under which one was taken, ask for a later time, or load the target anew from "
            f"its source with `replicator lanes resync {lane.sink}.{lane.into}`.",
        )


def tell_shortened(loaded: Loaded, lane: LaneSettings, tell: Tell) -> None:
    """Say of which records the event log lacks the first ones of the lane's table, to who asks for a part."""
    missing = removed(loaded, lane)
    if missing:
        tell(f"{_gone(loaded, lane, missing)}; those of them that were asked for are missing")


def _gone(loaded: Loaded, lane: LaneSettings, missing: Position) -> str:
    _, log = log_of(loaded, lane.table)
    parts = ", ".join(f"below offset {first} of {place}" for place, first in sorted(missing.items()))
    return f"the event log {log} has no records {parts} any more: its retention removed them"


def removed(loaded: Loaded, lane: LaneSettings) -> Position:
    """Of every partition of which the event log lacks the first records the first offset that it has."""
    source, log = log_of(loaded, lane.table)
    with opened_log(loaded, source, log, topics_of(loaded, lane)) as kept:
        found: Position = kept.removed()
        return found


def topics_of(loaded: Loaded, lane: LaneSettings, begun: StateSnapshot | None = None) -> Collection[str]:
    """The topics in which records of the lane's table are, as this program has seen them; none where it has not."""
    seen = FileRegister(parts.register_folder(loaded)).load(lane.source).topics.get(lane.table, frozenset())
    before = {place.topic for place in begun.position} if begun else set()
    return {*seen, *before, BACKFILLS.removesuffix("*") + lane.table} if seen else ()


@contextmanager
def opened(config: Loaded, lane: LaneSettings) -> Iterator[tuple[Any, Lane]]:
    """The sink that holds the target of a configuration of `configured`, and the lane there."""
    with closing(cast(Any, adapters.sink(config, lane.sink))) as sink:
        yield sink, joining.beside(adapters.lane(config, replace_at(lane)), THEN)


def replace_at(lane: LaneSettings) -> LaneSettings:
    """The lane where its entry is the only one."""
    return lane.model_copy(update={"at": ("tables", 0, "to", 0)})


def _described(loaded: Loaded, config: Loaded, lane: LaneSettings, last: StateSnapshot | None) -> StateSnapshot:
    """What was made; older versions of it, which nobody reads, end."""
    with opened(config, lane) as (sink, then):
        state: LaneState | None = sink.state(then)
        if state is None:
            raise Fatal(
                f"the event log has no changes of table {lane.table}",
                next_step="Name the table as its source calls it (`replicator plan` lists them), or look at `dlq list`.",
            )
        sink.end_versions(then)
        rows = sink.rows(then)
    begun = FileRegister(parts.register_folder(config)).load(lane.source).beginnings.get(then.id, Position())
    _, log = log_of(loaded, lane.table)
    with closing(cast(Any, adapters.sink(loaded, log))) as kept:
        newest = kept.newest(last.position if last else Position(), state.position)
    times = [time for time in (newest, last.newest if last else None) if time is not None]
    topics = {place.topic for place in state.position}
    return StateSnapshot(
        number=0,
        lane=f"{lane.sink}.{lane.into}",
        table=lane.table,
        rules="",
        position=state.position,
        begun=begun,
        newest=max(times, default=None),
        taken_at=datetime.now(UTC),
        rows=rows,
        bytes=0,
        identity=tuple(pair for pair in identity_of(loaded, lane) if pair[0] in topics),
    )


def _beginning(lane: LaneSettings, last: StateSnapshot | None, there: list[StateSnapshot]) -> str:
    name = f"{lane.sink}.{lane.into}"
    if last is not None:
        return f"{name}: going on from snapshot {last.number} of {last.taken_at.isoformat()}"
    why = "those there are were taken under other rules" if there else "there is none yet"
    return f"{name}: from the beginning of the event log ({why})"


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
