"""Makes and finds checkpoints of lanes: a rebuild from the event log that is stored and continued."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import quote

from replicator.application.operations import cutover
from replicator.application.operations.checkpoint_store import CheckpointRemoved, CheckpointStore
from replicator.application.stream.file_register import FileRegister
from replicator.domain.as_of import LogCut
from replicator.domain.checkpoints import Checkpoint, find_newest_usable
from replicator.domain.errors import ConfigProblem, DataLoss, EnvironmentProblem, Fatal
from replicator.domain.policy.plan import LaneState
from replicator.domain.position import Position
from replicator.ports.components import make_event_log_lane
from replicator.ports.frames import Lane
from replicator.settings import LaneSettings, Loaded
from replicator.settings.sinks import DeadLetterSettings, DeltaSettings, EventLogSettings, SnapshotSettings
from replicator.settings.tables import NO_RETENTION

from . import adapters, build
from .catch_up_run import run_until_caught_up
from .container import Container
from .event_logs import BACKFILLS, LAKE_TRANSPORT, find_log, get_log_folder, get_log_transport, open_log
from .rebuild import RebuildRequest, prepare_rebuild
from .rule_digests import digest_rules

CHECKPOINTS_FOLDER = Path("_replicator") / "snapshots"
AS_OF_FOLDER = "then"
"""The name of the target in a temporary lake."""
NO_CHECKPOINT_REASON = (
    "none was taken under the rules of today, ends by the time that is asked for, and reaches up to what the log has"
)
PLAIN_LAKE_OPTIONS: Mapping[str, Any] = {
    "partition_by": (),
    "cluster_by": (),
    "change_data_feed": False,
    "deletion_vectors": False,
    "tombstone_retention": NO_RETENTION,
}
"""Options of the lane's entry in a temporary lake. The physical layout does not change rows, and tombstones are kept."""
MAX_TRIES = 3
"""Number of attempts to find a checkpoint while old ones are being removed."""

Report = Callable[[str], None]
UseResult = TypeVar("UseResult")


def find_store(loaded: Loaded, lane: LaneSettings) -> CheckpointStore | None:
    """The checkpoint store of a lane. None if its table has no event log in a folder of this machine."""
    try:
        _, log = find_log(loaded, lane.table)
    except ConfigProblem:
        return None
    folder = get_log_folder(loaded, log)
    if folder is None:
        return None
    home = Path(folder) / CHECKPOINTS_FOLDER / quote(loaded.settings.pipeline, safe="")
    return CheckpointStore(home / quote(f"{lane.sink}.{lane.into}", safe=""))


def get_schedule(loaded: Loaded, log: str) -> SnapshotSettings | None:
    """The configured checkpoint schedule of an event log."""
    said = loaded.settings.sinks[log]
    return said.snapshots if isinstance(said, EventLogSettings) else None


def list_checkpoints(loaded: Loaded, lane: LaneSettings) -> list[Checkpoint]:
    """All usable checkpoints of a lane, the oldest first, without those of topics that were created again since."""
    shelf = find_store(loaded, lane)
    there = [] if shelf is None else shelf.list_usable()
    identity = dict(get_topic_identity(loaded, lane)) if there else {}
    return [one for one in there if one.has_same_topics(identity)]


def describe_damaged(loaded: Loaded, lane: LaneSettings) -> list[str]:
    """For each damaged checkpoint of a lane: what is missing, and how to fix it."""
    shelf = find_store(loaded, lane)
    return [] if shelf is None else shelf.describe_damaged()


def get_topic_identity(loaded: Loaded, lane: LaneSettings) -> tuple[tuple[str, str], ...]:
    """The broker's topic ids, as stored in the lane of the event log."""
    source, log = find_log(loaded, lane.table)
    with closing(cast(Any, adapters.build_sink(loaded, log))) as kept:
        state: LaneState | None = kept.state(make_event_log_lane(loaded.settings.pipeline, source, log))
    return state.identity if state is not None else ()


def take_checkpoint(loaded: Loaded, lane: LaneSettings, tell: Report = lambda _: None) -> Checkpoint:
    """Make a checkpoint of all records now in the event log, under the lane's rules.

    Continues from the last checkpoint with the same rules, and returns that one if nothing is new. Reads the log
    and changes no lane. After a kill the existing checkpoints stay.

    Fenced while another process makes one. ConfigProblem without an event log. Fatal if the log has nothing of the
    table. Otherwise the errors of a rebuild.
    """
    _, log = find_log(loaded, lane.table)
    shelf = find_store(loaded, lane)
    if shelf is None:
        place = "an object store" if get_log_transport(loaded, log) == LAKE_TRANSPORT else "a database"
        raise ConfigProblem(
            f"the event log {log} is in {place}, beside which no snapshots are kept yet",
            next_step="Without one replays read the whole log.",
        )
    with shelf.lock():
        shelf.remove_leftovers()
        rules = digest_rules(loaded, lane)
        last = find_newest(loaded, lane)
        if last is None:
            refuse_truncated(loaded, lane)
        for why in shelf.describe_damaged():
            tell(f"{lane.sink}.{lane.into}: {why}")
        tell(_describe_start(lane, last, shelf.list_usable()))
        draft = shelf.make_draft(last)
        config = configure_lake(loaded, lane, draft, last)
        run_until_caught_up(Container(loaded=config))
        made = _make_checkpoint(loaded, config, lane, last)
        made = replace(made, number=shelf.find_next_number(), rules=rules, bytes=_measure_folder(draft))
        if last is not None and made.position == last.position:
            shelf.remove_leftovers()
            return last
        shelf.publish_draft(draft, made)
        said = get_schedule(loaded, log)
        for old in shelf.list_usable()[: -(said.keep if said else 1)]:
            shelf.remove_checkpoint(old)
        return made


def configure_lake(
    loaded: Loaded,
    lane: LaneSettings,
    folder: Path,
    begun: Checkpoint | None,
    until: datetime | LogCut | None = None,
) -> Loaded:
    """The configuration that applies the event log to a lake below `folder`, in this process.

    It starts from the content of the checkpoint `begun`, which is already there, and ends at the time or cut
    `until`. The result does not depend on the lane's target. Tombstones are kept forever, because their arrival
    times are not those of the repeated records.
    """
    lake = DeltaSettings.model_construct(kind="delta", path=str(folder / "lake"))
    more = {
        "engine": adapters.LOCAL,
        "state": folder / "state",
        "erasures": str(adapters.open_erasure_list(loaded).path.parent),
        "sinks": {**loaded.settings.sinks, lane.sink: lake},
        "dead_letters": DeadLetterSettings.model_construct(path=str(folder / "dead_letters")),
        "max_rejects": None,
    }
    beside = replace(loaded, settings=loaded.settings.model_copy(update=more))
    border = until.end.to_json() if isinstance(until, LogCut) else None
    asked = RebuildRequest(
        lane, AS_OF_FOLDER, until=until.isoformat() if isinstance(until, datetime) else None, below=border
    )
    topics = list_topics(loaded, lane, begun)
    return prepare_rebuild(beside, asked, topics, from_scratch=begun is not None, **PLAIN_LAKE_OPTIONS)


def copy_newest(loaded: Loaded, lane: LaneSettings, folder: Path, until: datetime | LogCut | None) -> Checkpoint | None:
    """Copy the newest checkpoint that the lane can use up to `until` into `folder`, replacing its content. None if
    there is none."""

    def copy_checkpoint(found: Checkpoint) -> Checkpoint:
        cast(CheckpointStore, find_store(loaded, lane)).copy_checkpoint(found, folder)
        return found

    return use_checkpoint(lambda: find_newest(loaded, lane, until), copy_checkpoint)


def find_newest(loaded: Loaded, lane: LaneSettings, until: datetime | LogCut | None = None) -> Checkpoint | None:
    """The newest checkpoint that a rebuild up to `until` can use. The log must have all records after it."""
    there = list_checkpoints(loaded, lane)
    gone = get_removed(loaded, lane) if there else Position()
    reaching = [one for one in there if _is_covering(one.position, gone, until)]
    return find_newest_usable(reaching, digest_rules(loaded, lane), until)


def _is_covering(position: Position, gone: Position, until: datetime | LogCut | None) -> bool:
    """True if none of the log's removed records is needed after the position."""
    wanted = until.end if isinstance(until, LogCut) else None
    return all(
        position.get(place, 0) >= (first if wanted is None else min(first, wanted.get(place, 0)))
        for place, first in gone.items()
    )


def use_checkpoint(find: Callable[[], Checkpoint | None], use: Callable[[Checkpoint], UseResult]) -> UseResult | None:
    """The result of `use` for the checkpoint that `find` returns; None if it finds none.

    After CheckpointRemoved both are called again, and EnvironmentProblem if that repeats.
    """
    for _ in range(MAX_TRIES):
        found = find()
        if found is None:
            return None
        try:
            return use(found)
        except CheckpointRemoved:
            continue
    raise EnvironmentProblem(
        "snapshots are removed faster than they can be copied",
        next_step="Repeat the command; or have more of them kept (`snapshots: {keep: ...}` of the event log).",
    )


def refuse_truncated(loaded: Loaded, lane: LaneSettings, why: str = NO_CHECKPOINT_REASON) -> None:
    """DataLoss, with the missing offsets, if the event log lacks the first records of the lane's table.

    Without a checkpoint (`why`: the reason) the table would be wrong then.
    """
    missing = get_removed(loaded, lane)
    if missing:
        because = why if list_checkpoints(loaded, lane) else f"none was taken of lane {lane.sink}.{lane.into}"
        raise DataLoss(
            f"{_describe_truncated(loaded, lane, missing)}; and of the snapshots that hold what they made {because}",
            next_step="Go back to the rules under which one was taken, ask for a later time, or load the target anew from "
            f"its source with `replicator lanes resync {lane.sink}.{lane.into}`.",
        )


def report_truncated(loaded: Loaded, lane: LaneSettings, tell: Report) -> None:
    """Report which first records of the lane's table the event log lacks, if any, to a caller that wants only some
    records."""
    missing = get_removed(loaded, lane)
    if missing:
        tell(f"{_describe_truncated(loaded, lane, missing)}; those of them that were asked for are missing")


def _describe_truncated(loaded: Loaded, lane: LaneSettings, missing: Position) -> str:
    _, log = find_log(loaded, lane.table)
    parts = ", ".join(f"below offset {first} of {place}" for place, first in sorted(missing.items()))
    return f"the event log {log} has no records {parts} any more: its retention removed them"


def get_removed(loaded: Loaded, lane: LaneSettings) -> Position:
    """For each partition without its first records, the first offset in the event log."""
    source, log = find_log(loaded, lane.table)
    with open_log(loaded, source, log, list_topics(loaded, lane)) as kept:
        found: Position = kept.removed()
        return found


def list_topics(loaded: Loaded, lane: LaneSettings, begun: Checkpoint | None = None) -> Collection[str]:
    """The topics with records of the lane's table, as this pipeline has read them. Empty if none yet."""
    seen = FileRegister(build.get_register_folder(loaded)).load(lane.source).topics.get(lane.table, frozenset())
    before = {place.topic for place in begun.position} if begun else set()
    return {*seen, *before, BACKFILLS.removesuffix("*") + lane.table} if seen else ()


@contextmanager
def open_target(config: Loaded, lane: LaneSettings) -> Iterator[tuple[Any, Lane]]:
    """The sink with the target of a `configure_lake` configuration, and its lane."""
    with closing(cast(Any, adapters.build_sink(config, lane.sink))) as sink:
        yield sink, cutover.make_rebuild_lane(adapters.build_lane(config, move_lane(lane)), AS_OF_FOLDER)


def move_lane(lane: LaneSettings) -> LaneSettings:
    """The lane in a config in which its entry is the only one."""
    return lane.model_copy(update={"at": ("tables", 0, "to", 0)})


def _make_checkpoint(loaded: Loaded, config: Loaded, lane: LaneSettings, last: Checkpoint | None) -> Checkpoint:
    """The checkpoint of the lake. Older versions of the lake are deleted, because nothing reads them."""
    with open_target(config, lane) as (sink, then):
        state: LaneState | None = sink.state(then)
        if state is None:
            raise Fatal(
                f"the event log has no changes of table {lane.table}",
                next_step="Name the table as its source calls it (`replicator plan` lists them), or look at `dlq list`.",
            )
        sink.end_versions(then)
        rows = sink.rows(then)
    begun = FileRegister(build.get_register_folder(config)).load(lane.source).beginnings.get(then.id, Position())
    _, log = find_log(loaded, lane.table)
    with closing(cast(Any, adapters.build_sink(loaded, log))) as kept:
        newest = kept.newest(last.position if last else Position(), state.position)
    times = [time for time in (newest, last.newest if last else None) if time is not None]
    topics = {place.topic for place in state.position}
    return Checkpoint(
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
        identity=tuple(pair for pair in get_topic_identity(loaded, lane) if pair[0] in topics),
    )


def _describe_start(lane: LaneSettings, last: Checkpoint | None, there: list[Checkpoint]) -> str:
    name = f"{lane.sink}.{lane.into}"
    if last is not None:
        return f"{name}: going on from snapshot {last.number} of {last.taken_at.isoformat()}"
    why = "those there are were taken under other rules" if there else "there is none yet"
    return f"{name}: from the beginning of the event log ({why})"


def _measure_folder(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
