"""Checkpoints of lanes: a rebuild from the event log that is stored, continued, and copied into new targets."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import quote

from replicator.application.lane_registry import find_target_problem
from replicator.application.lane_schema import find_plan
from replicator.application.sink_features import get_reader, read_schema_versions, require_feature
from replicator.application.state_folder import REGISTER_FOLDER, FileRegister, InstanceLock
from replicator.domain.errors import ConfigProblem, DataLoss, EnvironmentProblem, Fatal, Fenced, RejectCode
from replicator.domain.event_log import Checkpoint, LogCut, find_newest_usable
from replicator.domain.policy.plan import LaneState
from replicator.domain.position import Position, TopicPartition
from replicator.local_files import make_folder, sync_path
from replicator.ports.components import Components, RebuildRequest
from replicator.ports.frames import Lane
from replicator.ports.runtime import ShowLine
from replicator.ports.sink import CheckpointUnsupported, Sink
from replicator.ports.source import BACKFILL_TOPICS

from .drop import drop_lane
from .rebuild import CHECKPOINT_COPY_FOLDER, get_rebuild_folder, make_rebuild_lane, prepare_rebuild

# The checkpoints of one lane on disk: one folder each, valid once it has its final name.

MANIFEST = "snapshot.json"
FILE_LIST = "files.json"
"""All other files of a checkpoint, with their sizes in bytes."""
CHANGING_MARK = "changing"
"""This file exists while rows are erased from an otherwise complete checkpoint."""
OWN_FILES = frozenset({MANIFEST, FILE_LIST, CHANGING_MARK})
DRAFT_FOLDER = "draft"
LINKED_SUFFIX = ".parquet"
"""Files that are never rewritten, so that copies may share them."""


class CheckpointRemoved(FileNotFoundError):
    """A checkpoint was removed during its copy, because a newer one replaced it."""


class CheckpointStore:
    """Checkpoints in `folder`, named by their numbers.

    A checkpoint that is being made or removed has another folder name, so a kill does not damage the others. The
    next `remove_leftovers` deletes what the kill left.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def list_usable(self) -> list[Checkpoint]:
        """Every checkpoint that a rebuild can start from, the oldest first: those with all their files."""
        return [one for one in self.list_all() if not self.describe_damage(one)]

    def describe_damaged(self) -> list[str]:
        """For each damaged checkpoint: what is missing, and how to fix it."""
        return [damage for one in self.list_all() if (damage := self.describe_damage(one))]

    def describe_damage(self, checkpoint: Checkpoint) -> str:
        """Why a checkpoint cannot be used; empty if it can."""
        path = self.get_folder(checkpoint)
        if (path / CHANGING_MARK).exists():
            return (
                f"checkpoint {checkpoint.number} in {path} is not used, because an erasure in it is unfinished. Repeat the "
                "`replicator forget` command"
            )
        try:
            listed: dict[str, int] = json.loads((path / FILE_LIST).read_bytes())
            files = {name: path / name for name in listed}
            wrong = [n for n, size in listed.items() if not files[n].is_file() or files[n].stat().st_size != size]
        except (OSError, ValueError, AttributeError):
            wrong = [FILE_LIST]
        if not wrong:
            return ""
        return f"checkpoint {checkpoint.number} in {path} is damaged ({wrong[0]}), and not used. Remove the folder"

    def list_all(self) -> list[Checkpoint]:
        """Every checkpoint, damaged ones too, the oldest first. A checkpoint without a readable manifest is left out."""
        checkpoints = []
        for path in self.folder.glob("*") if self.folder.is_dir() else ():
            if path.name.isdecimal():
                try:
                    checkpoints.append(Checkpoint.from_json(json.loads((path / MANIFEST).read_bytes())))
                except (OSError, ValueError, KeyError, TypeError, AttributeError):
                    continue
        return sorted(checkpoints, key=lambda one: one.number)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Exclusive permission to make, change and remove checkpoints in this folder. Fenced if another process has
        it."""
        lock = InstanceLock(self.folder, "")
        try:
            lock.acquire()
        except Fenced as locked:
            raise Fenced(
                f"another program is writing or changing the checkpoints in {self.folder}",
                next_step="Repeat the command when it has finished.",
            ) from locked
        try:
            yield
        finally:
            lock.release()

    def remove_leftovers(self) -> None:
        """Remove half-made and half-removed checkpoints. Needs `lock`."""
        for path in self.folder.glob(f"{DRAFT_FOLDER}*"):
            shutil.rmtree(path)

    def make_draft(self, last: Checkpoint | None) -> Path:
        """A folder for the next checkpoint, with the content of `last`. Needs `lock`."""
        path = self.folder / DRAFT_FOLDER
        with self._wrap_write_errors():
            make_folder(path)
            if last is not None:
                self.copy_checkpoint(last, path)
        return path

    def find_next_number(self) -> int:
        """The number of the next checkpoint."""
        return max((int(p.name) for p in self.folder.glob("*") if p.name.isdecimal()), default=0) + 1

    def publish_draft(self, draft: Path, checkpoint: Checkpoint) -> None:
        """Make `draft` this checkpoint; durable on return. Needs `lock`."""
        with self._wrap_write_errors():
            (draft / MANIFEST).write_text(json.dumps(checkpoint.to_json()), encoding="utf-8")
            _list_files(draft)
            for path in (*draft.rglob("*"), draft):
                sync_path(path)
            draft.rename(self.folder / str(checkpoint.number))
            sync_path(self.folder)

    @contextmanager
    def _wrap_write_errors(self) -> Iterator[None]:
        try:
            yield
        except CheckpointRemoved:
            raise
        except OSError as error:
            raise EnvironmentProblem(
                f"{self.folder} cannot be written ({error.strerror}).",
                next_step="Make the folder writable, with room on its disk. The checkpoints in it stay as they are.",
            ) from error

    @contextmanager
    def mark_changing(self, checkpoint: Checkpoint) -> Iterator[None]:
        """The files of the checkpoint may be changed inside the block. After an error or a kill the checkpoint is
        unusable until the change is repeated. A damaged one stays damaged. Needs `lock`."""
        path = self.get_folder(checkpoint)
        is_mine = (path / CHANGING_MARK).exists() or not self.describe_damage(checkpoint)
        if is_mine:
            (path / CHANGING_MARK).touch()
            sync_path(path)
        yield
        if is_mine:
            _list_files(path)
            sync_path(path / FILE_LIST)
            (path / CHANGING_MARK).unlink()
            sync_path(path)

    def remove_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Remove a checkpoint. Needs `lock`."""
        draft = self.folder / f"{DRAFT_FOLDER}-{checkpoint.number}"
        self.get_folder(checkpoint).rename(draft)
        shutil.rmtree(draft)

    def get_folder(self, checkpoint: Checkpoint) -> Path:
        """The folder of a checkpoint."""
        return self.folder / str(checkpoint.number)

    def copy_checkpoint(self, checkpoint: Checkpoint, to: Path) -> None:
        """Copy a checkpoint into the folder `to`, replacing its content. The copy may be changed.

        CheckpointRemoved if the checkpoint was removed meanwhile; `to` is empty then. Lock files are copied too,
        but a copied lock file locks nothing.
        """
        path = self.get_folder(checkpoint)
        top = str(path)
        _empty_folder(to)
        try:
            shutil.copytree(
                path,
                to,
                copy_function=_copy_or_link,
                ignore=lambda folder, _: OWN_FILES if folder == top else (),
                dirs_exist_ok=True,
            )
        except OSError as error:
            if path.is_dir():
                raise
            _empty_folder(to)
            raise CheckpointRemoved(f"checkpoint {checkpoint.number} was removed") from error


def _list_files(folder: Path) -> None:
    files = {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    listed = {name: size for name, size in sorted(files.items()) if name not in OWN_FILES}
    (folder / FILE_LIST).write_text(json.dumps(listed), encoding="utf-8")


def _empty_folder(folder: Path) -> None:
    for path in folder.iterdir() if folder.is_dir() else ():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _copy_or_link(source: str, target: str) -> None:
    if source.endswith(LINKED_SUFFIX):
        try:
            os.link(source, target)
            return
        except OSError:
            pass  # Another disk, or a file system without links.
    shutil.copy2(source, target)


CHECKPOINTS_FOLDER = Path("_replicator") / "snapshots"
AS_OF_TARGET = "then"
"""The name of the target in a temporary lake."""
NO_CHECKPOINT_REASON = (
    "no checkpoint has today's rules, ends at the requested time or earlier, and reaches the records that the log still has"
)
STORES_NONE = "the sink of the lake stores no checkpoints"
MAX_TRIES = 3
"""Number of attempts to find a checkpoint while old ones are being removed."""

UseResult = TypeVar("UseResult")


@contextmanager
def open_target(lake: Components, lane: Lane) -> Iterator[tuple[Sink[Any], Lane]]:
    """The sink with the target of a `prepare_lake` pipeline, and its lane."""
    with closing(lake.open_sink(lane.sink)) as sink:
        yield sink, make_rebuild_lane(lane, AS_OF_TARGET)


def find_store(components: Components, lane: Lane) -> CheckpointStore | None:
    """The checkpoint store of a lane. None if its table has no event log in a folder of this machine."""
    try:
        folder = components.sinks[components.find_log(lane.table).sink].log_folder
    except ConfigProblem:
        return None
    if folder is None:
        return None
    return CheckpointStore(Path(folder) / CHECKPOINTS_FOLDER / quote(components.pipeline, safe="") / quote(lane.id, safe=""))


def list_checkpoints(components: Components, lane: Lane) -> list[Checkpoint]:
    """All usable checkpoints of a lane, the oldest first, without those of topics that were created again since."""
    store = find_store(components, lane)
    checkpoints = [] if store is None else store.list_usable()
    identity = dict(get_topic_identity(components, lane)) if checkpoints else {}
    return [one for one in checkpoints if one.has_same_topics(identity)]


def describe_damaged(components: Components, lane: Lane) -> list[str]:
    """For each damaged checkpoint of a lane: what is missing, and how to fix it."""
    store = find_store(components, lane)
    return [] if store is None else store.describe_damaged()


def get_topic_identity(components: Components, lane: Lane) -> tuple[tuple[str, str], ...]:
    """The broker's topic ids, as stored in the lane of the event log."""
    log = components.find_log(lane.table)
    with closing(components.open_sink(log.sink)) as sink:
        state: LaneState | None = sink.state(log)
    return state.identity if state is not None else ()


def take_checkpoint(components: Components, lane: Lane, show_line: ShowLine = lambda _: None) -> Checkpoint:
    """Make a checkpoint of all records now in the event log, under the lane's rules.

    Continues from the last checkpoint with the same rules, and returns that one if nothing is new. Reads the log
    and changes no lane. After a kill the existing checkpoints stay.

    Fenced while another process makes one. ConfigProblem without an event log, and for a lane without a target of its
    own. Fatal if the log has nothing of the table. Otherwise the errors of a rebuild.
    """
    if problem := find_target_problem(lane, components.register.load(lane.source)):
        raise problem
    log = components.find_log(lane.table).sink
    store = find_store(components, lane)
    if store is None:
        storage = "a database" if components.sinks[log].is_log_in_database else "an object store"
        raise ConfigProblem(
            f"the event log {log} is in {storage}, for which checkpoints are not supported yet",
            next_step="Run `replicator replay` without a checkpoint: it reads the whole log.",
        )
    with store.lock():
        store.remove_leftovers()
        rules = components.digest(lane)
        last = find_newest(components, lane)
        if last is None:
            refuse_truncated(components, lane)
        for why in store.describe_damaged():
            show_line(f"{lane.id}: {why}")
        show_line(_describe_start(lane, last, store.list_usable()))
        draft = store.make_draft(last)
        lake = prepare_lake(components, lane, draft, last)
        lake.catch_up()
        checkpoint = _make_checkpoint(components, lake, lane, last)
        size = sum(path.stat().st_size for path in draft.rglob("*") if path.is_file())
        checkpoint = replace(checkpoint, number=store.find_next_number(), rules=rules, bytes=size)
        if last is not None and checkpoint.position == last.position:
            store.remove_leftovers()
            return last
        store.publish_draft(draft, checkpoint)
        schedule = components.sinks[log].checkpoints
        for old in store.list_usable()[: -(schedule.keep if schedule else 1)]:
            store.remove_checkpoint(old)
        return checkpoint


def prepare_lake(
    components: Components, lane: Lane, folder: Path, base: Checkpoint | None, until: datetime | LogCut | None = None
) -> Components:
    """The pipeline that applies the event log to a lake below `folder`, in this process.

    It starts from the content of the checkpoint `base`, which is already there, and ends at the time or cut
    `until`. The result does not depend on the lane's target. Tombstones are kept forever, because their arrival
    times are not those of the repeated records.
    """
    below = until.end.to_json() if isinstance(until, LogCut) else None
    time = until.isoformat() if isinstance(until, datetime) else None
    request = RebuildRequest(lane, AS_OF_TARGET, until=time, below=below)
    topics, lake = list_topics(components, lane, base), components.use_lake(lane.sink, folder)
    return prepare_rebuild(lake, request, topics, for_checkpoint=True)


def copy_newest(components: Components, lane: Lane, folder: Path, until: datetime | LogCut | None) -> Checkpoint | None:
    """Copy the newest checkpoint that the lane can use up to `until` into `folder`, replacing its content. None if
    there is none."""

    def copy_checkpoint(checkpoint: Checkpoint) -> Checkpoint:
        cast(CheckpointStore, find_store(components, lane)).copy_checkpoint(checkpoint, folder)
        return checkpoint

    return use_checkpoint(lambda: find_newest(components, lane, until), copy_checkpoint)


def find_newest(components: Components, lane: Lane, until: datetime | LogCut | None = None) -> Checkpoint | None:
    """The newest checkpoint that a rebuild up to `until` can use. The log must have all records after it."""
    checkpoints = list_checkpoints(components, lane)
    removed_offsets = get_removed(components, lane) if checkpoints else Position()
    needed = dict(removed_offsets)
    if isinstance(until, LogCut):
        needed = {partition: min(first, until.end.get(partition, 0)) for partition, first in needed.items()}
    reaching = [one for one in checkpoints if all(one.position.get(p, 0) >= first for p, first in needed.items())]
    return find_newest_usable(reaching, components.digest(lane), until)


def use_checkpoint(find: Callable[[], Checkpoint | None], use: Callable[[Checkpoint], UseResult]) -> UseResult | None:
    """The result of `use` for the checkpoint that `find` returns; None if it finds none.

    After CheckpointRemoved both are called again, and EnvironmentProblem if that repeats.
    """
    for _ in range(MAX_TRIES):
        checkpoint = find()
        if checkpoint is None:
            return None
        try:
            return use(checkpoint)
        except CheckpointRemoved:
            continue
    raise EnvironmentProblem(
        "checkpoints are removed faster than they can be copied",
        next_step="Repeat the command. Or keep more checkpoints (`snapshots: {keep: ...}` of the event log).",
    )


def refuse_truncated(components: Components, lane: Lane, why: str = NO_CHECKPOINT_REASON) -> None:
    """DataLoss, with the missing offsets, if the event log lacks the first records of the lane's table.

    Without a checkpoint (`why`: the reason) the table would be wrong then.
    """
    missing = get_removed(components, lane)
    if missing:
        because = why if list_checkpoints(components, lane) else f"there is no checkpoint of lane {lane.id}"
        raise DataLoss(
            f"{_describe_truncated(components, lane, missing)}. No checkpoint replaces them: {because}",
            next_step="Restore the rules of an existing checkpoint, or choose a later time. Or load the target again from "
            f"its source with `replicator lanes resync {lane.id}`.",
        )


def report_truncated(components: Components, lane: Lane, show_line: ShowLine) -> None:
    """Report which first records of the lane's table the event log lacks, if any, to a caller that wants only some
    records."""
    missing = get_removed(components, lane)
    if missing:
        show_line(f"{_describe_truncated(components, lane, missing)}. The result lacks the requested records among them")


def _describe_truncated(components: Components, lane: Lane, missing: Position) -> str:
    log = components.find_log(lane.table).sink
    ranges = ", ".join(f"below offset {first} of {partition}" for partition, first in sorted(missing.items()))
    return f"log retention has removed the records {ranges} from the event log {log}"


def get_removed(components: Components, lane: Lane) -> Position:
    """For each partition without its first records, the first offset in the event log."""
    with closing(components.open_log(components.find_log(lane.table), list_topics(components, lane))) as source:
        removed = source.features.removed
        return Position() if removed is None else removed()


def list_topics(components: Components, lane: Lane, base: Checkpoint | None = None) -> Collection[str]:
    """The topics with records of the lane's table, as this pipeline has read them. Empty if none yet."""
    topics = components.register.load(lane.source).topics.get(lane.table, frozenset())
    before = {partition.topic for partition in base.position} if base else set()
    return {*topics, *before, BACKFILL_TOPICS + lane.table} if topics else ()


def _make_checkpoint(components: Components, lake: Components, lane: Lane, last: Checkpoint | None) -> Checkpoint:
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
    with closing(components.open_sink(components.find_log(lane.table).sink)) as reader:
        find_newest_time = require_feature(reader.features.find_newest_time, "the event log finds no records by their time")
        newest = find_newest_time(last.position if last else Position(), state.position)
    times = [time for time in (newest, last.newest if last else None) if time is not None]
    topics = {partition.topic for partition in state.position}
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
        identity=tuple(pair for pair in get_topic_identity(components, lane) if pair[0] in topics),
    )


def _describe_start(lane: Lane, last: Checkpoint | None, checkpoints: list[Checkpoint]) -> str:
    name = lane.id
    if last is not None:
        return f"{name}: starting from checkpoint {last.number} of {last.taken_at.isoformat()}"
    why = "all checkpoints have other rules" if checkpoints else "there is no checkpoint yet"
    return f"{name}: from the beginning of the event log ({why})"


# Starts a rebuild from a checkpoint: selects one and copies it into the target.

PARTIAL_STEP = "Rebuild from a part of the records with `--since TIME --into NAME`"


def show_nothing(_: str) -> None:
    """The default `show_line`: does nothing."""


def prepare_restored_rebuild(
    components: Components, request: RebuildRequest, show_line: ShowLine = show_nothing
) -> Components:
    """Like `rebuild.prepare_rebuild`, but a new target starts from the newest usable checkpoint.

    `show_line` gets which one, or why none is used. DataLoss as of `find_checkpoint`.
    """
    find = partial(find_checkpoint, components, request, show_line)
    rebuild = use_checkpoint(find, partial(_restore, components, request, show_line)) or prepare_rebuild(components, request)
    copy = get_rebuild_folder(components, request.id) / CHECKPOINT_COPY_FOLDER
    shutil.rmtree(copy, ignore_errors=True)  # A killed rebuild may have left one, too.
    return rebuild


def _restore(components: Components, request: RebuildRequest, show_line: ShowLine, checkpoint: Checkpoint) -> Components:
    """Like `rebuild.prepare_rebuild`, with the content of the checkpoint in the target.

    If the target cannot store it, the target starts empty, and `show_line` gets the reason. DataLoss if the log lacks
    records then. CheckpointRemoved, without a target, if the checkpoint was removed meanwhile.
    """
    rebuild = prepare_rebuild(components, request, list_topics(components, request.lane, checkpoint))
    folder = get_rebuild_folder(components, request.id) / CHECKPOINT_COPY_FOLDER
    cast(CheckpointStore, find_store(components, request.lane)).copy_checkpoint(checkpoint, folder)
    try:
        _restore_state(components, rebuild, request, folder)
    except CheckpointUnsupported as unfit:
        why = f"none can be used, because number {checkpoint.number} {unfit}"
        drop_lane(components, make_rebuild_lane(request.lane, request.into))
        refuse_partial_log(components, request.lane, None, PARTIAL_STEP, why)
        show_line(f"{request.id}: reading the whole event log instead of a checkpoint: {why}")
        return prepare_rebuild(components, request)
    return rebuild


def find_checkpoint(
    components: Components, request: RebuildRequest, show_line: ShowLine = show_nothing
) -> Checkpoint | None:
    """The checkpoint to start from. None if the rebuild reads the whole log, or has already started.

    DataLoss, with the missing offsets, if the log lacks records that the lane has applied, and no checkpoint covers
    them. With a `since`, `show_line` gets this instead.
    """
    checkpoints = list_checkpoints(components, request.lane)
    rebuilt = make_rebuild_lane(request.lane, request.into)
    with closing(components.open_sink(rebuilt.sink)) as sink:
        has_started = request.into in get_reader(sink).tables() and sink.state(rebuilt) is not None
        is_supported = sink.features.restore_state is not None
    if has_started:
        register = FileRegister(get_rebuild_folder(components, request.id) / components.pipeline / REGISTER_FOLDER)
        begun = register.load(request.lane.source).beginnings.get(request.id, Position())
        if request.since is None:
            refuse_incomplete(components, request.lane, begun, PARTIAL_STEP)
        return None
    why = NO_CHECKPOINT_REASON
    if request.since is not None:
        why = "none can be used, because only records of a period are requested"
    elif request.policy not in (None, request.lane.policy):
        why = f"none can be used, because they have policy {request.lane.policy}"
    elif not is_supported:
        why = f"none can be used, because sink {rebuilt.sink} does not support it yet"
    for damage in describe_damaged(components, request.lane):
        show_line(f"{request.id}: {damage}")
    until = None if request.until is None else datetime.fromisoformat(request.until)
    checkpoint = find_newest(components, request.lane, until) if why == NO_CHECKPOINT_REASON else None
    if request.since is None:
        refuse_partial_log(components, request.lane, checkpoint, PARTIAL_STEP, why)
    else:
        report_truncated(components, request.lane, show_line)
    if checkpoint is not None:
        show_line(f"{request.id}: starting from checkpoint {checkpoint.number} of {checkpoint.taken_at.isoformat()}")
    elif checkpoints:
        show_line(f"{request.id}: reading the whole event log instead of a checkpoint: {why}")
    return checkpoint


def _restore_state(components: Components, rebuild: Components, request: RebuildRequest, folder: Path) -> None:
    """Rows and state are written last, so after a kill this is either repeated or complete. CheckpointUnsupported if
    the checkpoint lacks something that the target may have."""
    rebuilt = make_rebuild_lane(request.lane, request.into)
    origin = make_rebuild_lane(rebuilt, AS_OF_TARGET)
    lake = components.use_lake(rebuilt.sink, folder)
    with closing(lake.open_sink(rebuilt.sink)) as checkpoint_sink:
        plan = find_plan(rebuilt, read_schema_versions(checkpoint_sink, origin))
        if plan is None:
            raise CheckpointUnsupported("has no stored schema")
        stored = require_feature(checkpoint_sink.features.open_stored_lane, STORES_NONE)(origin, plan)
    # The register entry of the run that made the checkpoint.
    made_in = get_rebuild_folder(lake, origin.id) / components.pipeline
    entry = FileRegister(made_in / REGISTER_FOLDER).load(rebuilt.source)
    beginnings = {rebuilt.id: entry.beginnings.get(origin.id, Position())}
    rebuild.register.save(rebuilt.source, replace(entry, beginnings=beginnings))
    with closing(lake.open_dead_letters()) as rejected:
        letters = rejected.read()
    unkept = [one for one in letters if one.stage == "apply" and one.code == RejectCode.OUT_OF_RANGE]
    if unkept and not rebuild.sinks[rebuilt.sink].is_lake:
        raise CheckpointUnsupported("lacks rows with values that a lake cannot store, but this target may")
    if letters:
        with closing(rebuild.open_dead_letters()) as store:
            store.write([replace(one, lane=rebuilt.id if one.lane == origin.id else one.lane) for one in letters])
    with closing(components.open_sink(rebuilt.sink, "rewrite")) as sink:
        restore = require_feature(sink.features.restore_state, f"sink {rebuilt.sink!r} cannot start from a checkpoint")
        restore(rebuilt, plan, stored)


# Checks that an event log has all records of a lane. A rebuild from fewer records would lack rows without any error.


def refuse_partial_log(
    components: Components, lane: Lane, base: Checkpoint | None, step: str, why: str = NO_CHECKPOINT_REASON
) -> None:
    """DataLoss, with the missing offsets, unless the checkpoint `base` and the event log have all records of the lane.
    `why`: the reason if there is no checkpoint."""
    if base is None:
        refuse_truncated(components, lane, why)
    refuse_incomplete(components, lane, base.begun if base else Position(), step)


def refuse_incomplete(components: Components, lane: Lane, begun: Position, step: str) -> None:
    """DataLoss, with the missing offsets, unless the event log has every record from the start of the lane.

    A checkpoint with everything from `begun` on may replace missing records. A lane that has applied nothing lacks
    nothing.
    """
    log = components.find_log(lane.table)
    with closing(components.open_sink(lane.sink)) as sink:
        live: LaneState | None = sink.state(lane)
    if live is None:
        return
    entry = components.register.load(log.source)
    first = entry.beginnings.get(lane.id, Position())
    needed = {p: first.get(p, 0) for p, offset in live.position.items() if offset > first.get(p, 0)}
    log_start = Position()
    # In a database anyone may delete rows, so only the first records prove that the log has them.
    if not components.sinks[log.sink].is_log_in_database:
        log_began, removed = entry.beginnings.get(log.id, Position()), get_removed(components, lane)
        log_start = log_began.only(partition for partition in log_began if partition not in removed)
    with closing(components.open_log(log)) as source:
        first_offsets = source.start()
    refuse_missing_records(lane, log.sink, needed, (log_start, first_offsets, begun), step)


def refuse_missing_records(
    lane: Lane, log: str, needed: Mapping[TopicPartition, int], log_starts: Sequence[Position], step: str
) -> None:
    """Raise DataLoss, with the missing offsets, unless the log has all records from `needed` on, the start of the
    lane.

    `log_starts`: first offsets of the log, from its start position and from its first records. Each partition needs one
    of them.
    """
    for partition, offset in sorted(needed.items()):
        firsts = [position[partition] for position in log_starts if partition in position]
        if not any(first <= offset for first in firsts):
            missing = f"from {offset} to {min(firsts) - 1}" if firsts else f"from {offset} on"
            raise DataLoss(
                f"the event log {log} lacks the records {missing} of {partition}, with which lane {lane.id} began",
                next_step=f"Some rows would be missing without them. {step}, or load the lane again with "
                f"`replicator lanes resync {lane.id}`.",
            )
