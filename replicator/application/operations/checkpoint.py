"""Makes and finds checkpoints of lanes: a rebuild from the event log that is stored and continued."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import quote

from replicator.application.lane_registry import find_target_problem
from replicator.application.sink_features import require_feature
from replicator.domain.as_of import LogCut
from replicator.domain.checkpoints import Checkpoint, find_newest_usable
from replicator.domain.errors import ConfigProblem, DataLoss, EnvironmentProblem, Fatal
from replicator.domain.policy.plan import LaneState
from replicator.domain.position import Position
from replicator.ports.backfill import TOPICS
from replicator.ports.components import Components, RebuildRequest
from replicator.ports.frames import Lane
from replicator.ports.sink import Sink

from . import cutover
from .checkpoint_store import CheckpointRemoved, CheckpointStore
from .rebuild import prepare_rebuild

CHECKPOINTS_FOLDER = Path("_replicator") / "snapshots"
AS_OF_FOLDER = "then"
"""The name of the target in a temporary lake."""
NO_CHECKPOINT_REASON = (
    "no snapshot has today's rules, ends at the requested time or earlier, and reaches the records that the log still has"
)
STORES_NONE = "the sink of the lake stores no checkpoints"
MAX_TRIES = 3
"""Number of attempts to find a checkpoint while old ones are being removed."""

Report = Callable[[str], None]
UseResult = TypeVar("UseResult")


@contextmanager
def open_target(lake: Components, lane: Lane) -> Iterator[tuple[Sink[Any], Lane]]:
    """The sink with the target of a `prepare_lake` pipeline, and its lane."""
    with closing(lake.open_sink(lane.sink)) as sink:
        yield sink, cutover.make_rebuild_lane(lane, AS_OF_FOLDER)


def find_store(parts: Components, lane: Lane) -> CheckpointStore | None:
    """The checkpoint store of a lane. None if its table has no event log in a folder of this machine."""
    try:
        folder = parts.sinks[parts.find_log(lane.table).sink].log_folder
    except ConfigProblem:
        return None
    if folder is None:
        return None
    return CheckpointStore(Path(folder) / CHECKPOINTS_FOLDER / quote(parts.pipeline, safe="") / quote(lane.id, safe=""))


def list_checkpoints(parts: Components, lane: Lane) -> list[Checkpoint]:
    """All usable checkpoints of a lane, the oldest first, without those of topics that were created again since."""
    shelf = find_store(parts, lane)
    there = [] if shelf is None else shelf.list_usable()
    identity = dict(get_topic_identity(parts, lane)) if there else {}
    return [one for one in there if one.has_same_topics(identity)]


def describe_damaged(parts: Components, lane: Lane) -> list[str]:
    """For each damaged checkpoint of a lane: what is missing, and how to fix it."""
    shelf = find_store(parts, lane)
    return [] if shelf is None else shelf.describe_damaged()


def get_topic_identity(parts: Components, lane: Lane) -> tuple[tuple[str, str], ...]:
    """The broker's topic ids, as stored in the lane of the event log."""
    log = parts.find_log(lane.table)
    with closing(parts.open_sink(log.sink)) as kept:
        state: LaneState | None = kept.state(log)
    return state.identity if state is not None else ()


def take_checkpoint(parts: Components, lane: Lane, tell: Report = lambda _: None) -> Checkpoint:
    """Make a checkpoint of all records now in the event log, under the lane's rules.

    Continues from the last checkpoint with the same rules, and returns that one if nothing is new. Reads the log
    and changes no lane. After a kill the existing checkpoints stay.

    Fenced while another process makes one. ConfigProblem without an event log, and for a lane without a target of its
    own. Fatal if the log has nothing of the table. Otherwise the errors of a rebuild.
    """
    if problem := find_target_problem(lane, parts.register.load(lane.source)):
        raise problem
    log = parts.find_log(lane.table).sink
    shelf = find_store(parts, lane)
    if shelf is None:
        place = "a database" if parts.sinks[log].is_log_in_database else "an object store"
        raise ConfigProblem(
            f"the event log {log} is in {place}, for which snapshots are not supported yet",
            next_step="Run `replicator replay` without a snapshot: it reads the whole log.",
        )
    with shelf.lock():
        shelf.remove_leftovers()
        rules = parts.digest(lane)
        last = find_newest(parts, lane)
        if last is None:
            refuse_truncated(parts, lane)
        for why in shelf.describe_damaged():
            tell(f"{lane.id}: {why}")
        tell(_describe_start(lane, last, shelf.list_usable()))
        draft = shelf.make_draft(last)
        lake = prepare_lake(parts, lane, draft, last)
        lake.catch_up()
        made = _make_checkpoint(parts, lake, lane, last)
        made = replace(made, number=shelf.find_next_number(), rules=rules, bytes=_measure_folder(draft))
        if last is not None and made.position == last.position:
            shelf.remove_leftovers()
            return last
        shelf.publish_draft(draft, made)
        schedule = parts.sinks[log].checkpoints
        for old in shelf.list_usable()[: -(schedule.keep if schedule else 1)]:
            shelf.remove_checkpoint(old)
        return made


def prepare_lake(
    parts: Components, lane: Lane, folder: Path, begun: Checkpoint | None, until: datetime | LogCut | None = None
) -> Components:
    """The pipeline that applies the event log to a lake below `folder`, in this process.

    It starts from the content of the checkpoint `begun`, which is already there, and ends at the time or cut
    `until`. The result does not depend on the lane's target. Tombstones are kept forever, because their arrival
    times are not those of the repeated records.
    """
    border = until.end.to_json() if isinstance(until, LogCut) else None
    time = until.isoformat() if isinstance(until, datetime) else None
    asked = RebuildRequest(lane, AS_OF_FOLDER, until=time, below=border)
    topics, lake = list_topics(parts, lane, begun), parts.use_lake(lane.sink, folder)
    return prepare_rebuild(lake, asked, topics, from_scratch=begun is not None, is_plain=True)


def copy_newest(parts: Components, lane: Lane, folder: Path, until: datetime | LogCut | None) -> Checkpoint | None:
    """Copy the newest checkpoint that the lane can use up to `until` into `folder`, replacing its content. None if
    there is none."""

    def copy_checkpoint(found: Checkpoint) -> Checkpoint:
        cast(CheckpointStore, find_store(parts, lane)).copy_checkpoint(found, folder)
        return found

    return use_checkpoint(lambda: find_newest(parts, lane, until), copy_checkpoint)


def find_newest(parts: Components, lane: Lane, until: datetime | LogCut | None = None) -> Checkpoint | None:
    """The newest checkpoint that a rebuild up to `until` can use. The log must have all records after it."""
    there = list_checkpoints(parts, lane)
    gone = get_removed(parts, lane) if there else Position()
    reaching = [one for one in there if _is_covering(one.position, gone, until)]
    return find_newest_usable(reaching, parts.digest(lane), until)


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
        next_step="Repeat the command. Or keep more snapshots (`snapshots: {keep: ...}` of the event log).",
    )


def refuse_truncated(parts: Components, lane: Lane, why: str = NO_CHECKPOINT_REASON) -> None:
    """DataLoss, with the missing offsets, if the event log lacks the first records of the lane's table.

    Without a checkpoint (`why`: the reason) the table would be wrong then.
    """
    missing = get_removed(parts, lane)
    if missing:
        because = why if list_checkpoints(parts, lane) else f"there is no snapshot of lane {lane.id}"
        raise DataLoss(
            f"{_describe_truncated(parts, lane, missing)}. No snapshot replaces them: {because}",
            next_step="Restore the rules of an existing snapshot, or choose a later time. Or load the target again from its "
            f"source with `replicator lanes resync {lane.id}`.",
        )


def report_truncated(parts: Components, lane: Lane, tell: Report) -> None:
    """Report which first records of the lane's table the event log lacks, if any, to a caller that wants only some
    records."""
    missing = get_removed(parts, lane)
    if missing:
        tell(f"{_describe_truncated(parts, lane, missing)}. The result lacks the requested records among them")


def _describe_truncated(parts: Components, lane: Lane, missing: Position) -> str:
    log = parts.find_log(lane.table).sink
    gone = ", ".join(f"below offset {first} of {place}" for place, first in sorted(missing.items()))
    return f"log retention has removed the records {gone} from the event log {log}"


def get_removed(parts: Components, lane: Lane) -> Position:
    """For each partition without its first records, the first offset in the event log."""
    with closing(parts.open_log(parts.find_log(lane.table), list_topics(parts, lane))) as kept:
        found: Position = kept.removed()
        return found


def list_topics(parts: Components, lane: Lane, begun: Checkpoint | None = None) -> Collection[str]:
    """The topics with records of the lane's table, as this pipeline has read them. Empty if none yet."""
    seen = parts.register.load(lane.source).topics.get(lane.table, frozenset())
    before = {place.topic for place in begun.position} if begun else set()
    return {*seen, *before, TOPICS + lane.table} if seen else ()


def _make_checkpoint(parts: Components, lake: Components, lane: Lane, last: Checkpoint | None) -> Checkpoint:
    """The checkpoint of the lake. Older versions of the lake are deleted, because nothing reads them."""
    with open_target(lake, lane) as (sink, then):
        state = sink.state(then)
        if state is None:
            raise Fatal(
                f"the event log has no changes of table {lane.table}",
                next_step="Use the table's name at the source (`replicator plan` lists them), or see `replicator dlq list`.",
            )
        require_feature(sink.features.erasure, STORES_NONE).end_versions(then)
        rows = require_feature(sink.features.count_rows, STORES_NONE)(then)
    begun = lake.register.load(lane.source).beginnings.get(then.id, Position())
    with closing(parts.open_sink(parts.find_log(lane.table).sink)) as kept:
        find_newest_time = require_feature(kept.features.find_newest_time, "the event log finds no records by their time")
        newest = find_newest_time(last.position if last else Position(), state.position)
    times = [time for time in (newest, last.newest if last else None) if time is not None]
    topics = {place.topic for place in state.position}
    return Checkpoint(
        number=0,
        lane=lane.id,
        table=lane.table,
        rules="",
        position=state.position,
        begun=begun,
        newest=max(times, default=None),
        taken_at=datetime.now(UTC),
        rows=rows,
        bytes=0,
        identity=tuple(pair for pair in get_topic_identity(parts, lane) if pair[0] in topics),
    )


def _describe_start(lane: Lane, last: Checkpoint | None, there: list[Checkpoint]) -> str:
    name = lane.id
    if last is not None:
        return f"{name}: starting from snapshot {last.number} of {last.taken_at.isoformat()}"
    why = "all snapshots have other rules" if there else "there is no snapshot yet"
    return f"{name}: from the beginning of the event log ({why})"


def _measure_folder(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
